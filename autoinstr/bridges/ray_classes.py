"""Actor classes, patched in the worker that runs them, as Ray loads them.

`@ray.remote` copies a class's methods before any hook of ours runs, and the class travels by value: patched in the
driver, it would either not be traced or take us along. The worker's own copy is nobody else's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from autoinstr.bridges import ray_census, ray_ids
from autoinstr.notices import describe, say
from autoinstr.patch.importing import PackageWatch
from autoinstr.patch.patcher import Patcher


class Loading:
    """What is done with an actor class between its arrival and Ray's first look at its methods."""

    def __init__(self, patcher: Patcher | None, watch: PackageWatch | None) -> None:
        self._patcher = patcher
        self._watch = watch

    def install(self, ray: Any, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def load(manager: Any, *args: Any, **kwargs: Any) -> Any:
                cls = original(manager, *args, **kwargs)
                ray_census.announce(manager._worker)
                ray_ids.learn_actor(manager._worker)
                self._patch(cls)
                return cls

            return load

        manager = import_module("ray._private.function_manager").FunctionActorManager
        replace(manager, "_load_actor_class_from_gcs", make)
        replace(manager, "_load_actor_class_from_local", make)

    def _patch(self, cls: Any) -> None:
        if self._patcher is None or not isinstance(cls, type):
            return
        try:
            if self._watch is not None:
                # a worker that gets a class by value may never import its package, and its maps wait for that
                for package in {base.__module__.partition(".")[0] for base in cls.__mro__}:
                    self._watch.begin(package)
            self._patcher.patch_class(cls)
        except Exception as error:
            say(f"the actor class {cls.__name__} is not traced: {describe(error)}", once=f"ray class {cls.__name__}")

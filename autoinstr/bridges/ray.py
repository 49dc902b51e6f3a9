"""Ray: one trace over the driver, its actors and its tasks, and the way for us to be in each of them.

Everything is installed on Ray's own modules when `ray` has been imported, in the driver and in each worker alike:
what goes out with a call and what comes in with it (`ray_context`), the environment that workers get
(`ray_environment`), the classes that a worker is handed (`ray_classes`), the driver's look at which of its actors
are without us (`ray_census`), and Ray's ids of it all (`ray_ids`). Each part stands alone: where a release of Ray
lacks what one needs, that is said once and the others work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoinstr.notices import describe, say
from autoinstr.patch.importing import PackageWatch, when_imported
from autoinstr.patch.patcher import Patcher

Replace = Callable[[Any, str, Callable[[Any], Any]], None]
"""Puts what the function makes of an attribute in the attribute's place, until the bridge is removed."""


class RayBridge:
    """Installed once in a process; `remove` puts back what nobody has wrapped since.

    Without a patcher (this rank is not selected) it only lets the driver know that we are here.
    """

    def __init__(self, patcher: Patcher | None = None, watch: PackageWatch | None = None) -> None:
        self._patcher = patcher
        self._watch = watch
        self._undo: list[Callable[[], None]] = []
        self._cancel: Callable[[], None] | None = None

    def install(self) -> None:
        self._cancel = when_imported("ray", self._on_ray)

    def remove(self) -> None:
        if self._cancel is not None:
            self._cancel()
        while self._undo:
            self._undo.pop()()

    def _on_ray(self, ray: Any) -> None:
        # nothing of this is imported in a process that does not use Ray
        from autoinstr.bridges import ray_census, ray_classes, ray_context, ray_environment, ray_ids

        loading = ray_classes.Loading(self._patcher, self._watch)
        self._part(ray, "actor classes are not patched", loading.install)
        if self._patcher is None:
            return
        self._part(ray, "spans of workers have no parent", ray_context.install)
        self._part(ray, "workers may be without autoinstr", ray_environment.install)
        self._part(ray, "workers without autoinstr go unnoticed", ray_census.install)
        self._part(ray, "spans are without Ray's ids", ray_ids.install)

    def _part(self, ray: Any, consequence: str, part: Callable[[Any, Replace], None]) -> None:
        before = len(self._undo)
        try:
            part(ray, self._replace)
        except Exception as error:
            while len(self._undo) > before:
                self._undo.pop()()
            version = getattr(ray, "__version__", "?")
            say(f"Ray {version} is not as known ({describe(error)}): {consequence}")

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        new = make(original)
        setattr(owner, name, new)

        def undo() -> None:
            if getattr(owner, name, None) is new:
                setattr(owner, name, original)

        self._undo.append(undo)

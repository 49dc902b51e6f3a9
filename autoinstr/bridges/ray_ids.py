"""Ray's ids in the resource of a process: of its job, node and worker as it connects, of its actor as that is loaded.

What a span is to Ray's own dashboard and logs is found by them. A task's id changes with every call, and is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from autoinstr import resource
from autoinstr.notices import describe, say


def install(ray: Any, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
    ray_worker = import_module("ray._private.worker")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def connect(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            learn_process(ray_worker.global_worker)
            return result

        return connect

    replace(ray_worker, "connect", make)
    if ray_worker.global_worker.connected:
        learn_process(ray_worker.global_worker)


def learn_process(worker: Any) -> None:
    """Never raises. A worker that was started in advance has no job yet."""
    _learn(
        {
            "ray.job.id": lambda: _id(worker.current_job_id),
            "ray.node.id": lambda: _id(worker.current_node_id),
            "ray.worker.id": lambda: worker.worker_id.hex(),
        }
    )


def learn_actor(worker: Any) -> None:
    """Never raises."""
    _learn(
        {
            "ray.job.id": lambda: _id(worker.current_job_id),
            "ray.actor.id": lambda: _id(worker.core_worker.get_actor_id()),
        }
    )


def _learn(readers: dict[str, Callable[[], str | None]]) -> None:
    found = {}
    for name, read in readers.items():
        try:
            value = read()
        except Exception as error:
            say(f"the resource lacks {name}: {describe(error)}", once=name)
            continue
        if value:
            found[name] = value
    resource.learn(found)


def _id(ray_id: Any) -> str | None:
    return None if ray_id.is_nil() else str(ray_id.hex())

"""Which actors of a job are without autoinstr: one line in the driver's log for each of their classes.

A worker with us leaves a word in the cluster's key-value store as it loads its actor class, which is before the
actor is alive. The driver compares the actors that are alive with these words, soon after its start and then ever
more seldom.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from autoinstr.notices import describe, say
from autoinstr.signal_masks import no_signals

_NAMESPACE = b"autoinstr"
_PREFIX = b"actor:"
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 300.0
"""Seconds. The wait grows by half each time."""


def announce(worker: Any) -> None:
    """Let the driver know that the actor of this process has us. Never raises."""
    try:
        key = _PREFIX + worker.core_worker.get_actor_id().hex().encode()
        worker.gcs_client.internal_kv_put(key, b"1", True, _NAMESPACE)
    except Exception as error:
        say(f"Ray's driver can't be told that autoinstr is here: {describe(error)}", once="ray announce")


def install(ray: Any, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
    ray_worker = import_module("ray._private.worker")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def connect(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if kwargs.get("mode") == ray_worker.SCRIPT_MODE:
                _watch(ray_worker.global_worker)
            return result

        return connect

    replace(ray_worker, "connect", make)
    replace(import_module("ray.util.client_connect"), "connect", _saying)


def _saying(original: Callable[..., Any]) -> Callable[..., Any]:
    """Over Ray client the true driver is a process of the cluster's, to which nothing of ours is brought."""

    @functools.wraps(original)
    def connect(*args: Any, **kwargs: Any) -> Any:
        say(
            "this driver reaches Ray by its client (ray://): its actors and tasks have no spans of this run; "
            "`ray job submit -- opentelemetry-instrument python ...` starts a driver in the cluster, whose have",
            once="ray client",
        )
        return original(*args, **kwargs)

    return connect


def _watch(worker: Any) -> None:
    job = worker.current_job_id
    thread = threading.Thread(target=_run, args=(worker, job), name="autoinstr-ray-census", daemon=True)
    with no_signals():
        thread.start()


def _run(worker: Any, job: Any) -> None:
    wait, known = _FIRST_WAIT, set[str]()
    asleep = threading.Event()
    while not asleep.wait(wait):
        wait = min(wait * 1.5, _LONGEST_WAIT)
        try:
            if not worker.connected or worker.current_job_id != job:
                return
            _look(worker, job, known)
        except Exception as error:
            if worker.connected:
                say(f"Ray's actors can't be counted: {describe(error)}", once="ray census")
            return


def _look(worker: Any, job: Any, known: set[str]) -> None:
    """Say which classes of actors that came to be alive since the last look have left no word."""
    state = import_module("ray._private.state").state
    alive = {
        actor_id: about for actor_id, about in state.actor_table(None, job, "ALIVE").items() if actor_id not in known
    }
    if not alive:
        return
    with_us = {key[len(_PREFIX) :].decode() for key in worker.gcs_client.internal_kv_keys(_PREFIX, _NAMESPACE) if key}
    known.update(alive)
    for actor_id in with_us & alive.keys():
        worker.gcs_client.internal_kv_del(_PREFIX + actor_id.encode(), False, _NAMESPACE)
    for name in sorted({about["ActorClassName"] for actor_id, about in alive.items() if actor_id not in with_us}):
        say(
            f"the Ray actor {name} is without autoinstr (not installed in its environment, or off there): "
            f"it works as before, and has no spans; `autoinstr bundle` makes a folder that brings it there"
        )

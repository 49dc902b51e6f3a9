"""The environment of Ray's workers: settings, the run's id, and a folder on the path that loads us.

- A cluster that the driver starts inherits the driver's environment; the folder is put on the raylet's PYTHONPATH,
  and taken off that of Ray's other processes, which are none of a training run's.
- A cluster that runs already has an environment of its own: there the job's `runtime_env` brings all of it.
- A `runtime_env` with a PYTHONPATH of its own, the job's or an actor's, would take the folder off again, so it is
  put before theirs.

What the user has set stays as it is, and no dictionary of theirs is changed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import autoinstr
from autoinstr.notices import describe, say
from autoinstr.settings import Settings

SITE = str(Path(__file__).resolve().parent / "ray_site")
"""Holds the `sitecustomize` that loads us, or the user's own where we are not installed."""

_PASSED_ON = ("AUTOINSTR_", "OTEL_", "NEMO_RL_OTEL_", "NEMO_LENS_")
_OPENTELEMETRY = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
_WORKERS_OWN = "${PYTHONPATH}"
"""Ray puts the worker's own value in its place."""


def install(ray: Any, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
    services = import_module("ray._private.services")
    utils = import_module("ray._private.utils")
    worker = import_module("ray._private.worker")
    raylet = import_module("ray._private.ray_constants").PROCESS_TYPE_RAYLET

    def make_start(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start_ray_process(command: Any, process_type: Any, *args: Any, **kwargs: Any) -> Any:
            updates = kwargs.get("env_updates") or {}
            before = updates.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            after = with_site(before) if process_type == raylet else os.pathsep.join(_others(before))
            if after != before:
                kwargs["env_updates"] = {**updates, "PYTHONPATH": after}
            return original(command, process_type, *args, **kwargs)

        return start_ray_process

    def make_connect(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def connect(node: Any, *args: Any, **kwargs: Any) -> Any:
            job_config = kwargs.get("job_config")
            if kwargs.get("mode") == worker.SCRIPT_MODE and job_config is not None:
                try:
                    merged = for_job(job_config.runtime_env, os.environ, started_here=bool(node.head))
                    if merged is not None:
                        job_config.set_runtime_env(merged)
                    say_if_deleted(node.get_runtime_env_dir_path())
                except Exception as error:
                    say(f"Ray's workers may be without autoinstr: {describe(error)}", once="ray environment")
            return original(node, *args, **kwargs)

        return connect

    def make_info(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_runtime_env_info(runtime_env: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("is_job_runtime_env"):
                try:
                    runtime_env = for_actor(runtime_env)
                except Exception as error:
                    say(f"a Ray worker may be without autoinstr: {describe(error)}", once="ray environment")
            return original(runtime_env, *args, **kwargs)

        return get_runtime_env_info

    replace(services, "start_ray_process", make_start)
    replace(worker, "connect", make_connect)
    for module in (utils, ray.actor, ray.remote_function):
        replace(module, "get_runtime_env_info", make_info)


def say_if_deleted(rays: str) -> None:
    """A driver that `ray job submit --working-dir` starts works in a folder of Ray's (below `rays`): so its journal."""
    settings = Settings.from_environ()
    if settings.journal and Path(rays).resolve() in settings.run_dir.resolve().parents:
        say(
            f"the journal is in {settings.run_dir}, in the job's working_dir, which Ray deletes; "
            "AUTOINSTR_RUN_DIR in the job's env_vars names a folder that stays"
        )


def for_job(runtime_env: Any, environ: Mapping[str, str], started_here: bool) -> Any:
    """The job's `runtime_env` with what its workers need from us; None where they have it already.

    `started_here`: the cluster's processes have inherited `environ`.
    """
    theirs = dict((runtime_env or {}).get("env_vars") or {})
    if started_here:
        return for_actor(runtime_env) if "PYTHONPATH" in theirs else None
    ours = {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}
    path = with_site(theirs.get("PYTHONPATH", _WORKERS_OWN))
    return _with_variables(runtime_env or {}, {**ours, **theirs, "PYTHONPATH": path})


def for_actor(runtime_env: Any) -> Any:
    """The `runtime_env` of an actor or a task, with our folder before a PYTHONPATH of its own."""
    variables = (runtime_env or {}).get("env_vars") or {}
    theirs = variables.get("PYTHONPATH")
    if theirs is None or with_site(theirs) == theirs:
        return runtime_env
    return _with_variables(runtime_env, {**variables, "PYTHONPATH": with_site(theirs)})


def _with_variables(runtime_env: Any, variables: dict[str, str]) -> Any:
    """A copy; Ray's own class is kept, and what it has checked is not checked again."""
    kind: Any = type(runtime_env)
    copy = kind.__new__(kind)
    dict.update(copy, runtime_env)
    dict.__setitem__(copy, "env_vars", variables)
    return copy


def with_site(path: str) -> str:
    """`path` with our folder first, and the folder of autoinstr itself where a PYTHONPATH has led to it."""
    return os.pathsep.join([SITE, *_own_root(path), *_others(path)])


def _others(path: str) -> list[str]:
    """The entries that are the user's. Ours loads OpenTelemetry's loader; beside it, that one would shadow theirs."""
    return [part for part in path.split(os.pathsep) if part and part != SITE and not _is_opentelemetry(part)]


def _is_opentelemetry(part: str) -> bool:
    return os.path.normpath(part).endswith(_OPENTELEMETRY)


def _own_root(path: str) -> list[str]:
    root = str(Path(autoinstr.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    mine = [os.path.realpath(part) for part in inherited if part]
    return [root] if root in mine and root not in path.split(os.pathsep) else []

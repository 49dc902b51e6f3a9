"""Loads autoinstr in a Ray worker, where it is installed; then the `sitecustomize` that this file shadows.

Python runs this file by its name, from the PYTHONPATH that a worker got. Ray's own processes pass it by, and in an
environment without autoinstr it does nothing but run the user's file. Standard library only.
"""

import os
import sys


def _path_without_empty_end() -> None:
    """`folder:${PYTHONPATH}` ends in a colon where the worker had none, and that is the current folder to Python.

    It goes to the end, where it shadows nothing; a `.pth` file may have asked for the same folder.
    """
    path = os.environ.get("PYTHONPATH", "")
    if path.endswith(os.pathsep):
        os.environ["PYTHONPATH"] = path.rstrip(os.pathsep)
        here = os.getcwd()
        if here in sys.path and here not in path.split(os.pathsep):
            sys.path.remove(here)
            sys.path.append(here)


def _is_for_us() -> bool:
    """Not for the agents that inherit a raylet's environment, nor for the step before a worker's true start."""
    script = next((part for part in getattr(sys, "orig_argv", [])[1:] if part.endswith(".py")), "")
    folder, name = os.path.split(script)
    parts = folder.split(os.sep)
    return name == "default_worker.py" or "ray" not in parts or not {"_private", "dashboard", "autoscaler"} & {*parts}


def _load() -> None:
    try:
        import autoinstr  # noqa: F401, I001 first: without it, nothing of OpenTelemetry is to be imported here
        from opentelemetry.instrumentation.auto_instrumentation import initialize
    except ImportError:
        return
    path = os.environ.get("PYTHONPATH")
    here = os.path.dirname(os.path.abspath(__file__))
    if path is not None:  # a process that is started meanwhile must not come here again
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in path.split(os.pathsep) if os.path.abspath(p) != here)
    try:
        initialize()
    finally:
        if path is not None:
            os.environ["PYTHONPATH"] = path


def _run_shadowed() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    opentelemetry = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
    path = [p for p in sys.path if os.path.abspath(p) != here and not os.path.normpath(p).endswith(opentelemetry)]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_path_without_empty_end()
if _is_for_us():
    _load()
_run_shadowed()

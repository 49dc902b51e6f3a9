"""Loads autoinstr from the folder that this file lies in; then the `sitecustomize` that it shadows.

Python runs it by its name, from a PYTHONPATH that holds the folder. `autoinstr bundle` has put it there, beside
`bundle.json` and one folder per distribution. What the environment has of these wins: only what it lacks is put
on the path, behind everything else, and only if its versions go with those of the environment. If they do not, this
is said in one line and the process stays as it is. Standard library only, and read by every Python
from 3.6 on, for that of the machine may be so old: annotations are texts.
"""

import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_FALSE = ("0", "false", "no", "off")
_EXPORTERS = "opentelemetry-exporter-"
"""autoinstr asks for them, and can do without: spans then go elsewhere, or into the journal."""
_FAMILY = "opentelemetry-"
_NOT_FOR = frozenset([
    "autoinstr", "opentelemetry-instrument", "pip", "__pip-runner__", "ensurepip", "venv", "virtualenv", "pipx",
    "pipenv", "poetry", "pdm", "uv", "conda",
])  # fmt: skip
"""Programs, by their first name."""


TYPE_CHECKING = False
if TYPE_CHECKING:  # without an import: every process that has the folder on its path comes here
    from collections.abc import Iterable
    from typing import Any

    Bundled = dict[str, dict[str, Any]]


class _StayOut(Exception):
    """Why this process is not traced."""


def _is_on() -> bool:
    for prefix in ("AUTOINSTR_", "NEMO_RL_OTEL_", "NEMO_LENS_"):
        value = os.environ.get(prefix + "ENABLED", "").strip().lower()
        if value:
            if value in _FALSE:
                return False
            break
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"


def _is_for_us() -> bool:
    """Not for Ray's own processes, which inherit the path of a driver, nor for the step before a worker's start.

    And not for commands that only look at runs, or start a process that has us anyway; nor for what looks after
    environments: pip would take the bundle's packages for installed ones.
    """
    words = getattr(sys, "orig_argv", [])[1:]
    if _program(words) in _NOT_FOR:
        return False
    script = next((part for part in words if part.endswith(".py")), "")
    folder, name = os.path.split(script)
    parts = folder.split(os.sep)
    return name == "default_worker.py" or "ray" not in parts or not {"_private", "dashboard", "autoscaler"} & {*parts}


def _program(words: "list[str]") -> str:
    """The script or module that Python runs, by its first name and without a version: `pip` for `bin/pip3.12`."""
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return os.path.basename(word).partition(".")[0].rstrip("0123456789-")
        if word.startswith("--"):
            flag, rest = word, ""
        else:
            at = next((at for at, letter in enumerate(word) if letter in "cmWX"), len(word))
            flag, rest = word[at : at + 1], word[at + 1 :]
        if flag == "m":
            return (rest or (words or [""])[0]).partition(".")[0]
        if flag == "c":
            return ""
        if flag in ("W", "X", "--check-hash-based-pycs") and not rest and words:
            words.pop(0)
    return ""


def _is_loaded() -> bool:
    """By `opentelemetry-instrument`, or by the folder that the Ray bridge puts before this one."""
    return "autoinstr.instrumentor" in sys.modules


def _load() -> None:
    major, minor = sys.version_info[:2]
    if (major, minor) < (3, 10):
        raise _StayOut(f"this Python is {major}.{minor}, and autoinstr needs 3.10")
    with open(os.path.join(_HERE, "bundle.json"), encoding="utf-8") as file:
        bundle = json.load(file)
    first, last = _choose(bundle)
    at = next((i for i, part in enumerate(sys.path) if os.path.abspath(part) == _HERE), -1) + 1
    sys.path[at:at] = first
    sys.path += [folder for folder in last if folder not in sys.path]
    try:
        from importlib import import_module

        import_module("autoinstr")
        initialize = import_module("opentelemetry.instrumentation.auto_instrumentation").initialize
    except ImportError as error:
        raise _StayOut(str(error)) from None
    path = os.environ.get("PYTHONPATH")
    if path is not None:  # a process that is started meanwhile must not come here again
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in path.split(os.pathsep) if os.path.abspath(p) != _HERE)
    try:
        initialize()
    finally:
        if path is not None:
            os.environ["PYTHONPATH"] = path


def _choose(bundle: "dict[str, Any]") -> "tuple[list[str], list[str]]":
    """The folders to put first on the path, and those to put last."""
    bundled = bundle["distributions"]
    there = _installed(bundled)
    if "autoinstr" in there:
        return [], []
    replaced = []
    if there:
        why = _conflict("autoinstr", bundled, there, bundled)
        if why and bundle["replace_older"]:
            replaced = [name for name in bundled if name.startswith(_FAMILY)]
            there = _without_older(bundled, there, why)
            why = _conflict("autoinstr", bundled, there, bundled)
        if why:
            hint = "" if bundle["replace_older"] else " (autoinstr bundle --replace-older would bring its own)"
            raise _StayOut(why + hint)
    wanted = [
        name for name in bundled if name not in there and not (there and _conflict(name, bundled, there, bundled))
    ]
    folders = {name: os.path.join(_HERE, "packages", bundled[name]["folder"]) for name in wanted}
    return [folders[n] for n in wanted if n in replaced], [folders[n] for n in wanted if n not in replaced]


def _installed(names: "Iterable[str]") -> "dict[str, str]":
    """The versions of those of `names` that the environment has."""
    from importlib import metadata

    found = {}
    for name in names:
        try:
            version = metadata.version(name)
        except Exception:  # not there, or its metadata is broken, which is as good as that
            continue
        if version:
            found[name] = version
    return found


def _conflict(name: str, bundled: "Bundled", there: "dict[str, str]", unseen: "Iterable[str]") -> str:
    """Why the bundle's distribution `name` does not go with what the environment has; "" where it does."""
    requirements, version_of = _packaging(bundled, there)
    unseen = {other for other in unseen if other != name}
    for text in bundled[name]["requires"]:
        requirement = requirements(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        other = requirement.name.lower().replace("_", "-").replace(".", "-")
        if other.startswith(_EXPORTERS) and not name.startswith(_EXPORTERS):
            continue
        if other in there:
            if not requirement.specifier.contains(version_of(there[other]), prereleases=True):
                here, ours = f"{other} {there[other]}", f"{name} {bundled[name]['version']}"
                return f"this environment has {here}, and {ours} needs {requirement.specifier}"
        elif other in unseen:
            why = _conflict(other, bundled, there, unseen)
            if why:
                return why
    return ""


def _without_older(bundled: "Bundled", there: "dict[str, str]", why: str) -> "dict[str, str]":
    """`there` without OpenTelemetry, which the bundle replaces as a whole: never what is newer, or imported already."""
    version_of = _packaging(bundled, there)[1]
    for name, version in there.items():
        if name.startswith(_FAMILY) and version_of(version) > version_of(bundled[name]["version"]):
            raise _StayOut(f"{why}, but its {name} {version} is newer than the bundle's")
    for name, module in list(sys.modules.items()):
        if name.startswith("opentelemetry.") and getattr(module, "__file__", None):
            raise _StayOut(why + ", and has imported it already")
    return {name: version for name, version in there.items() if not name.startswith(_FAMILY)}


def _packaging(bundled: "Bundled", there: "dict[str, str]") -> "tuple[Any, Any]":
    """`packaging`'s requirements and versions: the environment's, which is the one that stays, or ours."""
    folder = os.path.join(_HERE, "packages", bundled["packaging"]["folder"])
    if "packaging" not in there and folder not in sys.path:
        sys.path.append(folder)
    from packaging.requirements import Requirement
    from packaging.version import Version

    return Requirement, Version


def _run_shadowed(loaded: bool) -> None:
    """The next `sitecustomize` behind this one, as Python would have run it."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    opentelemetry = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
    path = [os.path.abspath(part or os.curdir) for part in sys.path]
    path = path[path.index(_HERE) + 1 :] if _HERE in path else []
    if loaded:  # it would load all of OpenTelemetry once more
        path = [part for part in path if not part.endswith(opentelemetry)]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_before = list(sys.path)
try:
    if _is_on() and _is_for_us() and not _is_loaded():
        _load()
except Exception as _error:
    sys.path[:] = _before
    for _name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
        del sys.modules[_name]  # found by us alone, perhaps
    _why = _error if isinstance(_error, _StayOut) else f"{type(_error).__name__}: {_error}"
    try:
        sys.stderr.write(f"autoinstr: {_HERE}: {_why}; this process is not traced\n")
    except Exception:  # closed, or nobody reads it: the sitecustomize that ours shadows runs all the same
        pass
_run_shadowed(_is_loaded())

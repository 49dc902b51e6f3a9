"""Modules that the user's maps name and nobody has: misspelt, their spans would be silently absent.

Asked for at the end of a process, when all that is imported has been. A module that exists and was not imported is
no mistake: a map may speak of more than one run needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from autoinstr.maps.words import did_you_mean
from autoinstr.patch.patcher import Patcher


def modules_of_nobody(files: set[str], patcher: Patcher) -> Iterator[str]:
    """A line for each target of these map files whose module does not exist, though its package was imported."""
    for claim in patcher.waiting():
        module = claim.target.module
        if claim.target.place.file in files and not claim.entry.optional and not _exists(module):
            yield (
                f"{claim.target.place}: {claim.entry.name}: there is no module {module!r}"
                f"{did_you_mean(module, _neighbours(module))}; nothing was imported to patch"
            )


def packages_of_nobody(packages: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """A line for each map file whose package is not installed, where one of a near name was imported."""
    imported = {name for name in sys.modules if "." not in name and not name.startswith("_")}
    for path, package in packages:
        top = package.partition(".")[0]
        if top in sys.modules or PathFinder.find_spec(top) is not None:
            continue
        near = did_you_mean(top, imported - sys.stdlib_module_names)
        if near:
            yield f"{path}: there is no package {top!r}{near}; nothing of the map was used"


def _exists(module: str) -> bool:
    """Whether a module below an imported package is imported or could be. Imports nothing."""
    if module in sys.modules or module.partition(".")[0] not in sys.modules:
        return True
    name, *rest = module.split(".")
    path = getattr(sys.modules[name], "__path__", None)
    for part in rest:
        if path is None:
            return False
        name = f"{name}.{part}"
        if name in sys.modules:
            path = getattr(sys.modules[name], "__path__", None)
            continue
        spec = PathFinder.find_spec(name, list(path))
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def _neighbours(module: str) -> set[str]:
    """Modules that `module` may have meant: what is imported of its package, and what lies beside it."""
    import pkgutil

    top = module.partition(".")[0]
    found = {name for name in sys.modules if name.startswith(top + ".")}
    for parent in [top, *found]:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is not None:
            found |= {f"{parent}.{one.name}" for one in pkgutil.iter_modules(list(path))}
    return found

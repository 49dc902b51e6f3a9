"""Names that other modules took with `from m import f`, at another time than the patch would have them."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from autoinstr.patch.ledger import Installed


def find_stale(module: Any, installed: Iterable[Installed], packages: Iterable[str]) -> list[str]:
    """`other.name` for every module of these packages (and `__main__`) that holds an original of `installed`.

    They took it before `module` was patched, and go on meaning the original. Not counted: the module that
    defines the function, which holds it by right. What is found is also noted in `installed`.
    """
    originals = {id(i.found.raw): i for i in installed if i.found.owner is module and _is_function(i.found.raw)}
    found: list[str] = []
    for other, name, value in _names_near(set(packages) if originals else set()):
        patch = originals.get(id(value))
        if patch is not None and other is not module and other.__name__ != value.__module__:
            patch.stale.append(f"{other.__name__}.{name}")
            found.append(f"{other.__name__}.{name}")
    return found


def give_back(installed: Iterable[Installed], packages: Iterable[str]) -> None:
    """Give modules that took a wrapper by name the original, now that the patch is undone.

    Looked for in these packages, and in those of the patched modules.
    """
    wrappers = {
        id(i.new): i for i in installed if isinstance(i.found.owner, types.ModuleType) and _is_function(i.found.raw)
    }
    for other, name, value in _names_near(
        {i.found.owner.__name__ for i in wrappers.values()}.union(packages if wrappers else ())
    ):
        patch = wrappers.get(id(value))
        if patch is not None and patch.found.owner is not other:
            setattr(other, name, patch.found.raw)


def _is_function(value: Any) -> bool:
    return type(value) is types.FunctionType


def _names_near(modules: set[str]) -> Iterator[tuple[types.ModuleType, str, Any]]:
    """Every name that stands in a module of the packages of `modules`, or in `__main__`."""
    packages = {name.partition(".")[0] for name in modules} | {"__main__"} if modules else set()
    for name, other in list(sys.modules.items()):
        if name.partition(".")[0] in packages and isinstance(other, types.ModuleType):
            # not vars(): a look at a lazy module would make it load
            for key, value in list(object.__getattribute__(other, "__dict__").items()):
                yield other, key, value

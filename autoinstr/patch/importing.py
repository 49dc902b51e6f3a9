"""When to act: as the import of a package begins (its maps are read), and when a module is there (it is patched)."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Sequence

import wrapt

from autoinstr.notices import say


class PackageWatch(importlib.abc.MetaPathFinder):
    """Calls back when one of some top-level packages begins to be imported. It finds nothing itself."""

    def __init__(self, packages: Iterable[str], activate: Callable[[str], None]) -> None:
        self._waiting = set(packages)
        self._activate = activate

    def start(self) -> None:
        """Watch; packages that are imported already are reported at once."""
        sys.meta_path.insert(0, self)
        for package in sorted(self._waiting & set(sys.modules)):
            self._fire(package)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._waiting:
            self._fire(fullname)
        return None

    def _fire(self, package: str) -> None:
        self._waiting.discard(package)
        try:
            self._activate(package)
        except Exception as error:  # the user's import goes on, whatever is wrong with us
            say(f"the maps of {package} could not be activated: {type(error).__name__}: {error}")


def when_imported(module: str, act: Callable[[types.ModuleType], None]) -> None:
    """Call `act` with the module once it has been imported, at once if it is. `act` may raise: it is said."""

    def hook(loaded: types.ModuleType) -> None:
        try:
            # a module may have put something else in its own place
            live = sys.modules.get(module, loaded)
            act(live if isinstance(live, types.ModuleType) else loaded)
        except Exception as error:
            say(f"{module} could not be patched: {type(error).__name__}: {error}")

    wrapt.register_post_import_hook(hook, module)

"""When to act: as the import of a package begins (its maps are read), and when a module is there (it is patched).

wrapt's post-import hooks report a module's first import. They fire once, so a module that is imported again
(it was taken out of `sys.modules`) or reloaded is reported by a finder of ours, which exists while there are
hooks; so is the first import under wrapt 1.14, whose hooks are called under a lock. Nothing here holds a lock
while the user's code runs, and no exception of ours reaches an import.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

import wrapt

from autoinstr.notices import describe, say

Act = Callable[[Any], None]


class PackageWatch(importlib.abc.MetaPathFinder):
    """Calls back when one of some top-level packages begins to be imported. It finds nothing itself."""

    def __init__(self, packages: Iterable[str], activate: Callable[[str], None]) -> None:
        self._waiting = set(packages)
        self._activate = activate

    def start(self) -> None:
        """Watch; packages that are imported already are reported at once."""
        # Both finders that see a module through its import must be asked after us. They come to be with their first
        # hook, which is when the maps of a package are read as its import begins: as new first finders they would
        # be passed by then, and the package's own `__init__` would not be patched.
        wrapt.register_post_import_hook(lambda module: None, "sys")
        _reloads.stay(1)
        sys.meta_path.insert(0, self)
        for package in sorted(self._waiting & set(sys.modules)):
            self._fire(package)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _reloads.stay(-1)

    def begin(self, package: str) -> None:
        """Report `package` although it may never be imported: one of its classes has come in another way."""
        if package in self._waiting:
            self._fire(package)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._waiting:
            self._fire(fullname)
        return None

    def _fire(self, package: str) -> None:
        self._waiting.discard(package)
        try:
            self._activate(package)
        except Exception as error:  # the user's import goes on, whatever is wrong with us
            say(f"the maps of {package} could not be activated: {describe(error)}")


def when_imported(module: str, act: Act) -> Callable[[], None]:
    """Call `act` with the module each time it has been imported or reloaded, at once if it is there already.

    `act` may raise: it is said. What it is given is what stands in `sys.modules`, a module or what a module
    put in its own place. Returns a function that ends it.
    """
    hook = _Hook(module, act)
    there = sys.modules.get(module)
    if there is None or not _call_when_initialized(there, hook):
        hook.register()
    return hook.cancel


class _Hook:
    """One module's name, and what is called when it has been loaded."""

    def __init__(self, name: str, act: Act) -> None:
        self.name = name
        self._act: Act | None = act

    def register(self) -> None:
        if _FIRST_BY_WRAPT:
            wrapt.register_post_import_hook(self, self.name)
            return
        _reloads.add(self)
        if self.name in sys.modules:
            self(sys.modules[self.name])

    def cancel(self) -> None:
        self._act = None  # wrapt keeps the hook until the module is imported
        _reloads.discard(self)

    def __call__(self, loaded: Any) -> None:
        if self._act is not None and _is_unloaded(loaded):
            spec = object.__getattribute__(loaded, "__spec__")
            spec.loader = _FollowedLoader(spec.loader, [self.run])
        else:
            self.run(loaded)

    def run(self, loaded: Any) -> None:
        act = self._act
        if act is None:
            return
        try:
            _reloads.add(self)
            act(sys.modules.get(self.name, loaded))
        except Exception as error:
            say(f"{self.name} could not be patched: {describe(error)}")


_FIRST_BY_WRAPT = tuple(map(int, vars(wrapt)["__version__"].split(".")[:2])) >= (1, 15)
"""Whether wrapt reports first imports; else our own finder does that too. wrapt 1.14 holds a lock of its own while
it calls hooks, which can stop two importing threads for good."""


def _is_unloaded(module: Any) -> bool:
    """Whether it is a lazy module of importlib's: nothing of it has run, and a look at it would run it."""
    if type(module) is not importlib.util._LazyModule:  # type: ignore[attr-defined]
        return False
    state = getattr(object.__getattribute__(module, "__spec__"), "loader_state", None)
    return not (isinstance(state, dict) and state.get("is_loading"))  # from Python 3.12.3 it changes its class last


class _FollowedLoader:
    """A loader that calls hooks when it has run a module. For one load: the module is given the true one back."""

    def __init__(self, loader: Any, hooks: Sequence[Act]) -> None:
        self._loader = loader
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            _give_back_loader(module)
        except Exception as error:
            say(f"{type(module).__name__} keeps a loader of ours: {describe(error)}")
        self._loader.exec_module(module)
        for hook in self._hooks:
            hook(module)


def _give_back_loader(module: Any) -> None:
    """Put the true loader where ours stands."""
    spec: Any = getattr(module, "__spec__", None)
    for owner, attribute in ((module, "__loader__"), (spec, "loader")):
        loader: Any = getattr(owner, attribute, None)
        if type(loader) is not _FollowedLoader:
            continue
        try:
            setattr(owner, attribute, loader._loader)
        except Exception:  # a module of a class of its own may allow nothing; then it keeps what it was given
            pass


class _Reloads(importlib.abc.MetaPathFinder):
    """Finds modules that have been loaded before as the finders after it do, and has their hooks called again."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[_Hook]] = {}
        self._watches = 0
        self._lock = threading.Lock()
        self._searching: set[tuple[int, str]] = set()

    def add(self, hook: _Hook) -> None:
        with self._lock:
            hooks = self._hooks.setdefault(hook.name, [])
            if hook not in hooks:
                hooks.append(hook)
            self._come_or_go()

    def stay(self, watches: int) -> None:
        """Count package watches: the finder is there while there is one, or a hook."""
        with self._lock:
            self._watches += watches
            self._come_or_go()

    def _come_or_go(self) -> None:
        wanted, there = bool(self._hooks or self._watches), self in sys.meta_path
        if wanted and not there:
            sys.meta_path.insert(0, self)
        elif there and not wanted:
            sys.meta_path.remove(self)

    def discard(self, hook: _Hook) -> None:
        with self._lock:
            left = [other for other in self._hooks.pop(hook.name, ()) if other is not hook]
            if left:
                self._hooks[hook.name] = left
            self._come_or_go()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        hooks = self._hooks.get(fullname)
        search = (threading.get_ident(), fullname)
        # wrapt's finder searches the whole of sys.meta_path itself
        if not hooks or search in self._searching:
            return None
        self._searching.add(search)
        try:
            spec = self._search(fullname, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _FollowedLoader(spec.loader, list(hooks))  # type: ignore[assignment]
        return spec

    def _search(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        if self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                return spec  # type: ignore[no-any-return]
        return None


_reloads = _Reloads()


def _call_when_initialized(module: Any, hook: _Hook) -> bool:
    """Whether `module` is being imported at this moment (in a circle, or by another thread).

    If so, `hook` is called when that is done. Its loader is running and can't be replaced any more, but the
    import system ends by setting `_initializing` of the spec to False, and that is seen here.
    """
    if _is_unloaded(module):
        return False
    spec: Any = getattr(module, "__spec__", None)
    if type(spec) not in (ModuleSpec, _WatchedSpec) or not getattr(spec, "_initializing", False):
        return False
    vars(spec).setdefault(_WAITING, []).append(hook)
    spec.__class__ = _WatchedSpec
    if not spec._initializing:  # it was done meanwhile, in another thread
        spec._call_waiting()
    return True


_WAITING = "_autoinstr_waiting"


class _WatchedSpec(ModuleSpec):
    """The spec of a module while it is being imported and somebody waits for it."""

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__.get("_initializing", False))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        if not value:
            self._call_waiting()

    def _call_waiting(self) -> None:
        try:
            waiting = self.__dict__.pop(_WAITING, ())
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            for hook in waiting:
                loaded = sys.modules.get(self.name)
                if loaded is None:  # its import failed; there may be another one
                    hook.register()
                else:
                    hook(loaded)
        except Exception as error:
            say(f"{self.name} could not be patched: {describe(error)}")


_WatchedSpec.__name__ = _WatchedSpec.__qualname__ = "ModuleSpec"  # for its repr in error messages

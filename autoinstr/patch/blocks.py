"""The `block` join point: the `with` block that a context-manager factory makes, picked by argument and caller.

One wrapper per factory serves every label. A label that no map names costs one dictionary look-up.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from autoinstr.maps.values import MISSING, argument_getter, parameters_of
from autoinstr.notices import say
from autoinstr.patch.binding import Binding
from autoinstr.patch.callers import calling_frame, is_inside
from autoinstr.patch.functions import dress
from autoinstr.spans.opening import Opened, SpanPlan, close

_CACHE_LIMIT = 4096


class BlockEntry:
    """One entry's claim on a factory: which calls it picks, and the plan of its span."""

    def __init__(self, plan: SpanPlan, binding: Binding, target_selectors: Any, inside: tuple[str, ...]) -> None:
        self.plan = plan
        self.binding = binding
        self.selectors = target_selectors
        self.inside = inside


class BlockChooser:
    """Which entry a call of the factory belongs to. The first selector's argument is the label, and is indexed."""

    def __init__(self, factory: Any, module: str, entries: list[BlockEntry]) -> None:
        self._module = module
        self._entries = entries
        # a factory whose entries name one and the same argument is indexed by it; others are asked in turn
        arguments = {e.selectors[0].argument if e.selectors else None for e in entries}
        only = arguments.pop() if len(arguments) == 1 else None
        self._label = argument_getter(only, parameters_of(factory)) if only is not None else None
        self._by_label: dict[Any, tuple[BlockEntry, ...]] = {}
        self._index = only

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BlockEntry, ...]:
        if self._label is None:
            return tuple(self._entries)
        label = self._label(args, kwargs)
        try:
            return self._by_label[label]
        except KeyError:
            pass
        except TypeError:  # an unhashable label is nobody's
            return ()
        found = tuple(e for e in self._entries if e.selectors[0].accepts(label))
        if len(self._by_label) < _CACHE_LIMIT:
            self._by_label[label] = found
        return found

    def choose(self, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> Entered | None:
        """The entry of this call and its attributes, or None. Never raises."""
        try:
            found = self.candidates(args, kwargs)
            if not found:
                return None
            frame = calling_frame(sys._getframe(depth), self._module)
            for entry in found:
                binding = entry.binding
                if entry.inside and not is_inside(frame, entry.inside):
                    continue
                if len(entry.selectors) > (1 if self._label is not None else 0) and not binding.selects(args, kwargs):
                    continue
                attributes = binding.at_start(args, kwargs, frame) if binding.has_start else None
                return Entered(entry.plan, attributes)
        except Exception as error:
            say(
                f"a block of {self._module} left out: {type(error).__name__}: {error}",
                once=f"block {self._module}",
            )
        return None


class Entered:
    """One block: the plan and attributes of its span, and the span once it is open."""

    __slots__ = ("attributes", "opened", "plan")

    def __init__(self, plan: SpanPlan, attributes: dict[str, Any] | None) -> None:
        self.plan = plan
        self.attributes = attributes
        self.opened: Opened | None = None

    def again(self) -> Entered:
        return Entered(self.plan, self.attributes)

    def open(self) -> None:
        self.opened = self.plan.open(self.attributes, loose=True)

    def close(self, exception: BaseException | None) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            close(opened, exception)


def wrap_factory(factory: Callable[..., Any], chooser: BlockChooser) -> Callable[..., Any]:
    """A function that returns what `factory` returns; a chosen block also opens a span while it is entered."""
    candidates, choose = chooser.candidates, chooser.choose

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        manager = factory(*args, **kwargs)
        if not candidates(args, kwargs):
            return manager
        entered = choose(args, kwargs, 2)
        return manager if entered is None else traced(manager, entered)

    return dress(wrapper, factory)


def traced(manager: Any, entered: Entered) -> Any:
    """`manager`, opening a span while it is entered.

    What `@contextmanager` makes is fresh on every call, so it stays the very object and only its class
    changes to a subclass of its own. Anything else may be shared, and is put behind a delegate.
    """
    kind = type(manager)
    if kind is contextlib._GeneratorContextManager:
        manager.__class__ = _TracedGenerator
        manager._autoinstr_entered = entered
        return manager
    if kind is contextlib._AsyncGeneratorContextManager:
        manager.__class__ = _TracedAsyncGenerator
        manager._autoinstr_entered = entered
        return manager
    if hasattr(kind, "__enter__") or hasattr(kind, "__aenter__"):
        return _Delegate(manager, entered)
    return manager


class _TracedGenerator(contextlib._GeneratorContextManager):  # type: ignore[type-arg]
    _autoinstr_entered: Entered

    def __enter__(self) -> Any:
        entered = self._autoinstr_entered
        entered.open()
        try:
            return super().__enter__()
        except BaseException as exception:
            entered.close(exception)
            raise

    def __exit__(self, typ: Any, value: Any, traceback: Any) -> bool | None:
        entered = self._autoinstr_entered
        try:
            swallowed = super().__exit__(typ, value, traceback)
        except BaseException as exception:
            entered.close(exception)
            raise
        entered.close(None if swallowed else value)
        return swallowed

    def _recreate_cm(self) -> Any:  # used as a decorator: a fresh block for every call
        manager = super()._recreate_cm()
        manager._autoinstr_entered = self._autoinstr_entered.again()
        return manager


class _TracedAsyncGenerator(contextlib._AsyncGeneratorContextManager):  # type: ignore[type-arg]
    _autoinstr_entered: Entered

    async def __aenter__(self) -> Any:
        entered = self._autoinstr_entered
        entered.open()
        try:
            return await super().__aenter__()
        except BaseException as exception:
            entered.close(exception)
            raise

    async def __aexit__(self, typ: Any, value: Any, traceback: Any) -> bool | None:
        entered = self._autoinstr_entered
        try:
            swallowed = await super().__aexit__(typ, value, traceback)
        except BaseException as exception:
            entered.close(exception)
            raise
        entered.close(None if swallowed else value)
        return swallowed

    def _recreate_cm(self) -> Any:
        manager = super()._recreate_cm()
        manager._autoinstr_entered = self._autoinstr_entered.again()
        return manager


for _traced_class, _original_class in (
    (_TracedGenerator, contextlib._GeneratorContextManager),
    (_TracedAsyncGenerator, contextlib._AsyncGeneratorContextManager),
):
    _traced_class.__name__ = _original_class.__name__
    _traced_class.__qualname__ = _original_class.__qualname__
    _traced_class.__module__ = _original_class.__module__
    _traced_class.__doc__ = _original_class.__doc__


class _Delegate:
    """Stands before a context manager that may be shared; everything but entering and leaving goes through."""

    def __init__(self, manager: Any, entered: Entered) -> None:
        object.__setattr__(self, "_autoinstr_manager", manager)
        object.__setattr__(self, "_autoinstr_entered", entered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._autoinstr_manager, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._autoinstr_manager, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._autoinstr_manager)

    def __enter__(self) -> Any:
        self._autoinstr_entered.open()
        try:
            got = self._autoinstr_manager.__enter__()
        except BaseException as exception:
            self._autoinstr_entered.close(exception)
            raise
        return self if got is self._autoinstr_manager else got

    def __exit__(self, typ: Any, value: Any, traceback: Any) -> Any:
        try:
            swallowed = self._autoinstr_manager.__exit__(typ, value, traceback)
        except BaseException as exception:
            self._autoinstr_entered.close(exception)
            raise
        self._autoinstr_entered.close(None if swallowed else value)
        return swallowed

    async def __aenter__(self) -> Any:
        self._autoinstr_entered.open()
        try:
            got = await self._autoinstr_manager.__aenter__()
        except BaseException as exception:
            self._autoinstr_entered.close(exception)
            raise
        return self if got is self._autoinstr_manager else got

    async def __aexit__(self, typ: Any, value: Any, traceback: Any) -> Any:
        try:
            swallowed = await self._autoinstr_manager.__aexit__(typ, value, traceback)
        except BaseException as exception:
            self._autoinstr_entered.close(exception)
            raise
        self._autoinstr_entered.close(None if swallowed else value)
        return swallowed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._autoinstr_manager(*args, **kwargs)


def wrap_class_methods(cls: type, chooser_for: Callable[[Any], BlockChooser]) -> dict[str, Callable[..., Any]]:
    """Replacements for `__enter__`/`__exit__` (and the async pair) of a class that is a context manager itself.

    The selecting argument is read as an attribute of the instance: the call of `__init__` is over by then.
    """
    replacements: dict[str, Callable[..., Any]] = {}
    running: dict[int, list[Entered]] = {}

    def begin(self: Any, chooser: BlockChooser, depth: int) -> Entered | None:
        entered = chooser.choose((self,), _InstanceArguments(self), depth + 1)
        if entered is not None:
            entered.open()
            running.setdefault(id(self), []).append(entered)
        return entered

    def finish(self: Any, exception: BaseException | None) -> None:
        stack = running.get(id(self))
        if stack:
            stack.pop().close(exception)
            if not stack:
                del running[id(self)]

    for enter_name, exit_name, is_async in (
        ("__enter__", "__exit__", False),
        ("__aenter__", "__aexit__", True),
    ):
        enter, leave = getattr(cls, enter_name, None), getattr(cls, exit_name, None)
        if enter is None or leave is None:
            continue
        chooser = chooser_for(enter)
        make = _async_pair if is_async else _sync_pair
        first, second = make(enter, leave, functools.partial(begin, chooser=chooser), finish)
        replacements[enter_name] = dress(first, enter)
        replacements[exit_name] = dress(second, leave)
    return replacements


def _sync_pair(enter: Any, leave: Any, begin: Any, finish: Any) -> tuple[Any, Any]:
    def __enter__(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered = begin(self, depth=2)
        try:
            return enter(self, *args, **kwargs)
        except BaseException as exception:
            if entered is not None:
                finish(self, exception)
            raise

    def __exit__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            swallowed = leave(self, *args, **kwargs)
        except BaseException as exception:
            finish(self, exception)
            raise
        finish(self, None if swallowed or len(args) < 2 else args[1])
        return swallowed

    return __enter__, __exit__


def _async_pair(enter: Any, leave: Any, begin: Any, finish: Any) -> tuple[Any, Any]:
    async def __aenter__(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered = begin(self, depth=2)
        try:
            return await enter(self, *args, **kwargs)
        except BaseException as exception:
            if entered is not None:
                finish(self, exception)
            raise

    async def __aexit__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            swallowed = await leave(self, *args, **kwargs)
        except BaseException as exception:
            finish(self, exception)
            raise
        finish(self, None if swallowed or len(args) < 2 else args[1])
        return swallowed

    return __aenter__, __aexit__


class _InstanceArguments(dict[str, Any]):
    """An instance's attributes, read as if they were keyword arguments."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return getattr(self._instance, name)
        except Exception:
            return default if default is not None else MISSING

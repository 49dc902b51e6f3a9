"""The `block` join point: the `with` block that a context-manager factory makes, picked by argument and caller.

One wrapper per factory serves every label. A label that no map names costs one dictionary look-up.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.values import MISSING, argument_getter, parameters_of
from autoinstr.notices import describe, say
from autoinstr.patch import compiling
from autoinstr.patch.binding import Binding, plain_label
from autoinstr.patch.callers import calling_frame, frame_inside
from autoinstr.patch.delegates import Delegate, stand_in
from autoinstr.patch.functions import dress
from autoinstr.patch.importlib_bootstrap import uncounted
from autoinstr.patch.targets import TargetRefused
from autoinstr.spans.opening import Opened, SpanPlan, close, innermost

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
        self._by_label: dict[str, tuple[BlockEntry, ...]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_no_chooser, ())  # see Entering.__reduce__

    def candidates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BlockEntry, ...]:
        """The entries that may claim this call, by its label. Never raises."""
        if self._label is None:
            return tuple(self._entries)
        label = self._label(args, kwargs)
        if type(label) is str:  # anything else may run the user's `__hash__` and `__eq__`
            found = self._by_label.get(label)
            if found is not None:
                return found
        try:
            label = plain_label(label)
            found = tuple(e for e in self._entries if e.selectors[0].accepts(label))
        except BaseException as error:  # its own `__class__` may raise anything
            if is_the_programs(error):
                raise
            return ()
        if type(label) is str and len(self._by_label) < _CACHE_LIMIT:
            self._by_label[label] = found
        return found

    def choose(self, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> Entered | None:
        """The entry of this call and its attributes, or None. Never raises."""
        try:
            found = self.candidates(args, kwargs)
            if not found:
                return None
            above = sys._getframe(depth)
            outside = calling_frame(above, self._module)
            for entry in found:
                binding, frame = entry.binding, outside
                if entry.inside and (frame := frame_inside(outside, above, self._module, entry.inside)) is None:
                    continue
                if len(entry.selectors) > (1 if self._label is not None else 0) and not binding.selects(args, kwargs):
                    continue
                if binding.has_conditions and not binding.accepts(args, kwargs, frame):
                    continue
                attributes = binding.at_start(args, kwargs, frame) if binding.has_start else None
                match = binding.match(args, kwargs, frame) if binding.has_match else None
                return Entered(entry.plan, attributes, args[0] if args else None, match)
        except BaseException as error:
            if is_the_programs(error):
                raise
            say(f"a block of {self._module} left out: {describe(error)}", once=f"block {self._module}")
        return None


def _no_chooser() -> BlockChooser:
    chooser = BlockChooser.__new__(BlockChooser)
    chooser._module, chooser._entries, chooser._label, chooser._by_label = "", [], None, {}
    return chooser


class Entered:
    """One block: the plan and attributes of its span, and its open spans: a shared manager may have several."""

    __slots__ = ("_instance", "_match", "_open", "attributes", "plan")

    def __init__(
        self,
        plan: SpanPlan,
        attributes: dict[str, Any] | None,
        instance: object = None,
        match: tuple[Any, ...] | None = None,
    ) -> None:
        self.plan = plan
        self.attributes = attributes
        self._instance = instance if plan.once_per_instance is not None else None
        self._match = match
        self._open: list[Opened] = []

    def again(self) -> Entered:
        return Entered(self.plan, self.attributes, self._instance, self._match)

    def open(self) -> Opened | None:
        opened = self.plan.open(self.attributes, loose=True, instance=self._instance, match=self._match)
        if opened is not None:
            self._open.append(opened)
        return opened

    def close(self, exception: BaseException | None) -> None:
        opened = innermost(self._open)
        if opened is not None:
            close(opened, exception)


def wrap_factory(factory: Callable[..., Any], chooser: BlockChooser) -> Callable[..., Any]:
    """A function that returns what `factory` returns; a chosen block also opens a span while it is entered."""
    candidates, choose = chooser.candidates, chooser.choose
    wrapper: Callable[..., Any]

    if inspect.isgeneratorfunction(factory) or inspect.isasyncgenfunction(factory):
        raise TargetRefused("it is a generator and no context manager (is @contextmanager missing?)")
    if inspect.iscoroutinefunction(factory):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            manager = await factory(*args, **kwargs)
            entered = choose(args, kwargs, 2)
            return manager if entered is None else traced(manager, entered)

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            manager = factory(*args, **kwargs)
            if (compiling.torch_is is not None and compiling.torch_is()) or not candidates(args, kwargs):
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
    try:
        if hasattr(kind, "__enter__") or hasattr(kind, "__aenter__"):
            return stand_in(_Manager, manager, entered)
        name = entered.plan.name
        what = f"block: what the function of {name} returns is a {kind.__qualname__} and no context manager"
        say(f"{what}, and has no span; with 'function' each call has one", once=f"no block {name}")
    except Exception as error:  # of a type whose kind can't be stood in for
        say(f"a block of {entered.plan.name} left out: {describe(error)}", once=f"block {entered.plan.name}")
    return manager


def _left_by(value: Any, swallowed: Any) -> BaseException | None:
    """The exception that leaves the block, if one does."""
    return value if isinstance(value, BaseException) and not swallowed else None


class _TracedGenerator(contextlib._GeneratorContextManager):  # type: ignore[type-arg]
    _autoinstr_entered: Entered

    @uncounted
    def __enter__(self) -> Any:
        entered = self._autoinstr_entered
        entered.open()
        try:
            return super().__enter__()
        except BaseException as exception:
            entered.close(exception)
            raise

    @uncounted
    def __exit__(self, typ: Any, value: Any, traceback: Any) -> bool | None:
        entered = self._autoinstr_entered
        try:
            swallowed = super().__exit__(typ, value, traceback)
            left_by = _left_by(value, swallowed)
        except BaseException as exception:
            entered.close(exception)
            raise
        entered.close(left_by)
        return swallowed

    def _recreate_cm(self) -> Any:  # used as a decorator: a fresh block for every call
        manager = super()._recreate_cm()
        manager._autoinstr_entered = self._autoinstr_entered.again()
        return manager


class _TracedAsyncGenerator(contextlib._AsyncGeneratorContextManager):  # type: ignore[type-arg]
    _autoinstr_entered: Entered

    @uncounted
    async def __aenter__(self) -> Any:
        entered = self._autoinstr_entered
        entered.open()
        try:
            return await super().__aenter__()
        except BaseException as exception:
            entered.close(exception)
            raise

    @uncounted
    async def __aexit__(self, typ: Any, value: Any, traceback: Any) -> bool | None:
        entered = self._autoinstr_entered
        try:
            swallowed = await super().__aexit__(typ, value, traceback)
            left_by = _left_by(value, swallowed)
        except BaseException as exception:
            entered.close(exception)
            raise
        entered.close(left_by)
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


@uncounted
def _enter(self: Any) -> Any:
    entered, manager = self._autoinstr_state, self._autoinstr_object
    entered.open()
    try:
        return manager.__enter__()
    except BaseException as exception:
        entered.close(exception)
        raise


@uncounted
def _exit(self: Any, typ: Any, value: Any, traceback: Any) -> Any:
    entered, manager = self._autoinstr_state, self._autoinstr_object
    try:
        swallowed = manager.__exit__(typ, value, traceback)
        left_by = _left_by(value, swallowed)
    except BaseException as exception:
        entered.close(exception)
        raise
    entered.close(left_by)
    return swallowed


@uncounted
async def _aenter(self: Any) -> Any:
    entered, manager = self._autoinstr_state, self._autoinstr_object
    entered.open()
    try:
        return await manager.__aenter__()
    except BaseException as exception:
        entered.close(exception)
        raise


@uncounted
async def _aexit(self: Any, typ: Any, value: Any, traceback: Any) -> Any:
    entered, manager = self._autoinstr_state, self._autoinstr_object
    try:
        swallowed = await manager.__aexit__(typ, value, traceback)
        left_by = _left_by(value, swallowed)
    except BaseException as exception:
        entered.close(exception)
        raise
    entered.close(left_by)
    return swallowed


@uncounted
def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    call = type(self._autoinstr_object).__call__
    if call in (contextlib.ContextDecorator.__call__, contextlib.AsyncContextDecorator.__call__):
        return call(self, *args, **kwargs)  # used as a decorator: it enters us, and so opens a span
    return self._autoinstr_object(*args, **kwargs)


def _recreate_cm(self: Any) -> Any:
    return stand_in(_Manager, self._autoinstr_object._recreate_cm(), self._autoinstr_state.again())


class _Manager(Delegate):
    """Stands before a context manager that may be shared; everything but entering and leaving goes through."""

    __slots__ = ()

    OPERATIONS: ClassVar[dict[str, Any]] = {
        "__enter__": _enter,
        "__exit__": _exit,
        "__aenter__": _aenter,
        "__aexit__": _aexit,
        "__call__": _call,
        "_recreate_cm": _recreate_cm,
    }


class _Running:
    """The open blocks of a class whose instances are the context managers, by instance."""

    def __init__(self) -> None:
        self._by_id: dict[int, list[Opened]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Running, ())  # see Entering.__reduce__

    def add(self, instance: object, opened: Opened) -> None:
        stack = self._by_id.setdefault(id(instance), [])
        # left behind by an instance that was never left, and whose id is used again
        stack[:] = [other for other in stack if other.span is not None]
        stack.append(opened)
        if len(self._by_id) > _CACHE_LIMIT:
            for key, others in list(self._by_id.items()):
                if all(other.span is None for other in others):
                    self._by_id.pop(key, None)

    def close(self, instance: object, exception: BaseException | None) -> None:
        stack = self._by_id.get(id(instance))
        if stack is None:
            return
        opened = innermost(stack)
        if not stack:
            self._by_id.pop(id(instance), None)
        if opened is not None:
            close(opened, exception)


def wrap_class_methods(cls: type, chooser_for: Callable[[Any], BlockChooser]) -> dict[str, Callable[..., Any]]:
    """Replacements for `__enter__`/`__exit__` (and the async pair) of a class that is a context manager itself.

    The selecting argument is read as an attribute of the instance: the call of `__init__` is over by then.
    """
    replacements: dict[str, Callable[..., Any]] = {}
    running = _Running()

    # plain functions all: dynamo takes a look at what a wrapper closes over, before it sees that it steps aside
    def begin_by(chooser: BlockChooser) -> Callable[..., bool]:
        def begin(self: Any, depth: int) -> bool:
            entered = chooser.choose((self,), _InstanceArguments(self), depth + 1)
            opened = entered.open() if entered is not None else None
            if opened is not None:
                running.add(self, opened)
            return opened is not None

        return begin

    def finish(self: Any, exception: BaseException | None) -> None:
        running.close(self, exception)

    for enter_name, exit_name, is_async in (
        ("__enter__", "__exit__", False),
        ("__aenter__", "__aexit__", True),
    ):
        enter, leave = getattr(cls, enter_name, None), getattr(cls, exit_name, None)
        if enter is None or leave is None:
            continue
        chooser = chooser_for(enter)
        make = _async_pair if is_async else _sync_pair
        first, second = make(enter, leave, begin_by(chooser), finish)
        replacements[enter_name] = dress(first, enter)
        replacements[exit_name] = dress(second, leave)
    return replacements


def _sync_pair(enter: Any, leave: Any, begin: Any, finish: Any) -> tuple[Any, Any]:
    def __enter__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling.torch_is is not None and compiling.torch_is():
            return enter(self, *args, **kwargs)
        begun = begin(self, depth=2)
        try:
            return enter(self, *args, **kwargs)
        except BaseException as exception:
            if begun:
                finish(self, exception)
            raise

    def __exit__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling.torch_is is not None and compiling.torch_is():
            return leave(self, *args, **kwargs)
        try:
            swallowed = leave(self, *args, **kwargs)
            left_by = _left_by(args[1] if len(args) > 1 else None, swallowed)
        except BaseException as exception:
            finish(self, exception)
            raise
        finish(self, left_by)
        return swallowed

    return __enter__, __exit__


def _async_pair(enter: Any, leave: Any, begin: Any, finish: Any) -> tuple[Any, Any]:
    async def __aenter__(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = begin(self, depth=2)
        try:
            return await enter(self, *args, **kwargs)
        except BaseException as exception:
            if begun:
                finish(self, exception)
            raise

    async def __aexit__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            swallowed = await leave(self, *args, **kwargs)
            left_by = _left_by(args[1] if len(args) > 1 else None, swallowed)
        except BaseException as exception:
            finish(self, exception)
            raise
        finish(self, left_by)
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
        except BaseException as error:  # a property may raise anything, SystemExit too
            if is_the_programs(error):
                raise
            return default if default is not None else MISSING

"""The `each` join point: a span for every item that a loop pulls, from the item to the next pull.

For loops that have no step function: the span is the loop's body. The target is what makes the iterator: a
generator function, or a function or `__iter__` that returns one. An iterable that is no iterator (a list, a
DataLoader) goes through as it is, since it may be used for more than one loop, and for more than loops: name
its class's `__iter__` instead.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, ClassVar

from autoinstr.notices import describe, say
from autoinstr.patch.delegates import Delegate, stand_in
from autoinstr.patch.functions import Entering, dress, first_step
from autoinstr.patch.importlib_bootstrap import uncounted
from autoinstr.spans.opening import Opened, close

Enter = Callable[..., "Opened | None"]


def wrap_each(function: Callable[..., Any], enter: Entering) -> Callable[..., Any]:
    """`function`, whose result opens a span for every item while it is iterated."""
    if inspect.isgeneratorfunction(function):
        return dress(_generator(function, enter), function)
    if inspect.isasyncgenfunction(function):
        return dress(_async_generator(function, enter), function)
    if inspect.iscoroutinefunction(function):

        async def awaits(*args: Any, **kwargs: Any) -> Any:
            body = function(*args, **kwargs)
            if not enter.reads_arguments:
                args, kwargs = (), {}
            return _each(await body, enter, args, kwargs, function)

        return dress(awaits, function)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if enter.reads_arguments:
            return _each(function(*args, **kwargs), enter, args, kwargs, function)
        held: list[Any] = [kwargs, args]
        del args, kwargs
        return _each(function(*held.pop(), **held.pop()), enter, (), {}, function)

    return dress(wrapper, function)


def _each(result: Any, enter: Entering, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> Any:
    kind = type(result)

    def enter_call(_args: Any, _kwargs: Any, depth: int, loose: bool) -> Opened | None:
        return enter(args, kwargs, depth + 1, loose)

    try:
        if kind in (types.GeneratorType, types.AsyncGeneratorType):
            return stand_in(_Generator, result, _Loop(enter_call))
        if hasattr(kind, "__next__") or hasattr(kind, "__anext__"):
            return stand_in(_Iterator, result, _Loop(enter_call))
        if hasattr(kind, "__iter__") or hasattr(kind, "__aiter__"):
            name = f"{function.__module__}:{getattr(function, '__qualname__', '')}"
            say(f"each: {name} returns a {kind.__qualname__}, which is no iterator, and has no spans; {_instead(kind)}")
    except Exception as error:  # of a kind that can't be stood in for
        say(f"each: a {kind.__qualname__} has no spans: {describe(error)}", once=f"each {kind.__qualname__}")
    return result


def _instead(kind: type) -> str:
    """What to name in place of a function that returns such a thing."""
    for name in ("__iter__", "__aiter__"):
        for owner in kind.__mro__:
            if isinstance(vars(owner).get(name), types.FunctionType):
                return f"name {owner.__module__}:{owner.__qualname__}.{name}"
    return "name a generator that gives the items, or with 'function' what the loop calls for each"


def _thrown_into(exception: BaseException) -> BaseException | None:
    """What ends an item's span when it comes in where the item went out: a loop that is left throws GeneratorExit."""
    return None if isinstance(exception, GeneratorExit) else exception


@uncounted
def _generator(function: Callable[..., Any], enter: Entering) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        body = function(*args, **kwargs)
        if not enter.reads_arguments:
            args, kwargs = (), {}  # else they live as long as the loop
        # driven by hand, and nothing that passes through left in a local: as in functions._generator
        passing: list[Any] = [None]
        go = getattr(body, "send", None) or _pull(iter(body))
        while True:
            try:
                passing.append(go(passing.pop()))
            except StopIteration as stop:
                return stop.value
            opened = enter(args, kwargs, 2, True)
            try:
                passing.append((yield passing.pop()))
                go = getattr(body, "send", go)
            except BaseException as thrown:
                if opened is not None:
                    close(opened, _thrown_into(thrown))
                if not hasattr(body, "throw"):
                    raise
                passing.append(thrown)
                go = body.throw
            else:
                if opened is not None:
                    close(opened)

    return wrapper


def _pull(iterator: Any) -> Callable[[Any], Any]:
    return lambda _: next(iterator)


@uncounted
def _async_generator(function: Callable[..., Any], enter: Entering) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = function(*args, **kwargs)
        if not enter.reads_arguments:
            args, kwargs = (), {}
        passing: list[Any] = []
        step = first_step(body)
        while True:
            try:
                passing.append(await step)
            except StopAsyncIteration:
                return
            finally:
                step = None
            opened = enter(args, kwargs, 2, True)
            try:
                passing.append((yield passing.pop()))
            except BaseException as thrown:
                if opened is not None:
                    close(opened, _thrown_into(thrown))
                step = body.athrow(thrown)
            else:
                if opened is not None:
                    close(opened)
                step = body.asend(passing.pop())

    return wrapper


class _Loop:
    """One loop over an iterator: how an item's span is opened, and the one that is open."""

    __slots__ = ("enter", "opened")

    def __init__(self, enter: Enter) -> None:
        self.enter = enter
        self.opened: Opened | None = None

    def finish(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            close(opened)


def _iter(self: Any) -> Any:
    got = self._autoinstr_object.__iter__()
    return self if got is self._autoinstr_object else got


def _aiter(self: Any) -> Any:
    got = self._autoinstr_object.__aiter__()
    return self if got is self._autoinstr_object else got


@uncounted
def _next(self: Any) -> Any:
    loop = self._autoinstr_state
    loop.finish()
    item = self._autoinstr_object.__next__()
    loop.opened = loop.enter((), {}, 2, True)
    return item


@uncounted
async def _anext(self: Any) -> Any:
    loop = self._autoinstr_state
    loop.finish()
    item = await self._autoinstr_object.__anext__()
    loop.opened = loop.enter((), {}, 2, True)
    return item


def _going_on(name: str) -> Any:
    """A generator's `send`, `throw` or `close`: it goes on, and an item of it opens a span as after `next`."""

    @uncounted
    def go_on(self: Any, *values: Any) -> Any:
        loop = self._autoinstr_state
        loop.finish()
        item = getattr(self._autoinstr_object, name)(*values)
        if name != "close":
            loop.opened = loop.enter((), {}, 2, True)
        return item

    return go_on


def _going_on_later(name: str) -> Any:
    """The same of an async generator."""

    @uncounted
    async def go_on(self: Any, *values: Any) -> Any:
        loop = self._autoinstr_state
        loop.finish()
        item = await getattr(self._autoinstr_object, name)(*values)
        if name != "aclose":
            loop.opened = loop.enter((), {}, 2, True)
        return item

    return go_on


class _Iterator(Delegate):
    """Stands before an iterator that a function returns; everything but iterating goes through."""

    __slots__ = ()

    OPERATIONS: ClassVar[dict[str, Any]] = {
        "__iter__": _iter,
        "__aiter__": _aiter,
        "__next__": _next,
        "__anext__": _anext,
    }

    def __del__(self) -> None:
        self._autoinstr_state.finish()  # the loop was left by break


class _Generator(_Iterator):
    """The same of a generator, which may be kept by its maker for the next loop, and has more ways to go on."""

    __slots__ = ()

    OPERATIONS: ClassVar[dict[str, Any]] = {
        **_Iterator.OPERATIONS,
        **{name: _going_on(name) for name in ("send", "throw", "close")},
        **{name: _going_on_later(name) for name in ("asend", "athrow", "aclose")},
    }

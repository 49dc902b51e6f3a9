"""The `function` join point: one wrapper per kind of callable, chosen when it is patched.

Wrappers are plain functions made by `functools.wraps`, not proxies: they pickle by name, are found through
`method.__func__`, and show the original's signature. A coroutine or generator is driven step by step, with
its span current only while a step runs: suspended, it leaves nothing behind in its caller.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from opentelemetry import context as context_api
from opentelemetry.context import Context

from autoinstr.notices import say
from autoinstr.patch.binding import Binding
from autoinstr.patch.callers import calling_frame, is_inside
from autoinstr.spans.opening import Opened, SpanPlan, attach, close, detach

_ours: weakref.WeakSet[Any] = weakref.WeakSet()


def is_ours(function: Any) -> bool:
    """Whether `function` is a wrapper that we installed. Kept beside it: a mark on it would be copied by `wraps`."""
    try:
        return function in _ours
    except TypeError:
        return False


class Entering:
    """Opens the span of one entry for a call: selectors, caller and attributes first, then the span."""

    __slots__ = ("_binding", "_inside", "_module", "_plan", "_simple", "_start_from")

    def __init__(
        self,
        plan: SpanPlan,
        binding: Binding,
        inside: tuple[str, ...],
        module: str,
        start_from: Callable[[], int | None] | None,
    ) -> None:
        self._plan = plan
        self._binding = binding
        self._inside = inside
        self._module = module
        self._start_from = start_from
        self._simple = not (binding.has_selectors or binding.needs_caller or binding.has_start or start_from)
        self._simple = self._simple and plan.once_per_instance is None

    def __reduce__(self) -> tuple[Any, ...]:
        # a patched function that is pickled by value takes a switched-off copy of us along, and no locks
        return (_never_entering, ())

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 2, loose: bool = False
    ) -> Opened | None:
        """`depth` is the number of frames between this call and the caller of the patched function. Never raises."""
        plan = self._plan
        if self._simple:
            return plan.open(None, None, loose=loose)
        if plan.off:
            return None
        try:
            binding = self._binding
            if binding.has_selectors and not binding.selects(args, kwargs):
                return None
            frame = None
            if binding.needs_caller:
                frame = calling_frame(sys._getframe(depth), self._module)
                if self._inside and not is_inside(frame, self._inside):
                    return None
            attributes = binding.at_start(args, kwargs, frame) if binding.has_start else None
            start = self._start_from() if self._start_from is not None else None
        except Exception as error:
            say(
                f"span {self._plan.name} left out: {type(error).__name__}: {error}",
                once=f"enter {self._plan.name}",
            )
            return None
        return plan.open(attributes, start, loose=loose, instance=args[0] if args else None)


def _never_entering() -> Callable[..., None]:
    return _enter_nothing


def _enter_nothing(*_: Any, **__: Any) -> None:
    return None


def wrap_function(function: Callable[..., Any], enter: Entering, binding: Binding) -> Callable[..., Any]:
    """A function that does what `function` does, in a span."""
    if inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, enter, binding)
    elif inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, enter)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, enter, binding)
    else:
        wrapper = _plain(function, enter, binding)
    return dress(wrapper, function)


def dress(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Give `wrapper` the looks of `original`, and remember that it is ours."""
    functools.update_wrapper(wrapper, original)
    try:
        # `inspect.getfullargspec` does not follow `__wrapped__`, and some libraries decide by it
        wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        pass
    _ours.add(wrapper)
    return wrapper


def _plain(function: Callable[..., Any], enter: Entering, binding: Binding) -> Callable[..., Any]:
    at_end = binding.at_end if binding.has_end else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        opened = enter(args, kwargs)
        if opened is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as exception:
            close(opened, exception)
            raise
        close(opened, None, at_end(result) if at_end is not None else None)
        return result

    return wrapper


def _coroutine(function: Callable[..., Any], enter: Entering, binding: Binding) -> Callable[..., Any]:
    at_end = binding.at_end if binding.has_end else None

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        opened = enter(args, kwargs)
        if opened is None:
            return await function(*args, **kwargs)
        try:
            result = await _Steps(function(*args, **kwargs), opened.leave())
        except BaseException as exception:
            close(opened, exception)
            raise
        close(opened, None, at_end(result) if at_end is not None else None)
        return result

    return wrapper


def _generator(function: Callable[..., Any], enter: Entering, binding: Binding) -> Callable[..., Any]:
    at_end = binding.at_end if binding.has_end else None

    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        opened = enter(args, kwargs)
        if opened is None:
            return (yield from function(*args, **kwargs))
        try:
            result = yield from _Steps(function(*args, **kwargs), opened.leave())
        except BaseException as exception:
            close(opened, exception)
            raise
        close(opened, None, at_end(result) if at_end is not None else None)
        return result

    return wrapper


class _Steps:
    """Drives a coroutine or generator, with `context` current while it runs and the caller's own while not.

    The context is kept from step to step: what the body attached (a span of the user's own) is there again
    when it goes on.
    """

    __slots__ = ("_body", "context")

    def __init__(self, body: Any, context: Context) -> None:
        self._body = body
        self.context = context

    def __await__(self) -> _Steps:
        return self

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        return self._step(self._body.send, None)

    def send(self, value: Any) -> Any:
        return self._step(self._body.send, value)

    def throw(self, *exception: Any) -> Any:
        return self._step(self._body.throw, *exception)

    def close(self) -> None:
        self._step(self._body.close)

    def _step(self, go: Callable[..., Any], *values: Any) -> Any:
        token = attach(self.context)
        try:
            return go(*values)
        finally:
            self.context = context_api.get_current()
            detach(token)


def _async_generator(function: Callable[..., Any], enter: Entering) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        opened = enter(args, kwargs)
        # off for this call: it is driven all the same, in whatever context its consumer has
        context = opened.leave() if opened is not None else None
        try:
            body = function(*args, **kwargs)
            step: Any = body.__anext__()
            while True:
                running = step if context is None else _Steps(step.__await__(), context)
                try:
                    item = await running
                except StopAsyncIteration:
                    break
                finally:
                    if context is not None:
                        context = running.context
                try:
                    sent = yield item
                except GeneratorExit:
                    closing = body.aclose()
                    await (closing if context is None else _Steps(closing.__await__(), context))
                    raise
                except BaseException as thrown:
                    step = body.athrow(thrown)
                else:
                    step = body.asend(sent)
        except BaseException as exception:
            if opened is not None:
                close(opened, exception)
            raise
        if opened is not None:
            close(opened)

    return wrapper


class StartClock:
    """The time of the latest call of an earlier join point: where the next span of an entry starts."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: int | None = None

    def mark(self) -> None:
        self._at = time.time_ns()

    def read(self) -> int | None:
        """The time in nanoseconds since the epoch, once: the span after the next needs a new mark."""
        at, self._at = self._at, None
        return at


def wrap_clock(function: Callable[..., Any], clock: StartClock, binding: Binding) -> Callable[..., Any]:
    """`function`, noting when it was called."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not binding.has_selectors or binding.selects(args, kwargs):
            clock.mark()
        return function(*args, **kwargs)

    return dress(wrapper, function)

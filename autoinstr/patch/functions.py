"""The `function` join point: one wrapper per kind of callable, chosen when it is patched.

Wrappers are plain functions made by `functools.wraps`, not proxies: they pickle by name, are found through
`method.__func__`, and show the original's signature. A coroutine or generator is driven step by step, with
its span current only while a step runs: suspended, it leaves nothing behind in its caller.

Two things stay different, and can't be helped. A coroutine or generator function must be one for `inspect`, so its
wrapper runs nothing before the first step: wrong arguments raise their TypeError there, not at the call. And a wrapper
has a frame: `sys._getframe(1)` in the function is the wrapper's. Warnings and log records pass over it
(importlib_bootstrap/).
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from opentelemetry.context import Context

from autoinstr.interruptions import is_the_programs
from autoinstr.notices import describe, say
from autoinstr.patch import compiling
from autoinstr.patch.binding import Binding
from autoinstr.patch.callers import calling_frame, frame_inside
from autoinstr.patch.importlib_bootstrap import uncounted, uncounted_code
from autoinstr.spans.opening import Opened, SpanPlan, attach, close, detach, get_current

_ours: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Our wrappers, with what each was put around. Kept beside them: a mark on them would be copied by `wraps`."""


def is_ours(function: Any) -> bool:
    """Whether `function` is a wrapper that we installed."""
    # ours are all plain functions, and anything else may have a `__hash__` of its own
    return type(function) is types.FunctionType and function in _ours


def beneath(function: Any) -> Any:
    """What `function`, a wrapper of ours or of somebody else's, was put around. Raises whatever a stranger's may."""
    return _ours[function] if is_ours(function) else function.__wrapped__


class Entering:
    """Opens the span of one entry for a call: selectors, caller and attributes first, then the span."""

    __slots__ = ("_binding", "_inside", "_module", "_plan", "_simple", "_start_from", "reads_arguments")

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
        self._simple = self._simple and not (binding.has_conditions or binding.has_match)
        self.reads_arguments = not self._simple

    def __reduce__(self) -> tuple[Any, ...]:
        # a patched function that is pickled by value takes a switched-off copy of us along, and no locks
        return (_never_entering, ())

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 2, loose: bool = False
    ) -> Opened | None:
        """`depth` is the number of frames between this call and the caller of the patched function. Never raises."""
        if compiling.torch_is is not None and compiling.torch_is():
            return None
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
                above = sys._getframe(depth)
                frame = calling_frame(above, self._module)
                if self._inside and (frame := frame_inside(frame, above, self._module, self._inside)) is None:
                    return None
            if binding.has_conditions and not binding.accepts(args, kwargs, frame):
                return None
            attributes = binding.at_start(args, kwargs, frame) if binding.has_start else None
            start = self._start_from() if self._start_from is not None else None
            match = binding.match(args, kwargs, frame) if binding.has_match else None
        except BaseException as error:  # an argument's own `__class__` may raise anything
            if is_the_programs(error):
                raise
            say(f"span {self._plan.name} left out: {describe(error)}", once=f"enter {self._plan.name}")
            return None
        return plan.open(attributes, start, loose=loose, instance=args[0] if args else None, match=match)


def _never_entering() -> Callable[..., None]:
    return _enter_nothing


def _enter_nothing(*_: Any, **__: Any) -> None:
    return None


_enter_nothing.reads_arguments = False  # type: ignore[attr-defined]


Enter = Callable[[tuple[Any, ...], dict[str, Any]], "Opened | None"]
Beside = Callable[[tuple[Any, ...], dict[str, Any]], None]
AtEnd = Callable[..., "dict[str, Any] | None"]
"""Attributes of what the function returned, or of None and what it raised."""


# Wrappers move the arguments out of their locals as they call: what a function lets go of (`del batch`, `x = x.half()`)
# is freed while it runs, as without us, and what it raises does not hold them. In Python 3.11 a call that spreads a
# tuple holds it all the same; from 3.12 on it does not.


def wrap_function(function: Callable[..., Any], enter: Enter, binding: Binding) -> Callable[..., Any]:
    """A function that does what `function` does, in a span."""
    at_end = binding.at_end if binding.has_end else None
    make = _maker(function)
    if make is None:
        make = _plain if _maker(_innermost(function)) is None else _decorated
    return dress(make(function, enter, at_end), function)


def wrap_beside(
    function: Callable[..., Any], before: Beside | None = None, after: Beside | None = None
) -> Callable[..., Any]:
    """A function that does what `function` does, calling `before` as it begins and `after` when it is over.

    They get the arguments and must not raise. `before` is called straight from the wrapper, so that its
    caller's caller is whoever called the function.
    """
    make = _maker(function)
    if make is not None:
        return dress(make(function, before or _enter_nothing, None, after), function)

    if after is None:
        starts: Beside = before or _enter_nothing

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if compiling.torch_is is None or not compiling.torch_is():
                starts(args, kwargs)
            held: list[Any] = [kwargs, args]
            del args, kwargs
            return function(*held.pop(), **held.pop())

    else:
        ends = after

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if compiling.torch_is is not None and compiling.torch_is():
                return function(*args, **kwargs)
            if before is not None:
                before(args, kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                ends(args, kwargs)

    return dress(wrapper, function)


def dress(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Give `wrapper` the looks of `original`, and remember that it is ours."""
    functools.update_wrapper(wrapper, original)
    _ours[wrapper] = original
    # `inspect.getfullargspec` does not follow `__wrapped__`, and some libraries decide by it
    while _is_stand_in(original):
        original = original.__wrapped__  # type: ignore[attr-defined]
    # what a decorator shows there (torch's `no_grad`, `lru_cache`) is called to go past it
    wrapper.__wrapped__ = _shown_as_wrapped(original)  # type: ignore[attr-defined]
    code = uncounted_code(wrapper.__code__)
    names = _decorator_parameters(original)
    wrapper.__code__ = code if names is None else code.replace(co_varnames=names + code.co_varnames[2:])
    if names is None:
        try:
            wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        except Exception:  # none to be had, or annotations that can't be evaluated yet
            pass
    return wrapper


def _shown_as_wrapped(original: Any) -> Any:
    try:
        inspect.getattr_static(original, "__wrapped__")  # an object may answer to every name
        return original.__wrapped__
    except Exception:
        return original


def _is_stand_in(function: Any) -> bool:
    """Whether it is the function that targets.py makes for what is inherited, and so no decorator of the user's."""
    if type(function) is not types.FunctionType or not hasattr(function, "__wrapped__"):
        return False
    return function.__globals__.get("__name__") in (__name__, "autoinstr.patch.targets") and not is_ours(function)


def _decorator_parameters(original: Any) -> tuple[str, ...] | None:
    """The parameter names of somebody's `(*args, **kwargs)` decorator: ours has the same shape, under other names.

    A decorator of another shape shows `getfullargspec` the parameters of what it decorates.
    """
    if type(original) is not types.FunctionType or not hasattr(original, "__wrapped__"):
        return None
    code = original.__code__
    both = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if code.co_argcount or code.co_kwonlyargcount or code.co_flags & both != both:
        return None
    return code.co_varnames[:2] if not hasattr(original, "__signature__") else None


def _maker(function: Any) -> Callable[..., Callable[..., Any]] | None:
    """The maker of wrappers for a function whose call only makes something that runs later; None for others."""
    if inspect.iscoroutinefunction(function):
        return _coroutine
    if inspect.isasyncgenfunction(function):
        return _async_generator
    if inspect.isgeneratorfunction(function):
        return _awaitable_generator if is_awaitable_generator(function) else _generator
    return None


def is_awaitable_generator(function: Any) -> bool:
    """Whether `types.coroutine` has let the generators of a generator function be awaited."""
    return _makes_awaitables(getattr(function, "__code__", None))


def _makes_awaitables(code: Any) -> bool:
    return bool(getattr(code, "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE)


def _innermost(function: Any) -> Any:
    try:
        return inspect.unwrap(function)
    except Exception:  # it wraps itself, or is an object that answers to every name
        return function


def _plain(function: Callable[..., Any], enter: Enter, at_end: AtEnd | None) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        opened = enter(args, kwargs)
        held: list[Any] = [kwargs, args]
        del args, kwargs
        if opened is None:
            return function(*held.pop(), **held.pop())
        try:
            result = function(*held.pop(), **held.pop())
            attributes = at_end(result) if at_end is not None else None
        except BaseException as exception:
            close(opened, exception, at_end(None, exception) if at_end is not None else None)
            raise
        close(opened, None, attributes)
        return result

    return wrapper


def _decorated(function: Callable[..., Any], enter: Enter, at_end: AtEnd | None) -> Callable[..., Any]:
    """For a plain function that somebody put around a coroutine or generator function.

    What it returns is looked at: a coroutine or generator is driven in the span, which ends when it does.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        opened = enter(args, kwargs)
        held: list[Any] = [kwargs, args]
        del args, kwargs
        if opened is None:
            return function(*held.pop(), **held.pop())
        try:
            result = function(*held.pop(), **held.pop())
            # one that somebody else holds as well goes on when this call's holder is done with it
            drives = type(result) in _BY_RESULT and _references(result) == _OF_A_LOCAL and _is_new(result)
            attributes = at_end(result) if at_end is not None and not drives else None
        except BaseException as exception:
            close(opened, exception, at_end(None, exception) if at_end is not None else None)
            raise
        if drives:
            return _driven(result, opened, at_end)
        close(opened, None, attributes)
        return result

    return wrapper


def _driven(body: Any, opened: Opened, at_end: AtEnd | None) -> Any:
    """A coroutine or generator that drives `body`, one that has not begun, in the open span."""
    opened.leave()
    make = _BY_RESULT[type(body)]
    if make is _generator and _makes_awaitables(body.gi_code):
        make = _awaitable_generator
    driven = make(lambda: body, lambda args, kwargs: opened, at_end)()
    driven.__name__, driven.__qualname__ = body.__name__, body.__qualname__
    weakref.finalize(driven, _dropped, body, opened).atexit = False
    return driven


def _dropped(body: Any, opened: Opened) -> None:
    """What drives `body` is gone. If it never began, `body` must not say that it was never awaited: that one does."""
    close(opened)
    if type(body) is types.CoroutineType and _is_new(body):
        body.close()


def _is_new(body: Any) -> bool:
    """Whether nothing of a coroutine or generator has run."""
    kind = type(body)
    if kind is types.CoroutineType:
        return inspect.getcoroutinestate(body) == inspect.CORO_CREATED
    # nothing but a loop of events begins an async generator, and none has had it
    return kind is types.AsyncGeneratorType or inspect.getgeneratorstate(body) == inspect.GEN_CREATED


def _references(thing: Any) -> int:
    return sys.getrefcount(thing)


def _references_of_a_local() -> int:
    local = object()
    return _references(local)


_OF_A_LOCAL = _references_of_a_local()
"""How many references something has that a local variable holds, and nothing else."""


@uncounted
def _coroutine(
    function: Callable[..., Any], enter: Enter, at_end: AtEnd | None, after: Beside | None = None
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        opened = enter(args, kwargs)
        if opened is None:
            try:
                body = function(*args, **kwargs)
                if after is None:
                    del args, kwargs
                return await body
            finally:
                if after is not None:
                    after(args, kwargs)
        try:
            steps = _Steps(function(*args, **kwargs), opened.leave())
            del args, kwargs  # what the body lets go of is freed while it runs
            result = await steps
            attributes = at_end(result) if at_end is not None else None
        except BaseException as exception:
            close(opened, exception, at_end(None, exception) if at_end is not None else None)
            raise
        close(opened, None, attributes)
        return result

    return wrapper


class _Steps:
    """Drives a coroutine, with `context` current while it runs and the caller's own while it does not.

    The context is kept from step to step: what the body attached (a span of the user's own) is there again
    when it goes on.
    """

    __slots__ = ("_body", "_send", "context")

    def __init__(self, body: Any, context: Context) -> None:
        self._body = body = body if hasattr(body, "send") else body.__await__()
        self._send: Callable[[Any], Any] = getattr(body, "send", None) or (lambda _: next(body))
        self.context = context

    def __await__(self) -> _Steps:
        return self

    def __iter__(self) -> _Steps:
        return self

    @uncounted
    def __next__(self) -> Any:
        token = attach(self.context)
        try:
            return self._send(None)
        finally:
            self.context = _suspend(token)

    @uncounted
    def send(self, value: Any) -> Any:
        return self._step(self._send, value)

    @uncounted
    def throw(self, *exception: Any) -> Any:
        return self._step(self._body.throw, *exception)

    @uncounted
    def close(self) -> None:
        self._step(self._body.close)

    @uncounted
    def _step(self, go: Callable[..., Any], *values: Any) -> Any:
        token = attach(self.context)
        try:
            return go(*values)
        finally:
            self.context = _suspend(token)


def _resume(context: Context) -> Any:
    return attach(context)


def _suspend(token: Any) -> Context:
    """What is current as a step ends is so again in the next; until then, what was before the step."""
    context = get_current()
    detach(token)
    return context


# A generator is driven by hand: `yield from` would answer a thrown GeneratorExit by closing the body, which then
# could not swallow it. What passes through is never left in a local: it would live until the next item is asked for.


@uncounted
def _generator(
    function: Callable[..., Any], enter: Enter, at_end: AtEnd | None, after: Beside | None = None
) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        opened = enter(args, kwargs)
        context = opened.leave() if opened is not None else None
        try:
            body = function(*args, **kwargs)
            if after is None:
                del args, kwargs  # what the body lets go of is freed while it runs
            go: Any = getattr(body, "send", None)
            passing: list[Any] = [None]
            result = None
            if go is None:  # somebody's decorator returns another kind of iterable
                yield from body
            while go is not None:
                token = _resume(context) if context is not None else None
                try:
                    passing.append(go(passing.pop()))
                except StopIteration as stop:
                    result = stop.value
                    break
                finally:
                    if context is not None:
                        context = _suspend(token)
                try:
                    passing.append((yield passing.pop()))
                    go = body.send
                except BaseException as thrown:
                    passing.append(thrown)
                    go = body.throw
            attributes = at_end(result) if at_end is not None else None
        except BaseException as exception:
            if opened is not None:
                close(opened, exception, at_end(None, exception) if at_end is not None else None)
            raise
        finally:
            if after is not None:
                after(args, kwargs)
        if opened is not None:
            close(opened, None, attributes)
        return result

    return wrapper


def _awaitable_generator(
    function: Callable[..., Any], enter: Enter, at_end: AtEnd | None, after: Beside | None = None
) -> Callable[..., Any]:
    return types.coroutine(_generator(function, enter, at_end, after))


@uncounted
def _async_generator(
    function: Callable[..., Any], enter: Enter, at_end: AtEnd | None = None, after: Beside | None = None
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        opened = enter(args, kwargs)
        # off for this call: it is driven all the same, in whatever context its consumer has
        context = opened.leave() if opened is not None else None
        passing: list[Any] = []
        try:
            body = function(*args, **kwargs)
            if after is None:
                del args, kwargs
            step: Any = first_step(body)
            while True:
                running = step if context is None else _Steps(step.__await__(), context)
                try:
                    passing.append(await running)
                except StopAsyncIteration:
                    break
                finally:
                    if context is not None:
                        context = running.context
                    step = running = None
                try:
                    passing.append((yield passing.pop()))
                    step = body.asend(passing.pop())
                except BaseException as thrown:
                    step = body.athrow(thrown)
        except BaseException as exception:
            if opened is not None:
                close(opened, exception, at_end(None, exception) if at_end is not None else None)
            raise
        finally:
            if after is not None:
                after(args, kwargs)
        if opened is not None:
            close(opened, None, at_end(None) if at_end is not None else None)

    return wrapper


def relayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """An async generator function that passes on all there is to the async generator that `function` returns."""
    return _async_generator(function, _enter_nothing)


def first_step(body: Any) -> Any:
    """The first `__anext__` of an async generator, which the event loop does not get to know.

    The loop closes every one that it knows; this one is closed by the wrapper around it, and only by that.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return body.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


_BY_RESULT: dict[type, Callable[..., Callable[..., Any]]] = {
    types.CoroutineType: _coroutine,
    types.GeneratorType: _generator,
    types.AsyncGeneratorType: _async_generator,
}


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

    def mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not binding.has_selectors or binding.selects(args, kwargs):
            clock.mark()

    return wrap_beside(function, before=mark)

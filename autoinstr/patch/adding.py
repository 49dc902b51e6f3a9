"""The `attributes_from` join point: a function that opens no span, and whose calls add to one that is open."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from autoinstr.patch import functions, targets
from autoinstr.patch.binding import Binding


def wrap_adding(function: Callable[..., Any], enter: functions.Entering, binding: Binding) -> Callable[..., Any]:
    """A function that does what `function` does; the plan of `enter` is an `AddingPlan`.

    Raises:
        TargetRefused: for a generator that is asked for what it returns.
    """
    if not binding.has_end:

        def before(args: tuple[Any, ...], kwargs: Any) -> None:
            enter(args, kwargs, depth=3)

        return functions.wrap_beside(function, before=before)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise targets.TargetRefused("it is a generator, of which only the arguments can be read")
    make = _coroutine if inspect.iscoroutinefunction(function) else _plain
    return functions.dress(make(function, enter, binding.at_end), function)


def _plain(function: Callable[..., Any], enter: functions.Entering, at_end: functions.AtEnd) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        addition: Any = enter(args, kwargs)
        held: list[Any] = [kwargs, args]
        del args, kwargs
        if addition is None:
            return function(*held.pop(), **held.pop())
        try:
            result = function(*held.pop(), **held.pop())
        except BaseException as exception:
            addition.add(at_end(None, exception))
            raise
        addition.add(at_end(result))
        return result

    return wrapper


def _coroutine(function: Callable[..., Any], enter: functions.Entering, at_end: functions.AtEnd) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        addition: Any = enter(args, kwargs)
        if addition is None:
            body = function(*args, **kwargs)
            del args, kwargs
            return await body
        try:
            body = function(*args, **kwargs)
            del args, kwargs  # what the body lets go of is freed while it runs
            result = await body
        except BaseException as exception:
            addition.add(at_end(None, exception))
            raise
        addition.add(at_end(result))
        return result

    return wrapper

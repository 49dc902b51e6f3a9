"""The `each` join point: a span for every item that a loop pulls, from the item to the next pull.

For loops that have no step function: the span is the loop's body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from autoinstr.patch.functions import Entering, dress
from autoinstr.spans.opening import Opened, close


def wrap_each(function: Callable[..., Any], enter: Entering) -> Callable[..., Any]:
    """`function`, whose result opens a span for every item while it is iterated."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if hasattr(type(result), "__anext__"):
            return _AsyncEach(result, enter, args, kwargs)
        if hasattr(type(result), "__next__"):
            return _Each(result, enter, args, kwargs)
        return result

    return dress(wrapper, function)


class _Items:
    """What both kinds share: everything but iterating goes through to the iterator."""

    def __init__(self, iterator: Any, enter: Entering, args: Any, kwargs: Any) -> None:
        self._autoinstr_iterator = iterator
        self._autoinstr_enter = enter
        self._autoinstr_call = (args, kwargs)
        self._autoinstr_opened: Opened | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_autoinstr_iterator"], name)

    def _autoinstr_finish(self, exception: BaseException | None = None) -> None:
        opened, self._autoinstr_opened = self._autoinstr_opened, None
        if opened is not None:
            close(opened, exception)

    def _autoinstr_begin(self) -> None:
        args, kwargs = self._autoinstr_call
        self._autoinstr_opened = self._autoinstr_enter(args, kwargs, 3, loose=True)


class _Each(_Items):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._autoinstr_finish()
        item = next(self._autoinstr_iterator)
        self._autoinstr_begin()
        return item

    def close(self) -> None:
        self._autoinstr_finish()
        close_it = getattr(self._autoinstr_iterator, "close", None)
        if close_it is not None:
            close_it()

    def __del__(self) -> None:
        self._autoinstr_finish()  # the loop was left by break


class _AsyncEach(_Items):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._autoinstr_finish()
        item = await self._autoinstr_iterator.__anext__()
        self._autoinstr_begin()
        return item

    async def aclose(self) -> None:
        self._autoinstr_finish()
        close_it = getattr(self._autoinstr_iterator, "aclose", None)
        if close_it is not None:
            await close_it()

    def __del__(self) -> None:
        self._autoinstr_finish()

"""The `between` join point: one function begins the span, another ends it.

Pairs are told apart by the instance that the two methods share, by the values of the selecting arguments and
by what the map's `match` reads. A second begin ends the first; an end without a begin is nothing; what never
ends is ended by the span that holds it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from autoinstr.maps.model import SpanEntry
from autoinstr.maps.values import MISSING, ValuePath, argument_getter, parameters_of
from autoinstr.notices import say
from autoinstr.patch.binding import Binding
from autoinstr.patch.callers import calling_frame, is_inside
from autoinstr.patch.functions import dress
from autoinstr.spans.opening import Opened, SpanPlan, close

_OPEN_LIMIT = 10_000


class Pairing:
    """The open spans of one `between` entry, by key."""

    def __init__(
        self,
        plan: SpanPlan,
        entry: SpanEntry,
        on_methods: bool,
        clock: Callable[[], int | None] | None = None,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._entry = entry
        self._by_instance = on_methods
        self._once = entry.join.once
        self._begun = False
        self._open: dict[tuple[Any, ...], Opened] = {}
        self._lock = threading.Lock()

    def key(self, binding: Binding, match: list[Callable[[Any, Any], Any]], args: Any, kwargs: Any) -> tuple[Any, ...]:
        if match:
            return tuple(_identity(read(args, kwargs)) for read in match)
        own = (id(args[0]),) if self._by_instance and args else ()
        return own + tuple(_identity(v) for v in binding.selected_values(args, kwargs))

    def begin(self, key: tuple[Any, ...], attributes: dict[str, Any] | None) -> None:
        with self._lock:
            if self._once and self._begun:
                return
            self._begun = True
            before = self._open.pop(key, None)
        if before is not None:
            close(before, lost_end="begin")
        opened = self._plan.open(attributes, self._clock() if self._clock is not None else None, pair=True)
        if opened is None:
            return
        with self._lock:
            if len(self._open) >= _OPEN_LIMIT:
                self._open = {k: o for k, o in self._open.items() if o.span is not None}
            self._open[key] = opened

    def end(self, key: tuple[Any, ...], exception: BaseException | None) -> None:
        with self._lock:
            opened = self._open.pop(key, None)
        if opened is not None:
            close(opened, exception)

    @property
    def has_open(self) -> bool:
        return bool(self._open)


def _identity(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else id(value)


def _matchers(entry: SpanEntry, function: Any) -> list[Callable[[Any, Any], Any]]:
    parameters = parameters_of(function)

    def matcher(path: ValuePath) -> Callable[[Any, Any], Any]:
        if path.root == "self":
            return lambda args, kwargs: path.walk(args[0] if args else MISSING)
        get = argument_getter(path.name or "", parameters)
        return lambda args, kwargs: path.walk(get(args, kwargs))

    return [matcher(path) for path in entry.join.match or () if path.root in ("args", "self")]


def wrap_begin(
    function: Callable[..., Any], pairing: Pairing, binding: Binding, entry: SpanEntry, module: str
) -> Callable[..., Any]:
    """`function`, beginning the span just before it runs."""
    match = _matchers(entry, function)
    inside = entry.inside

    def begin(args: Any, kwargs: Any) -> None:
        try:
            if binding.has_selectors and not binding.selects(args, kwargs):
                return
            frame = None
            if binding.needs_caller:
                frame = calling_frame(sys._getframe(2), module)
                if inside and not is_inside(frame, inside):
                    return
            attributes = binding.at_start(args, kwargs, frame) if binding.has_start else None
            pairing.begin(pairing.key(binding, match, args, kwargs), attributes)
        except Exception as error:
            say(f"span {entry.name} left out: {type(error).__name__}: {error}", once=f"begin {entry.name}")

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin(args, kwargs)
        return function(*args, **kwargs)

    return dress(wrapper, function)


def wrap_end(
    function: Callable[..., Any], pairing: Pairing, binding: Binding, entry: SpanEntry, before: bool
) -> Callable[..., Any]:
    """`function`, ending the span when it has returned, or (`before`) just before it runs."""
    match = _matchers(entry, function)

    def end(args: Any, kwargs: Any, exception: BaseException | None = None) -> None:
        if not pairing.has_open:
            return
        try:
            if binding.has_selectors and not binding.selects(args, kwargs):
                return
            pairing.end(pairing.key(binding, match, args, kwargs), exception)
        except Exception as error:
            say(f"span {entry.name} was not ended: {type(error).__name__}: {error}", once=f"end {entry.name}")

    if before:

        def ends_before(*args: Any, **kwargs: Any) -> Any:
            end(args, kwargs)
            return function(*args, **kwargs)

        return dress(ends_before, function)

    def ends_after(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            end(args, kwargs)

    return dress(ends_after, function)

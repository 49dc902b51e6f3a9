"""The `between` join point: one function begins the span, another ends it.

Pairs are told apart by the instance that the two methods share, by the values of the selecting arguments and
by what the map's `match` reads; an end prefers what was begun in its own thread and task. A second begin there
ends the first; an end without a begin is nothing; what never ends is ended by the span that holds it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.model import SpanEntry
from autoinstr.maps.values import MISSING, ValuePath, argument_getter, parameters_of
from autoinstr.notices import describe, say
from autoinstr.patch.binding import Binding, identity
from autoinstr.patch.callers import calling_frame, frame_inside
from autoinstr.patch.functions import wrap_beside
from autoinstr.spans.opening import Opened, SpanPlan, close, flow

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
        self._by_instance = on_methods
        self._begins = itertools.count() if entry.join.once else None
        # No lock: a finalizer or a signal handler may begin or end a pair while this very thread does.
        # Each step is one operation of a dict, and so whole.
        self._open: dict[tuple[Any, ...], Opened] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_no_pairing, ())  # see Entering.__reduce__

    def key(self, binding: Binding, match: list[Callable[[Any, Any], Any]], args: Any, kwargs: Any) -> tuple[Any, ...]:
        if match:
            return tuple(identity(read(args, kwargs)) for read in match)
        own = (id(args[0]),) if self._by_instance and args else ()
        return own + tuple(identity(v) for v in binding.selected_values(args, kwargs))

    def begin(self, key: tuple[Any, ...], attributes: dict[str, Any] | None) -> None:
        if self._begins is not None and next(self._begins):
            return
        key = (flow(), *key)
        before = self._open.pop(key, None)
        if before is not None:
            close(before, lost_end="begin")
        opened = self._plan.open(attributes, self._clock() if self._clock is not None else None, pair=True)
        if opened is None:
            return
        if len(self._open) >= _OPEN_LIMIT:
            for other, lost in list(self._open.items()):
                if lost.span is None:
                    self._open.pop(other, None)
        self._open[key] = opened

    def end(self, key: tuple[Any, ...], exception: BaseException | None = None) -> None:
        opened = self._open.pop((flow(), *key), None)
        while opened is None:  # begun in another thread or task: the latest one
            others = [other for other in list(self._open) if other[1:] == key]
            if not others:
                return
            opened = self._open.pop(others[-1], None)
        close(opened, exception)

    @property
    def has_open(self) -> bool:
        return bool(self._open)


def _no_pairing() -> Pairing:
    pairing = Pairing.__new__(Pairing)
    pairing._open, pairing._by_instance = {}, False
    pairing._begins = itertools.count(1)  # begun once already: it begins no more
    return pairing


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
    inside, name = entry.inside, entry.name

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if binding.has_selectors and not binding.selects(args, kwargs):
                return
            frame = None
            if binding.needs_caller:
                above = sys._getframe(2)
                frame = calling_frame(above, module)
                if inside and (frame := frame_inside(frame, above, module, inside)) is None:
                    return
            if binding.has_conditions and not binding.accepts(args, kwargs, frame):
                return
            attributes = binding.at_start(args, kwargs, frame) if binding.has_start else None
            pairing.begin(pairing.key(binding, match, args, kwargs), attributes)
        except BaseException as error:
            if is_the_programs(error):
                raise
            say(f"span {name} left out: {describe(error)}", once=f"begin {name}")

    return wrap_beside(function, before=begin)


def wrap_end(
    function: Callable[..., Any], pairing: Pairing, binding: Binding, entry: SpanEntry, before: bool
) -> Callable[..., Any]:
    """`function`, ending the span when it has returned, or (`before`) just before it runs."""
    match = _matchers(entry, function)
    name = entry.name

    def end(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not pairing.has_open:
            return
        try:
            if binding.has_selectors and not binding.selects(args, kwargs):
                return
            pairing.end(pairing.key(binding, match, args, kwargs))
        except BaseException as error:
            if is_the_programs(error):
                raise
            say(f"span {name} was not ended: {describe(error)}", once=f"end {name}")

    return wrap_beside(function, before=end) if before else wrap_beside(function, after=end)

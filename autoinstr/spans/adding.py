"""Attributes for a span that is open already: what a map's `attributes_from` does in place of opening one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoinstr.interruptions import is_the_programs
from autoinstr.notices import describe, say
from autoinstr.spans.opening import Opened, SpanPlan, Tracers, nearest_open, set_on


class AddingPlan(SpanPlan):
    """The plan of an entry that opens no span: what its calls say goes to the nearest open span of its name."""

    __slots__ = ("_keep", "_wanted")

    def __init__(self, name: str, group: str, tracers: Tracers, *, keep: bool = False) -> None:
        """`keep`: attributes that the span has already stay as they are."""
        super().__init__(name, group, tracers)
        self._wanted = (name,)
        self._keep = keep

    def open(self, attributes: Mapping[str, Any] | None = None, *_: Any, **__: Any) -> Any:
        """What is known as the call begins is added; an `Addition` for what is known at its end. Never raises."""
        if self.off:
            return None
        try:
            opened = nearest_open(self._wanted)
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"attributes of {self.name} left out: {describe(error)}", once=f"add {self.name}")
            return None
        if opened is None:
            return None
        addition = Addition(opened, self._keep)
        addition.add(attributes)
        return addition


class Addition:
    """One call's attributes on their way to the span that was open around it."""

    __slots__ = ("_keep", "_opened")

    def __init__(self, opened: Opened, keep: bool) -> None:
        self._opened = opened
        self._keep = keep

    def add(self, attributes: Mapping[str, Any] | None) -> None:
        """Nothing, where the span has ended meanwhile. Never raises."""
        span = self._opened.span
        if not attributes or span is None:
            return
        try:
            if span.is_recording():
                set_on(self._opened, span, attributes, keep=self._keep)
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"attributes could not be added to a span: {describe(error)}", once="add")

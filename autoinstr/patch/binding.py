"""Attributes bound to one function at patch time: where each argument stands, what needs the caller's frame."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.model import Selector, SpanEntry
from autoinstr.maps.values import (
    AT_END,
    MISSING,
    ValuePath,
    argument_getter,
    is_sensitive,
    parameters_of,
    to_attribute,
)
from autoinstr.notices import describe, say
from autoinstr.patch.callers import read_local

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Reader = Callable[[Args, Kwargs, FrameType | None], Any]


class Binding:
    """The attributes of one entry on one function, and the arguments that select its calls."""

    def __init__(self, entry: SpanEntry, function: Any, selectors: tuple[Selector, ...], capture_content: bool) -> None:
        self._parameters = parameters_of(function)
        self._at_start: list[tuple[str, list[Reader], bool]] = []
        self._at_end: list[tuple[str, list[ValuePath], bool]] = []
        self.needs_caller = bool(entry.inside)
        self._selectors = [(argument_getter(s.argument, self._parameters), s) for s in selectors]
        self._conditions = [(self._reader(path), allowed) for path, allowed in entry.only_when]
        open_content = entry.content and capture_content
        for key, paths in entry.attributes:
            redact = not open_content and (
                is_sensitive(key) or any(is_sensitive(p.text) for p in paths if p.root != "const")
            )
            if any(path.root in AT_END for path in paths):
                self._at_end.append((key, list(paths), redact))
            else:
                self._at_start.append((key, [self._reader(path) for path in paths], redact))
        self.has_start = bool(self._at_start)
        self.has_end = bool(self._at_end)
        self.has_selectors = bool(self._selectors)
        self.has_conditions = bool(self._conditions)
        self._match = [self._reader(path) for path in entry.coalesce.match] if entry.coalesce is not None else []
        self.has_match = bool(self._match)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_no_binding, ())  # see Entering.__reduce__

    def _reader(self, path: ValuePath) -> Reader:
        if path.operands:
            start = self._reader(replace(path, steps=(), reducers=()))
            operands = [(operand.text, self._reader(operand)) for operand in path.operands]
            return lambda args, kwargs, frame: path.walk(
                start(args, kwargs, frame), {text: read(args, kwargs, frame) for text, read in operands}
            )
        walk = path.walk
        if path.root == "const":
            constant = path.constant
            return lambda args, kwargs, frame: constant
        if path.root == "self":
            return lambda args, kwargs, frame: walk(args[0] if args else MISSING)
        if path.root == "args":
            get = argument_getter(path.name or "", self._parameters)
            if not path.steps and not path.reducers:
                return lambda args, kwargs, frame: get(args, kwargs)
            return lambda args, kwargs, frame: walk(get(args, kwargs))
        if path.root == "env":
            variable = path.name or ""
            return lambda args, kwargs, frame: walk(os.environ.get(variable, MISSING))
        self.needs_caller = True
        local = path.name or ""
        return lambda args, kwargs, frame: walk(read_local(frame, local))

    def selects(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether this call's arguments are the ones that the target asks for. Never raises."""
        try:
            return all(selector.accepts(plain_label(get(args, kwargs))) for get, selector in self._selectors)
        except BaseException as error:  # an argument's own `__class__` may raise anything; such a one is not asked for
            if is_the_programs(error):
                raise
            return False

    def accepts(self, args: Args, kwargs: Kwargs, frame: FrameType | None) -> bool:
        """Whether the values that `only_when` names are those that it asks for; one that is missing is None."""
        for read, allowed in self._conditions:
            value = plain_label(read(args, kwargs, frame))
            if not allowed.accepts(None if value is MISSING else value):
                return False
        return True

    def match(self, args: Args, kwargs: Kwargs, frame: FrameType | None) -> tuple[Any, ...] | None:
        """What the blocks of one span have in common; None where it can't be told, so that no two are one."""
        found = tuple(identity(read(args, kwargs, frame)) for read in self._match)
        return None if id(MISSING) in found else found

    def selected_values(self, args: Args, kwargs: Kwargs) -> tuple[Any, ...]:
        """The values of the selecting arguments (what tells one pair of begin and end from another)."""
        return tuple(get(args, kwargs) for get, _ in self._selectors)

    def at_start(self, args: Args, kwargs: Kwargs, frame: FrameType | None) -> dict[str, Any]:
        """The attributes that are known before the body runs. Never raises."""
        found: dict[str, Any] = {}
        for key, readers, redact in self._at_start:
            try:
                for read in readers:
                    value = to_attribute(read(args, kwargs, frame), redact)
                    if value is not MISSING:
                        found[key] = value
                        break
            except BaseException as error:  # a value's own `__class__` or `__len__` may raise SystemExit
                if is_the_programs(error):
                    raise
                say(f"attribute {key} left out: {describe(error)}", once=f"attribute {key}")
        return found

    def at_end(self, result: Any, exception: BaseException | None = None) -> dict[str, Any] | None:
        """The attributes that come from what the function returned, or raised. Never raises."""
        found: dict[str, Any] = {}
        for key, paths, redact in self._at_end:
            if exception is not None and any(path.root == "return" for path in paths):
                continue
            try:
                for path in paths:
                    start = outcome(exception) if path.root == "outcome" else path.constant
                    if path.root == "return":
                        start = result
                    value = to_attribute(path.walk(start), redact)
                    if value is not MISSING:
                        found[key] = value
                        break
            except BaseException as error:  # a value's own `__class__` or `__len__` may raise SystemExit
                if is_the_programs(error):
                    raise
                say(f"attribute {key} left out: {describe(error)}", once=f"attribute {key}")
        return found or None


class TellingBinding(Binding):
    """One that also tells what the call says of the run, before its span begins."""

    def __init__(
        self,
        entry: SpanEntry,
        function: Any,
        selectors: tuple[Selector, ...],
        capture_content: bool,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(entry, function, selectors, capture_content)
        self._of_the_run = Binding(replace(entry, attributes=entry.resource, content=False), function, (), False)
        self._tell = tell
        self.needs_caller = self.needs_caller or self._of_the_run.needs_caller
        self.has_start = True

    def at_start(self, args: Args, kwargs: Kwargs, frame: FrameType | None) -> dict[str, Any]:
        found = self._of_the_run.at_start(args, kwargs, frame)
        if found:
            self._tell(found)
        return super().at_start(args, kwargs, frame)


def outcome(exception: BaseException | None) -> str:
    """How a call went: `ok`, `timeout`, `error`, or `cancelled` where it was told to stop."""
    if exception is None:
        return "ok"
    # before Python 3.11 asyncio and concurrent.futures have a TimeoutError each
    if isinstance(exception, TimeoutError) or type(exception).__name__ == "TimeoutError":
        return "timeout"
    return "error" if isinstance(exception, Exception) else "cancelled"


def plain_label(value: Any) -> Any:
    """A selecting value as maps write it: members of a `str` enum by their text."""
    kind = type(value)  # what it says its `__class__` is may be a lie
    return str.__str__(value) if kind is not str and issubclass(kind, str) else value


def identity(value: Any) -> Any:
    """What tells a value from others: a scalar by what it is, anything else by which object."""
    value = plain_label(value)
    return value if type(value) in (str, int, float, bool, type(None)) else id(value)


def _no_binding() -> Binding:
    binding = Binding.__new__(Binding)
    binding._at_start, binding._at_end, binding._selectors, binding._conditions = [], [], [], []
    binding.needs_caller = binding.has_start = binding.has_end = False
    binding.has_selectors = binding.has_conditions = binding.has_match = False
    return binding

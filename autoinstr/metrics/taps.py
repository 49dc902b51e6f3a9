"""A tap: what one function is handed, or what its calls are, as values of series.

All that can be decided when the function is patched is decided then: where each argument stands, which keys feed
which series, with which attributes. A call costs a lookup per logged key. No call of the user's fails or waits
for what is wrong here: one value that can't be taken is said once, and costs that value.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.metric_model import LoggerKey, MetricTap, SeriesEntry
from autoinstr.maps.values import MISSING, ValuePath, argument_getter, is_sensitive, parameters_of, to_attribute
from autoinstr.metrics.instruments import Instruments, Record
from autoinstr.metrics.scalars import ElsewhereError, scalar
from autoinstr.notices import describe, say

_MAX_ROUTES = 8192
"""Logged keys that a tap remembers; a logger with ever new keys is asked anew each time."""


class Call(NamedTuple):
    """One call of a tapped function; `result` and `seconds` are MISSING before it has returned."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any = MISSING
    seconds: Any = MISSING


Read = Callable[[Call], Any]
_Held: TypeAlias = "tuple[_Source, Any, str, dict[str, Any]]"
"""A value that was read: of which source, from where, with which attributes."""


class Tap:
    """One `MetricTap` on one function. `off` ends it."""

    def __init__(self, entry: MetricTap, function: Any, instruments: Instruments) -> None:
        parameters = parameters_of(function)
        self.off = False
        self._conditions = [(_reader(path, parameters), selector) for path, selector in entry.only_when]
        for selector in entry.target.selectors:
            get = argument_getter(selector.argument, parameters)
            self._conditions.append((lambda call, get=get: get(call.args, call.kwargs), selector))  # type: ignore[misc]
        self._values = _reader(entry.values, parameters) if entry.values is not None else None
        self._name = str(entry.target)
        self._sources: list[_Source] = []
        self._at_start: list[_Source] = []
        self._at_end: list[_Source] = []
        for series in entry.series:
            source = _Source(series, parameters, instruments)
            (self._sources if series.keys else self._at_end if series.needs_end else self._at_start).append(source)
        self._routes: dict[Any, tuple[_Route, ...]] = {}
        self.needs_end = bool(self._at_end) or any(source.series.needs_end for source in self._sources)

    def __reduce__(self) -> tuple[Any, ...]:
        # a tapped function that is pickled by value takes a tap along that does nothing
        return (_no_tap, ())

    def before(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[_Held] | None:
        """Read what is known as the call begins; None where the tap does not want this call. Never raises.

        It is recorded by `after`: code that reports a series itself does so during the call, and then it is theirs.
        """
        if self.off:
            return None
        try:
            call = Call(args, kwargs)
            for read, selector in self._conditions:
                value = read(call)
                if not selector.accepts(None if value is MISSING else value):
                    return None
            held = [source.hold(call) for source in self._at_start]
            if self._values is not None:
                values = self._values(call)
                if isinstance(values, Mapping):
                    self._hold(values, held)
                elif values is not None and values is not MISSING:
                    kind = type(values).__qualname__
                    say(f"the metrics of a call of {self._name} are left out: its values are no mapping ({kind})")
            return held
        except BaseException as error:  # what is handed to a logger may raise anything
            if is_the_programs(error):
                raise
            say(f"the metrics of a call of {self._name} are left out: {describe(error)}", once=f"tap {self._name}")
            return None

    def after(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        held: list[_Held],
        result: Any = MISSING,
        seconds: Any = MISSING,
    ) -> None:
        """Record what `before` held, and what is known once the call has returned. Never raises.

        Without `result`, the call has raised: what needs its end is left out.
        """
        try:
            call = Call(args, kwargs, result, seconds)
            returned = seconds is not MISSING
            for source, value, origin, attributes in held:
                if returned or not source.series.needs_end:
                    source.take(value, origin, attributes, call)
            for source in self._at_end if returned else ():
                source.take(*source.hold(call)[1:], call)
        except BaseException as error:
            if is_the_programs(error):
                raise
            say(f"the metrics of a call of {self._name} are left out: {describe(error)}", once=f"tap {self._name}")

    def _hold(self, values: Mapping[Any, Any], held: list[_Held]) -> None:
        routes = self._routes
        for key, value in values.items():
            found = routes.get(key)
            if found is None:
                found = self._route(key)
            for route in found:
                if not (route.before and any(other in values for other in route.before)):
                    held.append((route.source, value, route.key, route.attributes))

    def _route(self, key: Any) -> tuple[_Route, ...]:
        """What is done with a key: looked at once, the first time it is logged."""
        found: tuple[_Route, ...] = ()
        if isinstance(key, str):
            found = tuple(route for source in self._sources for route in source.routes(key))
        if len(self._routes) < _MAX_ROUTES:
            self._routes[key] = found
        return found


class _Source:
    """One source of one series, on one function."""

    def __init__(
        self, series: SeriesEntry, parameters: Mapping[str, tuple[int | None, Any]], instruments: Instruments
    ) -> None:
        self.series = series
        self._instruments = instruments
        self._record: Record | None = None
        self._grows = series.kind == "counter"
        self._whole = series.kind in ("counter", "up_down_counter")
        self._value = _reader(series.value, parameters) if series.value is not None else None
        self._rows = series.rows()
        self._of_star = [name for name, paths in series.attributes if paths is None]
        self._constant: dict[str, Any] = {}
        self._variable: list[tuple[str, list[Read], bool]] = []
        for name, paths in series.attributes:
            if paths is None:
                continue
            if len(paths) == 1 and paths[0].root == "const":
                self._constant[name] = paths[0].constant
            else:
                redact = is_sensitive(name) or any(is_sensitive(p.text) for p in paths if p.root != "const")
                self._variable.append((name, [_reader(path, parameters) for path in paths], redact))

    def routes(self, key: str) -> list[_Route]:
        """The one route of `key`, or none."""
        exact_before: list[str] = []
        for known in self.series.keys:
            if not known.is_pattern:
                if known.text == key:
                    return [_Route(self, key, dict(self._constant), tuple(exact_before))]
                exact_before.append(known.text)
                continue
            attributes = self._attributes_of(known, key)
            if attributes is not None:
                return [_Route(self, key, attributes, ())]
        return []

    def _attributes_of(self, pattern: LoggerKey, key: str) -> dict[str, Any] | None:
        text = pattern.match(key)
        if text is None:
            return None
        row: Mapping[str, Any] = {}
        if self._rows is not None:
            if text not in self._rows:
                return None
            row = self._rows[text]
        return {**self._constant, **dict.fromkeys(self._of_star, text), **row}

    def hold(self, call: Call) -> _Held:
        """What the value path gives in this call."""
        value = self._value(call) if self._value is not None else MISSING
        return self, value, self.series.value.text if self.series.value else "", self._constant

    def take(self, value: Any, origin: str, attributes: dict[str, Any], call: Call) -> None:
        """Record `value` if it is a scalar. Raises only KeyboardInterrupt."""
        name = self.series.name
        try:
            number = value if type(value) is float else scalar(value)
            if number is None:
                return
            if not math.isfinite(number):
                say(f"{name}: {number} is left out (from {origin!r}); said once", once=f"finite {name}")
                return
            if self._grows and number < 0:
                say(f"{name}: {number} is left out (from {origin!r}): a counter only grows", once=f"grow {name}")
                return
            if self._variable:
                attributes = {**attributes, **self._read_variable(call)}
            record = self._record
            if record is None:
                record = self._record = self._instruments.of(self.series)
            record(number if self._whole else float(number), attributes, None)
        except ElsewhereError as error:
            say(
                f"{name}: {origin!r} is {error} and is left out: reading it would make training wait",
                once=f"elsewhere {name}",
            )
        except BaseException as error:
            if is_the_programs(error):
                raise
            say(f"{name}: a value is left out (from {origin!r}): {describe(error)}", once=f"value {name}")

    def _read_variable(self, call: Call) -> dict[str, Any]:
        found = {}
        for name, readers, redact in self._variable:
            for read in readers:
                value = to_attribute(read(call), redact)
                if value is not MISSING:
                    found[name] = value
                    break
        return found


class _Route(NamedTuple):
    """A logged key that feeds a series, with the attributes that belong to the key."""

    source: _Source
    key: str
    attributes: dict[str, Any]
    before: tuple[str, ...]
    """Keys that the map names earlier: where one of them is there, this one is passed over."""


def _reader(path: ValuePath, parameters: Mapping[str, tuple[int | None, Any]]) -> Read:
    if path.operands:
        start = _reader(replace(path, steps=(), reducers=()), parameters)
        operands = [(operand.text, _reader(operand, parameters)) for operand in path.operands]
        return lambda call: path.walk(start(call), {text: read(call) for text, read in operands})
    walk = path.walk
    if path.root == "const":
        return lambda call: path.constant
    if path.root == "duration":
        return lambda call: call.seconds
    if path.root == "return":
        return lambda call: walk(call.result)
    if path.root == "self":
        return lambda call: walk(call.args[0] if call.args else MISSING)
    if path.root == "env":
        return lambda call: walk(os.environ.get(path.name or "", MISSING))
    get = argument_getter(path.name or "", parameters)
    if not path.steps and not path.reducers:
        return lambda call: get(call.args, call.kwargs)
    return lambda call: walk(get(call.args, call.kwargs))


def _no_tap() -> Tap:
    tap = Tap.__new__(Tap)
    tap.off, tap.needs_end = True, False
    return tap

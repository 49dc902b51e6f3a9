"""Series → instruments: each made once, with its first value, from whatever meter provider there is then."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics

from autoinstr import __version__
from autoinstr.notices import say

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider

    from autoinstr.maps.metric_model import SeriesEntry

SCOPE_NAME = "autoinstr"

_here = threading.local()
"""`waiting`, while this thread is inside the SDK's metrics, whose locks are not reentrant: a signal's handler or a
finalizer that ends a span just then would wait for its own thread forever. What it records is recorded right after."""

Record = Callable[["float | int", Mapping[str, Any] | None, "Context | None"], None]
_Waiting = tuple[Record, float, Any, Any]


def global_meter() -> Meter:
    """Our meter of the global meter provider."""
    return metrics.get_meter(SCOPE_NAME, __version__)


class Instruments:
    """The instruments of a process, by series name."""

    def __init__(self, provider: Callable[[], MeterProvider] | None = None) -> None:
        self._provider = provider or metrics.get_meter_provider
        self._made: dict[str, tuple[str, str, Record]] = {}

    def of(self, series: SeriesEntry) -> Record:
        """How a value of `series` is recorded: a function of value, attributes and context.

        Another map's series of the same name and another kind or unit is said once, and records nothing. So does a
        series that other code of this process reports itself, under this name or one of `series.also`.
        """
        found = self._made.get(series.name)
        if found is None and getattr(_here, "waiting", None) is not None:
            return functools.partial(self._once_made, series)
        if found is None:
            waiting: list[_Waiting] = []
            _here.waiting = waiting
            try:
                found = self._first(series)
            finally:
                _here.waiting = None
            _catch_up(waiting)
        kind, unit, record = found
        if (kind, unit) != (series.kind, series.unit):
            say(
                f"{series.place}: {series.name} is a {kind} in {unit or 'no unit'} elsewhere, and a {series.kind} in "
                f"{series.unit or 'no unit'} here; this one is left out"
            )
            return _nothing
        return record

    def _first(self, series: SeriesEntry) -> tuple[str, str, Record]:
        provider = self._provider()
        theirs = _reported_by_others(provider, {series.name, *series.also})
        record = _nothing if theirs else _uninterrupted(_make(provider.get_meter(SCOPE_NAME, __version__), series))
        # two threads may come here at once: the SDK gives both the same instrument
        return self._made.setdefault(series.name, (series.kind, series.unit, record))

    def _once_made(
        self, series: SeriesEntry, value: float, attributes: Mapping[str, Any] | None, context: Context | None
    ) -> None:
        waiting = getattr(_here, "waiting", None)
        if waiting is None:
            self.of(series)(value, attributes, context)
        else:
            waiting.append((functools.partial(self._once_made, series), value, attributes, context))


def _reported_by_others(provider: Any, names: set[str]) -> bool:
    """Whether another meter of the provider has an instrument of one of these names."""
    meters = getattr(provider, "_meters", None)
    if not isinstance(meters, Mapping):  # no SDK is set up
        return False
    for scope, meter in list(meters.items()):
        if getattr(scope, "name", SCOPE_NAME) == SCOPE_NAME:
            continue
        instruments: Mapping[Any, Any] = getattr(meter, "_instrument_id_instrument", None) or {}
        if any(getattr(instrument, "name", None) in names for instrument in list(instruments.values())):
            return True
    return False


def _uninterrupted(record: Record) -> Record:
    def once_free(value: float, attributes: Mapping[str, Any] | None = None, context: Context | None = None) -> None:
        waiting = getattr(_here, "waiting", None)
        if waiting is not None:
            waiting.append((once_free, value, attributes, context))
            return
        _here.waiting = waiting = []
        try:
            record(value, attributes, context)
        finally:
            _here.waiting = None
        if waiting:
            _catch_up(waiting)

    return once_free


def uninterrupted_collection(collect: Callable[..., Any]) -> Callable[..., Any]:
    """`collect` of a metric reader, in whose thread a finalizer may end a span as well."""

    def collect_first(*args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "waiting", None) is not None:
            return collect(*args, **kwargs)
        waiting: list[_Waiting] = []
        _here.waiting = waiting
        try:
            return collect(*args, **kwargs)
        finally:
            _here.waiting = None
            _catch_up(waiting)

    return collect_first


def _catch_up(waiting: list[_Waiting]) -> None:
    for record, value, attributes, context in waiting:
        record(value, attributes, context)


def _make(meter: Meter, series: SeriesEntry) -> Record:
    name, unit, about = series.name, series.unit, series.about
    if series.kind == "counter":
        return meter.create_counter(name, unit, about).add
    if series.kind == "up_down_counter":
        return meter.create_up_down_counter(name, unit, about).add
    if series.kind == "histogram":
        boundaries = list(series.boundaries) if series.boundaries is not None else None
        return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=boundaries).record
    return meter.create_gauge(name, unit, about).set


def _nothing(value: float, attributes: Mapping[str, Any] | None = None, context: Any = None) -> None:
    return None

"""Series → instruments: each made once, with its first value, from whatever meter provider there is then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autoinstr import __version__
from autoinstr.notices import say

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter

    from autoinstr.maps.metric_model import SeriesEntry

SCOPE_NAME = "autoinstr"

Record = Callable[["float | int", Mapping[str, Any] | None, "Context | None"], None]


def global_meter() -> Meter:
    """Our meter of the global meter provider."""
    from opentelemetry import metrics

    return metrics.get_meter(SCOPE_NAME, __version__)


class Instruments:
    """The instruments of a process, by series name."""

    def __init__(self, meter: Callable[[], Meter] = global_meter) -> None:
        self._meter = meter
        self._made: dict[str, tuple[str, str, Record]] = {}

    def of(self, series: SeriesEntry) -> Record:
        """How a value of `series` is recorded: a function of value, attributes and context.

        Another map's series of the same name and another kind or unit is said once, and records nothing.
        """
        found = self._made.get(series.name)
        if found is None:
            record = _make(self._meter(), series)
            # two threads may come here at once: the SDK gives both the same instrument
            found = self._made.setdefault(series.name, (series.kind, series.unit, record))
        kind, unit, record = found
        if (kind, unit) != (series.kind, series.unit):
            say(
                f"{series.place}: {series.name} is a {kind} in {unit or 'no unit'} elsewhere, and a {series.kind} in "
                f"{series.unit or 'no unit'} here; this one is left out"
            )
            return _nothing
        return record


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

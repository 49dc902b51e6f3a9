"""Recorded metrics as lines, one a point, for tests: they compare with an indented text."""

from __future__ import annotations

import textwrap
from typing import Any

from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, Sum


class SeriesList:
    """`name kind unit value attribute=...`, sorted; a histogram's value is `count=2 sum=30.0`.

    Equal to an indented text, or to another list, that prints the same.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = sorted(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str(self) == textwrap.dedent(other.strip("\n")).rstrip()
        return isinstance(other, SeriesList) and self.lines == other.lines

    __hash__ = None  # type: ignore[assignment]


def read(reader: InMemoryMetricReader, *names: str) -> SeriesList:
    """What `reader` holds: all of it, or the series of these names."""
    data = reader.get_metrics_data()
    lines = [
        _line(metric, point)
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if not names or metric.name in names
        for point in metric.data.data_points
    ]
    return SeriesList(lines)


def _line(metric: Metric, point: Any) -> str:
    data = metric.data
    if isinstance(data, Gauge):
        kind, value = "gauge", repr(point.value)
    elif isinstance(data, Sum):
        kind, value = ("counter" if data.is_monotonic else "up_down_counter"), repr(point.value)
    else:
        kind, value = "histogram", f"count={point.count} sum={point.sum!r}"
    attributes = [f"{key}={found!r}" for key, found in sorted((point.attributes or {}).items())]
    return " ".join([metric.name, kind, *([metric.unit] if metric.unit else []), value, *attributes])

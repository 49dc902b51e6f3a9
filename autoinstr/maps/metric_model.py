"""What the `metrics` section of a map says: taps on functions, and the series that they feed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from autoinstr.maps.values import ValuePath

if TYPE_CHECKING:
    from autoinstr.maps.model import Place, Selector, SpanMap, Target

KINDS = ("gauge", "counter", "up_down_counter", "histogram")
"""What a series is: the latest value; a sum of deltas that only grows; one that may shrink; a distribution."""

STAR = "*"
"""In a logger key: any text, which an attribute may take up. As an attribute's value: that text."""

DURATION = ValuePath("duration", "duration", None, (), ())
"""The value of a series that is the seconds which the tapped call took."""


@dataclass(frozen=True)
class LoggerKey:
    """A key of the values that a function is handed: exact, or with one `*` between `before` and `after`."""

    text: str

    @property
    def is_pattern(self) -> bool:
        return STAR in self.text

    def match(self, key: str) -> str | None:
        """What the `*` stands for in `key` (never empty), or None where `key` is another one."""
        before, _, after = self.text.partition(STAR)
        if len(key) <= len(before) + len(after) or not key.startswith(before) or not key.endswith(after):
            return None
        return key[len(before) : len(key) - len(after)]


@dataclass(frozen=True)
class SeriesEntry:
    """One source of one series. `keys` or `value` says where its values come from.

    `table` gives attributes by what the `*` stands for; a text that is not in it is left out.
    """

    name: str
    place: Place
    kind: str = "gauge"
    unit: str = ""
    about: str = ""
    keys: tuple[LoggerKey, ...] = ()
    value: ValuePath | None = None
    attributes: tuple[tuple[str, tuple[ValuePath, ...] | None], ...] = ()
    """Attribute → its value paths, or None for what the `*` stands for."""
    table: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] | None = None
    boundaries: tuple[float, ...] | None = None
    """Upper bounds of a histogram's buckets."""
    optional: bool = False
    """Whether a release may lack it: its logger keys, or the calls that hand them over."""
    also: tuple[str, ...] = ()
    """Names under which other code may report it."""

    @property
    def needs_end(self) -> bool:
        """Whether a value or an attribute is only known when the call has returned."""
        paths = [path for _, listed in self.attributes for path in listed or ()]
        return any(path.root in ("return", "duration") for path in [*paths, *([self.value] if self.value else [])])

    def rows(self) -> Mapping[str, Mapping[str, Any]] | None:
        return None if self.table is None else {text: dict(row) for text, row in self.table}


@dataclass(frozen=True)
class MetricTap:
    """A function that is handed values, or whose calls are values, and the series that it feeds."""

    target: Target
    map: str
    place: Place
    values: ValuePath | None = None
    only_when: tuple[tuple[ValuePath, Selector], ...] = ()
    series: tuple[SeriesEntry, ...] = ()
    disabled: tuple[str, ...] = ()
    """Series that this map removes from all maps below it."""
    optional: bool = False
    about: str = ""


@dataclass
class _Layer:
    taps: list[MetricTap] = field(default_factory=list)

    def names(self) -> set[str]:
        return {s.name for t in self.taps for s in t.series} | {n for t in self.taps for n in t.disabled}


def layered_taps(maps: Iterable[tuple[int, SpanMap]]) -> list[MetricTap]:
    """The taps that hold: a series name in a higher layer replaces it in all lower ones, `disabled` removes it."""
    layers: dict[int, _Layer] = {}
    for number, span_map in maps:
        layers.setdefault(number, _Layer()).taps.extend(span_map.metrics)
    taps: list[MetricTap] = []
    for _, layer in sorted(layers.items()):
        names = layer.names()
        taps = [replace(t, series=tuple(s for s in t.series if s.name not in names)) for t in taps]
        taps += layer.taps
    return [tap for tap in taps if tap.series]

"""Reads the `metrics` section of a map: taps on functions, and the series that they feed.

A wrong series leaves out that series, a wrong tap that tap; spans stand as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoinstr.maps import keys
from autoinstr.maps.metric_model import DURATION, KINDS, STAR, LoggerKey, MetricTap, SeriesEntry
from autoinstr.maps.model import Place, Target
from autoinstr.maps.nodes import Node
from autoinstr.maps.values import ValuePath
from autoinstr.maps.words import shown, suggest

if TYPE_CHECKING:
    from autoinstr.maps.loader import Pair, _Reader

_SERIES_NAME = re.compile(keys.SERIES_NAME)
_UNIT = re.compile(keys.UNIT)
_COUNTS_STEPS = re.compile(
    r"(?:^|[._])(?:iteration|iter|step|steps|epoch|global_step|total_steps|current_step)(?:$|\W)"
)

Attributes = tuple[tuple[str, "tuple[ValuePath, ...] | None"], ...]
Row = tuple[tuple[str, Any], ...]


def kinds(reader: _Reader) -> dict[str, Callable[[Node, str], Any]]:
    """The readers of this section's kinds of values, for the loader's table."""
    mine = _MetricReader(reader)
    return {
        "boundaries": mine.boundaries,
        "logger_keys": mine.logger_keys,
        "measured": mine.measured,
        "metric_attributes": mine.attributes,
        "metric_kind": mine.kind,
        "metrics": lambda node, what: node,  # read last: it needs the map's name
        "series": lambda node, what: node,  # read with its tap
        "series_names": mine.series_names,
        "table": mine.table,
        "unit": mine.unit,
        "values": mine.values,
    }


def read(reader: _Reader, node: Node, map_name: str) -> tuple[MetricTap, ...]:
    """Every tap of the section that can be read. Never raises."""
    mine = _MetricReader(reader)
    found: list[MetricTap] = []
    with reader.consequence("the metrics of this map are left out"):
        if not node.is_mapping:
            reader.mistake(node.place, f"metrics must be a mapping of keys, not {node.kind}")
            return ()
    with reader.consequence("this one is left out"):
        reader.possible(reader.pairs(node, None, "metrics"), lambda pair: mine.taps(pair, map_name, found))
    return tuple(found)


def _not_here(path: ValuePath) -> list[str]:
    """The roots of a path that a tap knows nothing of."""
    return [one.root for one in (path, *path.operands) if one.root in ("caller", "outcome")]


class _MetricReader:
    """A method per kind of value, on top of the loader's own."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._seen: dict[str, SeriesEntry] = {}

    # -- taps -----------------------------------------------------------------------------------------

    def taps(self, pair: Pair, map_name: str, found: list[MetricTap]) -> None:
        """The taps on one target: one, or a list of them."""
        _, key_node, value = pair
        reader = self._reader
        with reader.consequence("the tap is left out"):
            target = reader.target(key_node, "a metric tap")
            listed = list(value) if value.is_sequence else [value]
            if not listed:
                raise reader.wrong(value.place, f"the list of {shown(str(target))} is empty")
            reader.possible(listed, lambda node: found.append(self.tap(target, key_node.place, node, map_name)))

    def tap(self, target: Target, place: Place, node: Node, map_name: str) -> MetricTap:
        reader = self._reader
        what = f"the tap on {target}"
        found = reader.all_fields(node, keys.TAP_KEYS, what)
        for path, allowed in found.get("only_when", ()):
            if _not_here(path):
                raise reader.wrong(place, f"only_when of a tap reads args, self or env, not {shown(allowed.argument)}")
        if "series" not in found:
            raise reader.wrong(node.place, f"{what} needs series")
        values: ValuePath | None = found.get("values")
        series: list[SeriesEntry] = []
        disabled: list[str] = []
        section: Node = found["series"]
        with reader.consequence("this one is left out"):
            reader.possible(
                reader.pairs(section, None, "series"), lambda pair: self.series(pair, values, series, disabled)
            )
        return MetricTap(
            target,
            map_name,
            place,
            values,
            found.get("only_when", ()),
            tuple(series),
            tuple(disabled),
            found.get("optional", False),
            found.get("about", ""),
        )

    def values(self, node: Node, what: str) -> ValuePath:
        path = self._reader.path(node, what)
        if path.root not in ("args", "self"):
            raise self._reader.wrong(node.place, f"values reads args or self, not {path.root!r}")
        return path

    # -- series ---------------------------------------------------------------------------------------

    def series(self, pair: Pair, values: ValuePath | None, found: list[SeriesEntry], disabled: list[str]) -> None:
        """All sources of one series: one, or a list of them."""
        name, key_node, value = pair
        reader = self._reader
        with reader.consequence(f"the series {shown(name)} is left out"):
            if not _SERIES_NAME.fullmatch(name):
                raise reader.wrong(key_node.place, f"{shown(name)} is no name of a series (letters, digits, . _ - /)")
            listed = list(value) if value.is_sequence else [value]

            def one(node: Node) -> None:
                entry = self.source(name, key_node.place, node, values)
                if entry is None:
                    disabled.append(name)
                else:
                    found.append(entry)

            reader.possible(listed, one)

    def source(self, name: str, place: Place, node: Node, values: ValuePath | None) -> SeriesEntry | None:
        """One source of a series, or None where it disables the series."""
        reader = self._reader
        what = f"the series {name!r}"
        found = reader.all_fields(node, keys.SERIES_KEYS, what)
        if found.get("disabled", False):
            return None
        if ("from" in found) == ("value" in found):
            said = "has both" if "from" in found else "has none"
            raise reader.wrong(
                node.place, f"{what} needs one of 'from' (a key of the values) and 'value' (a value path) ({said})"
            )
        if "from" in found and values is None:
            raise reader.wrong(node.place, f"{what} has 'from', but its tap has no 'values' that hold the key")
        logger_keys: tuple[LoggerKey, ...] = found.get("from", ())
        attributes: Attributes = found.get("attributes", ())
        has_star = any(key.is_pattern for key in logger_keys)
        if not has_star and (found.get("table") is not None or any(paths is None for _, paths in attributes)):
            raise reader.wrong(node.place, f"{what} has nothing that '*' could stand for: its 'from' holds no '*'")
        kind = found.get("kind", "gauge")
        if "boundaries" in found and kind != "histogram":
            raise reader.wrong(node.place, f"boundaries go with a histogram, not with a {kind}")
        entry = SeriesEntry(
            name,
            place,
            kind,
            found.get("unit", ""),
            found.get("about", ""),
            logger_keys,
            found.get("value"),
            attributes,
            found.get("table"),
            found.get("boundaries"),
            found.get("optional", False),
            found.get("also", ()),
        )
        first = self._seen.setdefault(name, entry)
        if (first.kind, first.unit) != (entry.kind, entry.unit):
            raise reader.wrong(
                node.place, f"{what} is a {first.kind} in {shown(first.unit)} in line {first.place.line}, and here not"
            )
        return entry

    def logger_keys(self, node: Node, what: str) -> tuple[LoggerKey, ...]:
        """A key, or a list of them."""
        reader = self._reader

        def key(item: Node) -> LoggerKey:
            text = reader.text(item, what)
            if text.count(STAR) > 1:
                raise reader.wrong(item.place, f"{shown(text)} has more than one '*'")
            return LoggerKey(text)

        return reader._listed(node, what, "key", key)

    def series_names(self, node: Node, what: str) -> tuple[str, ...]:
        """One name of a series, or a list of at least one."""
        reader = self._reader

        def name(item: Node) -> str:
            word = reader.text(item, what)
            if not _SERIES_NAME.fullmatch(word):
                raise reader.wrong(item.place, f"{shown(word)} is no series name")
            return word

        found = reader.whole(node if node.is_sequence else (node,), name)
        if not found:
            raise reader.wrong(node.place, f"{what} names no series")
        return tuple(found)

    def measured(self, node: Node, what: str) -> ValuePath:
        if node.is_scalar and node.scalar == DURATION.text:
            return DURATION
        path = self._reader.path(node, what)
        if roots := _not_here(path):
            raise self._reader.wrong(node.place, f"the value of a series does not come from the {roots[0]}")
        return path

    def attributes(self, node: Node, what: str) -> Attributes:
        reader = self._reader

        def attribute(pair: Pair) -> tuple[str, tuple[ValuePath, ...] | None]:
            name, key_node, value = pair
            if not name.strip():
                raise reader.wrong(key_node.place, "an attribute needs a name")
            if value.is_scalar and value.scalar == STAR:
                return name, None
            paths = reader.paths(value, f"the attribute {shown(name)}")
            for path in paths:
                if roots := _not_here(path):
                    raise reader.wrong(value.place, f"the attribute of a series does not come from the {roots[0]}")
            for text in (name, *(path.text for path in paths if path.root != "const")):
                if _COUNTS_STEPS.search(text):
                    raise reader.wrong(
                        value.place,
                        f"{shown(text)} counts steps: each would be a time series of its own in the backend",
                    )
            return name, paths

        return tuple(reader.whole(reader.pairs(node, None, what), attribute))

    def table(self, node: Node, what: str) -> tuple[tuple[str, Row], ...]:
        reader = self._reader

        def cell(pair: Pair) -> tuple[str, Any]:
            name, key_node, value = pair
            constant = reader.scalar(value, what)
            if constant is None or not name.strip():
                raise reader.wrong(key_node.place, "a cell of a table has a name and a text, number or boolean")
            return name, constant

        def row(pair: Pair) -> tuple[str, Row]:
            text, _, value = pair
            return text, tuple(reader.whole(reader.pairs(value, None, f"the row {shown(text)}"), cell))

        return tuple(reader.whole(reader.pairs(node, None, what), row))

    # -- plain values ---------------------------------------------------------------------------------

    def kind(self, node: Node, what: str) -> str:
        word = self._reader.text(node, what)
        if word not in KINDS:
            raise self._reader.wrong(node.place, f"unknown kind {shown(word)}{suggest(word, KINDS)}")
        return word

    def unit(self, node: Node, what: str) -> str:
        word = self._reader.text(node, what)
        if not _UNIT.fullmatch(word):
            raise self._reader.wrong(node.place, f"{shown(word)} is no unit (at most 63 ASCII characters)")
        return word

    def boundaries(self, node: Node, what: str) -> tuple[float, ...]:
        reader = self._reader
        found = reader.whole(node if node.is_sequence else (node,), lambda item: reader.scalar(item, what))
        numbers = [float(n) for n in found if isinstance(n, (int, float)) and not isinstance(n, bool)]
        rising = numbers == sorted(set(numbers))
        if len(numbers) != len(found) or not numbers or not rising or not all(map(math.isfinite, numbers)):
            raise reader.wrong(node.place, f"{what} must be a list of rising numbers")
        return tuple(numbers)

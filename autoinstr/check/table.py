"""Spans, their attributes and series against releases, as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from autoinstr.check.facts import Facts
from autoinstr.check.outcome import MISSING, THERE, Outcome
from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.maps.model import SpanEntry

_MARKS = {THERE: "yes", MISSING: "**missing**"}


def table(outcomes: Sequence[tuple[Facts, Outcome]]) -> str:
    """A line for each span, each attribute and each series; a column for each source: `yes`, `-` (absent) or `missing`.

    A name with several places is there if one of them is, an attribute if one of the spans is that have it.
    """
    spans: _Table = {}
    attributes: _Table = {}
    series: _Table = {}
    carried: dict[str, dict[str, None]] = {}
    for column, (_, outcome) in enumerate(outcomes):
        for row in outcome.rows:
            if isinstance(row.entry, SeriesEntry):
                _note(series, row.entry.name, row.entry.kind, column, row.state)
            elif isinstance(row.entry, SpanEntry):
                if row.entry.opens:
                    _note(spans, row.entry.name, row.entry.group, column, row.state)
                for key in _attributes(row.entry):
                    carried.setdefault(key, {})[row.entry.name] = None
                    _note(attributes, key, "", column, row.state)
    for key, names in carried.items():
        attributes[key] = (_short(list(names), list(spans)), attributes[key][1])
    tables = (("Span | Group", spans), ("Attribute | Spans", attributes), ("Series | Kind", series))
    releases = [facts.release for facts, _ in outcomes]
    return "\n\n".join("\n".join(_lines(head, found, releases)) for head, found in tables if found)


_Table: TypeAlias = "dict[str, tuple[str, dict[int, set[str]]]]"
"""Name → what is said of it, and the states of its rows in each column."""


def _note(table: _Table, name: str, about: str, column: int, state: str) -> None:
    table.setdefault(name, (about, {}))[1].setdefault(column, set()).add(state)


def _attributes(entry: SpanEntry) -> list[str]:
    counted = [entry.coalesce.count] if entry.coalesce is not None and entry.coalesce.count else []
    return [*(key for key, _ in entry.attributes), *counted]


def _short(names: list[str], known: list[str]) -> str:
    """Span names as a cell; `a.b.*` for all of several that begin with these two words."""
    found: dict[str, None] = {}
    for name in names:
        family = ".".join(name.split(".")[:2]) + "."
        kin = [other for other in known if other.startswith(family)]
        whole = len(kin) > _MANY and all(other in names for other in kin)
        found[f"`{family}*`" if whole else f"`{name}`"] = None
    return ", ".join(found)


_MANY = 2


def _lines(head: str, names: _Table, releases: Sequence[str]) -> list[str]:
    lines = [f"| {head} | " + " | ".join(releases) + " |"]
    lines.append("|---|---|" + "---|" * len(releases))
    for name, (about, columns) in names.items():
        cells = []
        for column in range(len(releases)):
            states = columns.get(column, set())
            cells.append(next((mark for state, mark in _MARKS.items() if state in states), "-"))
        lines.append(f"| `{name}` | {about} | " + " | ".join(cells) + " |")
    return lines

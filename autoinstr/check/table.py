"""Spans and series against releases, as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from autoinstr.check.facts import Facts
from autoinstr.check.outcome import MISSING, THERE, Outcome
from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.maps.model import SpanEntry

_MARKS = {THERE: "yes", MISSING: "**missing**"}


def table(outcomes: Sequence[tuple[Facts, Outcome]]) -> str:
    """A line for each span name, then for each series; a column for each source: `yes`, `-` (absent) or `missing`.

    A name with several places is there if one of them is.
    """
    spans: dict[str, str] = {}
    series: dict[str, str] = {}
    for _, outcome in outcomes:
        for row in outcome.rows:
            if isinstance(row.entry, SeriesEntry):
                series.setdefault(row.entry.name, row.entry.kind)
            elif isinstance(row.entry, SpanEntry) and row.entry.opens:
                spans.setdefault(row.entry.name, row.entry.group)
    tables = [_lines(head, names, outcomes) for head, names in (("Span | Group", spans), ("Series | Kind", series))]
    return "\n\n".join("\n".join(lines) for lines in tables if lines)


def _lines(head: str, names: dict[str, str], outcomes: Sequence[tuple[Facts, Outcome]]) -> list[str]:
    if not names:
        return []
    lines = [f"| {head} | " + " | ".join(facts.release for facts, _ in outcomes) + " |"]
    lines.append("|---|---|" + "---|" * len(outcomes))
    for name, kind in names.items():
        cells = []
        for _, outcome in outcomes:
            states = {
                row.state
                for row in outcome.rows
                if row.entry.name == name and not (isinstance(row.entry, SpanEntry) and not row.entry.opens)
            }
            cells.append(next((mark for state, mark in _MARKS.items() if state in states), "-"))
        lines.append(f"| `{name}` | {kind} | " + " | ".join(cells) + " |")
    return lines

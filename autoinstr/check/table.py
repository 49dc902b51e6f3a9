"""Spans against releases, as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from autoinstr.check.facts import Facts
from autoinstr.check.fitting import MISSING, THERE, Outcome

_MARKS = {THERE: "yes", MISSING: "**missing**"}


def table(outcomes: Sequence[tuple[Facts, Outcome]]) -> str:
    """A line for each span name, a column for each source: `yes`, `-` (absent there) or `missing`.

    A name with several places is there if one of them is.
    """
    names: dict[str, str] = {}
    for _, outcome in outcomes:
        for row in outcome.rows:
            names.setdefault(row.entry.name, row.entry.group)
    lines = [
        "| Span | Group | " + " | ".join(facts.release for facts, _ in outcomes) + " |",
        "|---|---|" + "---|" * len(outcomes),
    ]
    for name, group in names.items():
        cells = []
        for _, outcome in outcomes:
            states = {row.state for row in outcome.rows if row.entry.name == name}
            cells.append(next((mark for state, mark in _MARKS.items() if state in states), "-"))
        lines.append(f"| `{name}` | {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

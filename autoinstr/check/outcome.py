"""What a check found: each row of the maps against one source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.maps.model import ArgumentsEntry, Place, SpanEntry

THERE: Final = "there"
ABSENT: Final = "absent"
MISSING: Final = "missing"


@dataclass(frozen=True)
class Finding:
    """Something of a row that is not in the source, and where the map says it."""

    place: Place
    span: str
    """The name of the span or the series, or the function that is given arguments."""
    text: str


@dataclass
class Row:
    """One entry of a map against one source.

    `state` is `there`, `absent` (the release has no such thing: its module does not exist, or the row is
    optional) or `missing`; the findings say why.
    """

    entry: SpanEntry | SeriesEntry | ArgumentsEntry
    state: str = THERE
    findings: list[Finding] = field(default_factory=list)
    targets: int = 0
    labels: int = 0
    arguments: int = 0
    keys: int = 0
    parts: dict[str, Part] = field(default_factory=dict)
    """What is there of a row that is true of several places: its targets, and who opens its labels."""


@dataclass(frozen=True)
class Part:
    """One of the places of a row. `module`: where it lies, as another one there may have taken over from it."""

    module: str
    place: Place
    gone: str
    """What is to be said where it is there no more."""


@dataclass
class Outcome:
    """Every row of some maps against one source."""

    rows: list[Row] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        return [finding for row in self.rows if row.state == MISSING for finding in row.findings]

    @property
    def absent(self) -> list[Finding]:
        return [finding for row in self.rows if row.state == ABSENT for finding in row.findings]

    @property
    def counts(self) -> dict[str, int]:
        """How many targets, labels, arguments and logger keys were found."""
        there = [row for row in self.rows if row.state == THERE]
        return {
            "targets": sum(row.targets for row in there),
            "labels": sum(row.labels for row in there),
            "arguments": sum(row.arguments for row in there),
            "logger keys": sum(row.keys for row in there),
        }


def note_losses(outcome: Outcome, before: Outcome) -> None:
    """Make a row that is absent now, and was there in an earlier release, a missing one; so, too, one of its parts."""
    there = {id(row.entry): row for row in before.rows if row.state == THERE}
    for row in outcome.rows:
        earlier = there.get(id(row.entry))
        if earlier is None or row.state == MISSING:
            continue
        if row.state == THERE:
            new = {part.module for key, part in row.parts.items() if key not in earlier.parts}
            lost = [part for key, part in earlier.parts.items() if key not in row.parts and part.module not in new]
            row.findings = [Finding(part.place, row.entry.name, part.gone) for part in lost]
        if row.state == ABSENT or row.findings:
            row.state = MISSING

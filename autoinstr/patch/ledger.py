"""What was patched, what waits, what is missing and what was refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autoinstr.maps.model import Place

PENDING = "pending"
APPLIED = "applied"
MISSING = "missing"
REFUSED = "refused"
UNDONE = "undone"


@dataclass
class Record:
    """One entry's claim on one target, and its state."""

    span: str
    target: str
    place: Place
    state: str = PENDING
    why: str = ""


@dataclass
class Installed:
    """One replaced attribute: what undo needs."""

    found: Any
    new: Any
    plans: list[Any]
    records: list[Record]
    stale: list[str] = field(default_factory=list)
    """`module.name` of references to the original that were taken before it was patched."""


@dataclass
class Ledger:
    """Every record, in the order of the maps, and every replaced attribute, in the order of patching."""

    records: list[Record] = field(default_factory=list)
    installed: list[Installed] = field(default_factory=list)

    def in_state(self, state: str) -> list[Record]:
        return [record for record in self.records if record.state == state]

"""What was patched, what waits, what is missing and what was refused, with the reason.

A record's states: `pending` until its module is imported, then `applied`, `missing` or `refused`, and `undone`
after all was undone.
"""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass, field
from typing import Any

from autoinstr.maps.model import Place
from autoinstr.patch import functions

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
    said: bool = False
    """It is missing, and was said to be: it is not optional, and no alternative of it is there."""


@dataclass(eq=False)
class Installed:
    """One replaced attribute: what stands there now, and what undo needs."""

    found: Any
    new: Any
    plans: list[Any]
    records: list[Record]
    function: Any = None
    """The wrapper that runs when the attribute is called."""
    stale: list[str] = field(default_factory=list)
    """`module.name` of references to the original that were taken before it was patched."""
    retired: bool = False
    """Undone. Where somebody else has wrapped it, it is still called, and does nothing but call on."""

    def __post_init__(self) -> None:
        if isinstance(self.function, types.FunctionType):
            _by_function[self.function] = self

    def undo(self) -> bool:
        """Put back what was there; False where somebody has wrapped or replaced it since."""
        self.retired = True
        restored = bool(self.found.restore(self.new))
        if restored and isinstance(self.function, types.FunctionType):
            _by_function.pop(self.function, None)
        return restored


_by_function: weakref.WeakKeyDictionary[types.FunctionType, Installed] = weakref.WeakKeyDictionary()


def installed_as(function: Any) -> Installed | None:
    """The patch that `function` is the wrapper of, whichever patcher installed it.

    Only true functions are looked up: a proxy of somebody else's is equal to what it wraps.
    """
    return _by_function.get(function) if type(function) is types.FunctionType else None


def carries(function: Any, plan: Any) -> bool:
    """Whether a call of `function` passes through a patch of `plan`, under wrappers of others too."""
    for _ in range(100):
        installed = installed_as(function)
        if installed is not None and not installed.retired and any(p is plan for p in installed.plans):
            return True
        try:
            function = functions.beneath(function)
        except Exception:
            return False
    return False


@dataclass
class Ledger:
    """Every record, in the order of the maps, and every replaced attribute, in the order of patching."""

    records: list[Record] = field(default_factory=list)
    installed: list[Installed] = field(default_factory=list)

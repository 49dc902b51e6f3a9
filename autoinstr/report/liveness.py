"""Whether a process of a run lives, and up to when what it has open is known to have been open."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from autoinstr.journal import identity
from autoinstr.journal.reader import Process, Run

State: TypeAlias = 'Literal["alive", "ended", "killed", "not ended"]'
"""`killed` is gone without an end of its own: a signal, `os._exit`, the OOM killer. `not ended` is unknown."""
STATES: tuple[State, ...] = ("alive", "ended", "killed", "not ended")


def state_of(process: Process) -> tuple[State, str]:
    """The state of a process, and how that is known."""
    if process.ended:
        return "ended", "it recorded its end"
    if process.unreadable:
        return "not ended", f"its journal can't be read: {process.unreadable}"
    known = identity.state_of(process.pid, process.identity)
    if known == "alive":
        return "alive", f"pid {process.pid} runs on this machine, with the same start time"
    if known == "gone" and process.lost:
        return "not ended", f"pid {process.pid} is gone, and its end may be among the records that could not be written"
    if known == "gone":
        return "killed", f"pid {process.pid} is gone from this machine, and its end is not on record"
    return "not ended", "its end is not on record, and only its own machine could know more"


def open_until_ns(run: Run, process: Process, now_ns: int | None = None) -> int:
    """The moment up to which the open spans of a process are known to have been open.

    `now_ns` is the reader's clock: a process that lives, and writes nothing because it hangs, is still in them. Of
    a process that nobody knows more of, the run's last record tells: the others went on while it wrote nothing.
    """
    state, _ = state_of(process)
    if state == "alive":
        return time.time_ns() if now_ns is None else now_ns
    last_ns = process.last_ns if state in ("ended", "killed") else run.last_ns
    return last_ns or 0

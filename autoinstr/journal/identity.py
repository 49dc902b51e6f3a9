"""What tells a process from a later one with the same id: the machine's boot, the pid namespace, the start time.

Read from Linux's `/proc`; elsewhere there is no identity, and nobody can say whether a process is alive.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")
_STATE, _START_TICKS = 0, 19
"""Fields 3 and 22 of `/proc/<pid>/stat` (proc_pid_stat(5)), counted after the command name in parentheses."""


def of_process(pid: int | None = None) -> str | None:
    """`<boot id> <pid namespace> <start in clock ticks since boot>`, or None: not on Linux, or no such process.

    A zombie is no process any more: it has died, and only its parent has not asked how.
    """
    try:
        number = os.getpid() if pid is None else pid
        fields = (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
        if fields[_STATE] in "ZX":
            return None
        return f"{_machine()} {fields[_START_TICKS]}"
    except (OSError, IndexError, ValueError):
        return None


def state_of(pid: int | None, identity: str | None) -> Literal["alive", "gone"] | None:
    """Whether the process that had this id and identity lives. None where this machine can't know."""
    if pid is None or not identity:
        return None
    try:
        here = _machine()
    except OSError:
        return None
    if identity.rpartition(" ")[0] != here:
        return None  # another machine, another boot of this one, or another container
    return "alive" if of_process(pid) == identity else "gone"


def _machine() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"

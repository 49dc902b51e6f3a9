"""File descriptors of ours in a process that closes all that are open, as a daemon does (`os.closerange`).

Their numbers become somebody else's: a library that goes on writing to a number writes into a file of the user's.
So ours lie high, where few processes come, are compared before they are used, and those that a library holds
(gRPC's) are given up before all are closed.
"""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable

_HIGH = 200
"""Descriptors from here on are free: where standard error is closed, a file that is opened would become it."""
_MANY = 64
"""Whoever closes so many at once closes what is not his."""

Identity = tuple[int, int, bool]


def moved_high(low: int) -> int:
    """The descriptor under a high number, if the process may have one; `low` is closed then."""
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the limit on open files is lower
        return low
    os.close(low)
    return high


def identity_of(descriptor: int) -> Identity | None:
    """What tells a file from another that was opened under its number, and from itself once it has been deleted.

    None where nothing is open there.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_nlink == 0


def deleted(identity: Identity | None) -> Identity | None:
    """The identity of the same file after its deletion."""
    return None if identity is None else (identity[0], identity[1], True)


def before_all_are_closed(act: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Call `act` before `os.closerange` closes many, and what it returns after. Returns what ends that."""
    original = os.closerange

    @functools.wraps(original)
    def closerange(fd_low: int, fd_high: int, /) -> None:
        if fd_high - fd_low < _MANY:
            return original(fd_low, fd_high)
        after = None
        try:
            after = act()
        except Exception:  # all are closed all the same
            pass
        try:
            original(fd_low, fd_high)
        finally:
            if after is not None:
                after()

    os.closerange = closerange

    def end() -> None:
        if os.closerange is closerange:
            os.closerange = original

    return end

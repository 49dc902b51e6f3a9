"""`rl.host.memory.*`: the memory of a node, told by one process of the run on it, however many ranks it has.

Who tells holds a lock on a file with the node's name in the run's folder, which containers of one node share while
their temporary folders are their own. Without a journal there is no such folder, and some storage that nodes share
knows no locks: then a name of the node's abstract sockets is held, which leaves nothing behind. When the holder ends,
the next process to be asked takes over. Only Linux tells (`/proc/meminfo`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Observation

from autoinstr import descriptors

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

_MEMINFO = Path("/proc/meminfo")


class NodeLock:
    """Held by one process of a run on a node; let go of by its end, however it ends.

    `run_folder` is where the run's journal is, if it has one.
    """

    def __init__(self, run_id: str, run_folder: Path | None = None) -> None:
        digest = hashlib.sha256(run_id.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._ways: list[Callable[[], int | None]] = [lambda: _take_name(f"\0autoinstr-{os.getuid()}-{digest}")]
        """How it may be taken: the first that works for anybody counts, for all processes of the node."""
        if run_folder is not None:
            path = run_folder / f"{socket.gethostname()}.lock"
            self._ways.insert(0, lambda: _lock(path))
        self._held: int | None = None
        self._identity: descriptors.Identity | None = None
        self._pid = 0

    def is_ours(self) -> bool:
        """Whether this process holds it; takes it where nobody does."""
        pid = os.getpid()
        if self._held is not None:
            still = descriptors.identity_of(self._held) == self._identity  # a daemon closes all, and opens others
            if still and self._pid == pid:
                return True
            if still:  # a forked child: the lock is its parent's
                os.close(self._held)
            self._held = None
        for take in self._ways:
            try:
                held = take()
            except OSError:
                continue
            if held is None:
                return False
            self._held = descriptors.moved_high(held)
            self._identity, self._pid = descriptors.identity_of(self._held), pid
            return True
        return False


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock on a file, or None where another process does.

    Raises:
        OSError: where nobody can lock the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return file


def _take_name(name: str) -> int | None:
    """A descriptor that holds a name of Linux's abstract namespace of sockets, or None where another process does.

    Raises:
        OSError: where there are no such names.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        try:
            holder.bind(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        return holder.detach()


def observe(meter: Meter, run_id: str, run_folder: Path | None = None) -> None:
    """Make the gauges, where the node tells its memory."""
    if not _MEMINFO.exists():
        return
    lock = NodeLock(run_id, run_folder)

    def gauge(name: str, about: str, *fields: str) -> None:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            if not lock.is_ours():
                return []
            found = meminfo()
            if any(field not in found for field in fields):
                return []
            first, *less = (found[field] for field in fields)
            return [Observation(first - sum(less))]

        meter.create_observable_gauge(name, [read], "By", about)

    gauge("rl.host.memory.total", "memory of the node", "MemTotal")
    gauge("rl.host.memory.available", "memory that can be had without swapping", "MemAvailable")
    gauge("rl.host.memory.used", "total less available", "MemTotal", "MemAvailable")


def meminfo(path: Path = _MEMINFO) -> dict[str, int]:
    """The fields of `/proc/meminfo`, in bytes; empty where it can't be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdigit():
            found[name] = int(number) * (1024 if unit == "kB" else 1)
    return found

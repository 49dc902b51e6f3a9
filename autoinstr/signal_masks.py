"""Threads that take no signals.

A program that waits for a signal (`signal.sigwait`, a signalfd, a block of code that must not be interrupted) blocks it
in its threads. The kernel gives a signal to any thread that does not block it: in one of ours it would run the handler
after all, or kill the process. So ours, and those of OpenTelemetry's SDK, begin with all signals blocked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_OF_THE_THREADS_OWN = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGABRT"}
"""What a thread does to itself: blocked, it would kill without a word of faulthandler's."""
_BLOCKED = frozenset(
    number for number in signal.valid_signals() if getattr(number, "name", "") not in _OF_THE_THREADS_OWN
)


@contextlib.contextmanager
def no_signals() -> Iterator[None]:
    """Threads that this thread starts meanwhile block all signals; this one gets them when it is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def no_signals_over_forks() -> Iterator[None]:
    """The same, also for threads that are begun again after a fork by what is set up meanwhile (the SDK, gRPC).

    `os.register_at_fork` calls after a fork in the order of registration, and gRPC's own handlers come before.
    """
    masks: dict[int, set[int | signal.Signals]] = {}

    def block() -> None:
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)

    def restore() -> None:
        before = masks.pop(threading.get_ident(), None)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        with no_signals():
            yield
    finally:
        os.register_at_fork(before=block, after_in_parent=restore, after_in_child=restore)

"""The exporters' connections, over a fork and where all descriptors are to be closed.

A forked child gets connections of its own. Nobody can move the descriptors of a connection out of the way: it is given
up while no export is at work, and the next batch makes a new one.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoinstr.exporting import rejections
from autoinstr.notices import say
from autoinstr.patience import within

_LOOKS_AT_GRPC = 500
"""How often to look, a millisecond apart, whether gRPC has ended its threads."""
_HELD_SECONDS = 2.0


class Exports:
    """The exports that are at work in this process, which can be held up for a moment. `with` is one export."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._held = False
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._held = False

    def __enter__(self) -> None:
        with self._changed:
            within(_HELD_SECONDS, lambda seconds: self._changed.wait_for(lambda: not self._held, seconds))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count = max(0, self._count - 1)
            self._changed.notify_all()

    def hold(self) -> None:
        """No export begins until `release`; those at work come to their end, unless they take too long."""
        with self._changed:
            self._held = True
            within(_HELD_SECONDS, lambda seconds: self._changed.wait_for(lambda: not self._count, seconds))

    def release(self) -> None:
        """Exports go on."""
        with self._changed:
            self._held = False
            self._changed.notify_all()


AT_WORK = Exports()


def let_go_of_descriptors(guards: Iterable[Any]) -> None:
    """Close the exporters' connections, whose descriptors nobody can move. Their next batch makes new ones."""
    for guarded in guards:
        exporter = guarded._exporter
        for holder in rejections.holders_of_sessions(exporter):
            holder._session.close()  # which can be used again
        if not hasattr(exporter, "_initialize_channel_and_stub"):
            continue
        guarded._inherited = True
        channel, exporter._channel, exporter._client = exporter._channel, None, None
        if channel is not None:
            channel.close()
    _wait_for_the_end_of_grpc()


def _wait_for_the_end_of_grpc() -> None:
    """With the last channel gRPC ends its threads, which close what is theirs; one that finds it closed aborts."""
    tasks = Path("/proc/self/task")
    for _ in range(_LOOKS_AT_GRPC):  # a program may have channels of its own
        if not any(map(_is_of_grpc, tasks.glob("*/comm"))):
            return
        time.sleep(0.001)


def _is_of_grpc(comm: Path) -> bool:
    try:
        return comm.read_text().startswith(("grpc_", "event_engine", "lifeguard"))
    except OSError:  # it has just ended
        return False


_abandoned: list[Any] = []
"""Connections of the parent that a forked child must neither use nor close: they stay referred to."""


def renew_connections(exporter: Any) -> None:
    """Give an OTLP exporter that came through a fork connections of its own. Never raises.

    Two processes that write to one HTTP connection garble each other's requests.
    """
    try:
        if hasattr(exporter, "_initialize_channel_and_stub"):
            _abandoned.append((getattr(exporter, "_channel", None), getattr(exporter, "_client", None)))
            exporter._initialize_channel_and_stub()
        for holder in rejections.holders_of_sessions(exporter):
            _abandoned.append(holder._session)
            holder._session = copy.deepcopy(holder._session)
    except Exception as error:
        say(f"an exporter could not be renewed after a fork: {type(error).__name__}: {error}", once="renew")

"""Span and trace ids that no seed repeats.

The SDK's default generator draws from the global `random`: frameworks seed it alike on every rank, which
gives all ranks the same ids, and drawing from it changes the user's random stream. Ours asks the operating
system. A run is one trace: spans without a parent get the trace id that belongs to the run's id, in every
process of the run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from opentelemetry.sdk.trace.id_generator import IdGenerator

_CHUNK = 8 * 64


def trace_id_of(run_id: str) -> int:
    """The 128-bit trace id of a run (never zero), the same in every process and on every Python.

    `random.Random` of a text seeds itself by the text's SHA-512; `hashlib` would load OpenSSL for the same. It is
    an instance of our own: the global one is the user's.
    """
    return random.Random(f"autoinstr run {run_id}").getrandbits(128) or 1


class RunIdGenerator(IdGenerator):
    """One trace id for the run, 64 random bits for each span."""

    def __init__(self, run_id: str) -> None:
        self._trace_id = trace_id_of(run_id)
        self._pid = os.getpid()
        self._ids: list[int] = []
        # a forked child that used up its parent's ids would repeat them
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._ids = []

    def generate_trace_id(self) -> int:
        return self._trace_id

    def is_trace_id_random(self) -> bool:
        return False

    def generate_span_id(self) -> int:
        while True:
            try:
                span_id = self._ids.pop()
            except IndexError:  # one system call for many ids; each list is used by whoever pops from it
                self._ids = _random_ids()
                continue
            if span_id:
                return span_id


def _random_ids(read: Callable[[int], bytes] = os.urandom) -> list[int]:
    data = read(_CHUNK)
    return [int.from_bytes(data[i : i + 8], "big") for i in range(0, _CHUNK, 8)]

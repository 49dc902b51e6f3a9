"""What the bench traces: functions that do nothing, so that what is measured is the tracing.

It is loaded under one name for each side of a comparison, so that a patch of one side leaves the other alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def step(index: int, phase: str) -> int:
    return index


def tick(index: int, phase: str) -> int:
    """Traced without attributes."""
    return index


async def step_async(index: int, phase: str) -> int:
    return index


def steps(count: int, phase: str) -> Iterator[int]:
    yield from range(count)


class Timer:
    """Like NeMo RL's: one factory of `with` blocks that serves every label."""

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        yield

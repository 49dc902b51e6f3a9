"""Waiting with a bound that a machine which stands still does not use up."""

from __future__ import annotations

from collections.abc import Callable

_SLICE_SECONDS = 0.1


def within(seconds: float, wait: Callable[[float], bool]) -> bool:
    """Whether `wait` succeeds within so many seconds in which this process runs; `wait` is told for how long to wait.

    A process that was stopped, or whose machine stood still, finds one long wait over as it goes on, before the thread
    that it waits for has had a turn. Of many short ones that costs one.
    """
    return any(wait(min(seconds, _SLICE_SECONDS)) for _ in range(max(1, round(seconds / _SLICE_SECONDS))))

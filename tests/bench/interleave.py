"""Two sides measured in turns, A B B A A B, in one process: noise of the machine meets both alike.

What is reported is the median over rounds of the ratio (or difference) of the two neighbours in time. The
garbage collector stays on: what a span leaves to it is part of the span's cost.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from statistics import median, quantiles
from typing import Any

CALLS = 200
"""Calls in one sample: fewer than the spans that wake a batch processor's thread (512)."""
ROUNDS = 400
WARM_UP = 5


@dataclass
class Side:
    """One way of doing the work. `sample` gives nanoseconds per call; `between` runs after it, untimed.

    `exported` counts the spans that came out. Where it is given, every sample must have brought `spans` of them.
    """

    name: str
    sample: Callable[[], float]
    between: Callable[[], Any] = lambda: None
    exported: Callable[[], int] | None = None
    spans: int = CALLS

    def take(self) -> float:
        before = self.exported() if self.exported is not None else 0
        took = self.sample()
        self.between()
        if self.exported is not None and self.exported() - before != self.spans:
            raise SystemExit(f"{self.name}: {self.exported() - before} spans came out of {self.spans} calls")
        return took


def calling(function: Callable[[int, str], Any], calls: int = CALLS) -> Callable[[], float]:
    """Samples of `function(7, "train")`."""

    def sample() -> float:
        start = time.perf_counter_ns()
        for _ in repeat(None, calls):
            function(7, "train")
        return (time.perf_counter_ns() - start) / calls

    return sample


@dataclass
class Spread:
    """Order statistics of one quantity over the rounds."""

    median: float
    minimum: float
    p25: float
    p75: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        p25, _, p75 = quantiles(values, n=4)
        return cls(median(values), min(values), p25, p75)


@dataclass
class Comparison:
    """Nanoseconds per call of both sides, and of their ratio and difference, round by round."""

    ours: Spread
    other: Spread
    ratio: Spread
    difference: Spread
    rounds: int


def compare(ours: Side, other: Side, rounds: int = ROUNDS, warm_up: int = WARM_UP) -> Comparison:
    """Measure both in turns."""
    for side in (ours, other):
        for _ in range(warm_up):
            side.take()
    gc.collect()
    found: dict[str, list[float]] = {"ours": [], "other": []}
    for number in range(rounds):
        order = [("ours", ours), ("other", other)]
        for key, side in order if number % 2 else reversed(order):
            found[key].append(side.take())
    pairs = list(zip(found["ours"], found["other"], strict=True))
    return Comparison(
        Spread.of(found["ours"]),
        Spread.of(found["other"]),
        Spread.of([a / b for a, b in pairs]),
        Spread.of([a - b for a, b in pairs]),
        rounds,
    )

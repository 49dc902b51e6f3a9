"""Named stopwatches: the labels of a training loop are opened here, and nowhere else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

logger = logging.getLogger(__name__)


class Timer:
    _REDUCTION_FUNCTIONS = {
        "mean": np.mean,
        "median": np.median,
        "min": np.min,
        "max": np.max,
        "std": np.std,
        "sum": np.sum,
        "count": len,
    }

    def __init__(self, context: dict[str, object] | None = None) -> None:
        self._timers: dict[str, list[float]] = {}
        self._start_times: dict[str, float] = {}
        self._context = dict(context or {})

    def start(self, label: str, should_log: bool = True) -> None:
        if label in self._start_times:
            raise ValueError(f"{label!r} was started and has not been stopped")
        self._start_times[label] = time.perf_counter()
        if should_log:
            logger.debug("%s start %s", label, self._context)

    def stop(self, label: str, should_log: bool = True) -> float:
        """Seconds since `start(label)`. Raises ValueError when that label does not run."""
        if label not in self._start_times:
            raise ValueError(f"{label!r} does not run; these do: {sorted(self._start_times)}")
        elapsed = time.perf_counter() - self._start_times.pop(label)
        self._timers.setdefault(label, []).append(elapsed)
        if should_log:
            logger.debug("%s stop %s after %.4f s", label, self._context, elapsed)
        return elapsed

    def record(self, label: str, elapsed: float) -> None:
        self._timers.setdefault(label, []).append(elapsed)

    @contextmanager
    def time(self, label: str, should_log: bool = True) -> Generator[None, None, None]:
        self.start(label, should_log)
        try:
            yield
        finally:
            self.stop(label, should_log)

    def get_elapsed(self, label: str) -> list[float]:
        return self._timers[label]

    def get_latest_elapsed(self, label: str) -> float:
        return self._timers[label][-1]

    def reduce(self, label: str, operation: str = "mean") -> float:
        return self._REDUCTION_FUNCTIONS[operation](self._timers[label])

    def get_timing_metrics(self, reduction_op: str | dict[str, str] = "mean") -> dict[str, float | list[float]]:
        """One number per label; the whole list for a label that `reduction_op` (a dict) leaves out."""
        metrics: dict[str, float | list[float]] = {}
        for label, measurements in self._timers.items():
            operation = reduction_op if isinstance(reduction_op, str) else reduction_op.get(label)
            metrics[label] = self.reduce(label, operation) if operation else measurements
        return metrics

    def reset(self, label: str | None = None) -> None:
        for table in (self._timers, self._start_times):
            if label is None:
                table.clear()
            else:
                table.pop(label, None)


class ThreadSafeTimer(Timer):
    """As NeMo RL's: start and stop are locked and call up, `time` is written anew over them."""

    def __init__(self, context: dict[str, object] | None = None) -> None:
        super().__init__(context=context)
        self._lock = threading.RLock()

    def start(self, label: str, should_log: bool = True) -> None:
        with self._lock:
            super().start(label, should_log)

    def stop(self, label: str, should_log: bool = True) -> float:
        with self._lock:
            return super().stop(label, should_log)

    def record(self, label: str, elapsed: float) -> None:
        with self._lock:
            super().record(label, elapsed)

    @contextmanager
    def time(self, label: str, should_log: bool = True) -> Generator[None, None, None]:
        self.start(label, should_log)
        try:
            yield
        finally:
            self.stop(label, should_log)

    def get_timing_metrics(self, reduction_op: str | dict[str, str] = "mean") -> dict[str, float | list[float]]:
        with self._lock:
            return super().get_timing_metrics(reduction_op)

    def reset(self, label: str | None = None) -> None:
        with self._lock:
            super().reset(label)


def convert_to_seconds(time_string: str) -> int:
    """Seconds of `DD:HH:MM:SS`."""
    total = 0
    for part, unit in zip(time_string.split(":"), (86400, 3600, 60, 1), strict=True):
        total += int(part) * unit
    return total


class TimeoutChecker:
    def __init__(self, timeout: str | None = "00:03:45:00", fit_last_save_time: bool = False) -> None:
        self.last_save_time = float("inf") if timeout is None else convert_to_seconds(timeout)
        self.fit_last_save_time = fit_last_save_time
        self.start_time = time.time()
        self.last_saved = False
        self.iteration_times: list[float] = []
        self.previous_iteration_time: float | None = None

    def check_save(self) -> bool:
        """True once: when the time is up, or would be before another iteration could end."""
        if self.last_saved:
            return False
        expected = time.time() - self.start_time
        if self.fit_last_save_time and self.iteration_times:
            expected += sum(self.iteration_times) / len(self.iteration_times)
        self.last_saved = expected >= self.last_save_time
        return self.last_saved

    def start_iterations(self) -> None:
        self.previous_iteration_time = time.time()

    def mark_iteration(self) -> None:
        now = time.time()
        if self.previous_iteration_time is not None:
            self.iteration_times.append(now - self.previous_iteration_time)
        self.previous_iteration_time = now

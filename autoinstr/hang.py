"""The hang watch: what every thread was doing when a step had been open for too long.

A step that is open for longer than `AUTOINSTR_HANG_AFTER` has the Python stacks of its process written into the
journal, once, as the event `autoinstr.hang`; where logs are on it is a log record, and goes wherever they go. Nothing
is stopped or said. Stacks are read from a thread, so a main thread that hangs in a library without holding the GIL (a
collective, a queue) is seen; one that holds it is not.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections import deque
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from autoinstr.signal_masks import no_signals
from autoinstr.spans import GROUP_ATTRIBUTE

if TYPE_CHECKING:
    from autoinstr.journal.writer import JournalProcessor
    from autoinstr.logs.events import LogEvents

STEP_GROUP = "step"
AUTO_FACTOR = 10
AUTO_LEAST_SECONDS = 300.0
"""`auto`: ten times the median of the spans of that name, and never less than five minutes."""

_SEVERITY = (13, "WARN")
_KEPT_DURATIONS = 101
_MOST_FRAMES = 100
_MOST_CHARACTERS = 64 * 1024


class _Open(NamedTuple):
    name: str
    trace_id: int
    since: float


class HangWatch(SpanProcessor):
    """Watches the spans of group `step`. Its thread runs from the first such span on."""

    def __init__(self, events: JournalProcessor | LogEvents, after: float | Literal["auto"]) -> None:
        self._events = events
        self._after = after
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._open: dict[int, _Open] = {}
        self._resting: set[int] = set()
        self._durations: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if not _is_step(span) or span.context is None:
            return
        self._open[span.context.span_id] = _Open(span.name, span.context.trace_id, time.monotonic())
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="autoinstr-hang", daemon=True)
                    with no_signals():
                        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        opened = self._open.pop(span.context.span_id, None) if self._open and span.context else None
        if opened is None:
            return
        self._resting.discard(span.context.span_id)
        if self._after == "auto" and span.start_time is not None and span.end_time is not None:
            kept = self._durations.setdefault(opened.name, deque(maxlen=_KEPT_DURATIONS))
            kept.append((span.end_time - span.start_time) / 1e9)

    def on_rest(self, span: Span, since_ns: int) -> None:
        """A step between two of its blocks (`coalesce`) hangs in none."""
        if span.context.span_id in self._open:
            self._resting.add(span.context.span_id)

    def on_resume(self, span: Span) -> None:
        self._resting.discard(span.context.span_id)

    def limit(self, name: str) -> float:
        """Seconds that a span of that name may be open."""
        if self._after != "auto":
            return self._after
        durations = list(self._durations.get(name, ()))
        return max(AUTO_LEAST_SECONDS, AUTO_FACTOR * statistics.median(durations) if durations else 0.0)

    def _watch(self) -> None:
        pause = 5.0 if self._after == "auto" else min(5.0, max(0.05, self._after / 10))
        told: set[int] = set()
        while True:
            time.sleep(pause)
            try:
                self._look(told)
            except Exception:  # a watch that fails must not be heard of
                pass

    def _look(self, told: set[int]) -> None:
        still_open = dict(self._open)
        told.intersection_update(still_open)
        for span_id, opened in still_open.items():
            open_for = time.monotonic() - opened.since
            if span_id in told or span_id in self._resting or open_for <= self.limit(opened.name):
                continue
            told.add(span_id)
            self._events.event(
                "autoinstr.hang",
                {
                    "autoinstr.span.name": opened.name,
                    "autoinstr.hang.open_for_s": round(open_for, 3),
                    "autoinstr.hang.after_s": round(self.limit(opened.name), 3),
                },
                opened.trace_id,
                span_id,
                severity=_SEVERITY,
                body=python_stacks(),
            )


def python_stacks() -> str:
    """The stack of every thread but the calling one, in the form of `faulthandler`, with the threads' names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    mine = threading.get_ident()
    parts = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        if ident != mine:
            lines = [f'Thread 0x{ident:016x} "{names.get(ident, "?")}" (most recent call first):', *_frames(frame)]
            parts.append("\n".join(lines))
    text = "\n\n".join(parts)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "\n..."


def _frames(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None:
        if len(lines) == _MOST_FRAMES:
            lines.append("  ...")
            break
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return lines


def _is_step(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and bool(scope.attributes) and (scope.attributes or {}).get(GROUP_ATTRIBUTE) == STEP_GROUP

"""Spans as metrics: how long each phase took, so that a metrics backend alone can draw a step's breakdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.maps.model import Place
from autoinstr.metrics.instruments import Instruments
from autoinstr.notices import describe, say
from autoinstr.spans.opening import BUCKET_ATTRIBUTE, is_ours

if TYPE_CHECKING:
    from autoinstr.metrics.instruments import Record

PHASE_DURATION = SeriesEntry(
    "rl.phase.duration",
    Place("autoinstr"),
    kind="histogram",
    unit="s",
    about="time of one phase of the training loop, from the span rl.<algorithm>.<phase>",
    boundaries=(
        0.005,
        0.01,
        0.025,
        0.05,
        0.1,
        0.25,
        0.5,
        1,
        2.5,
        5,
        10,
        25,
        50,
        100,
        250,
        500,
        1000,
        2500,
        5000,
        10000,
    ),
)


class PhaseDurations(SpanProcessor):
    """Records ended spans of ours that are named `rl.<algorithm>.<phase>`, for the algorithms that maps name.

    The attributes are `rl.algorithm`, `rl.phase` and `rl.bucket` (absent on an umbrella). The span itself is the
    exemplar, where the SDK keeps exemplars.
    """

    def __init__(self, instruments: Instruments) -> None:
        self.off = False
        self._instruments = instruments
        self._algorithms: set[str] = set()
        self._phases: dict[str, dict[Any, dict[str, str]] | None] = {}
        self._record: Record | None = None

    def add_algorithms(self, algorithms: Iterable[str | None]) -> None:
        """Take up the algorithms of maps that became active."""
        self._algorithms.update(name for name in algorithms if name)
        self._phases.clear()

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Nothing is known yet."""

    def on_end(self, span: ReadableSpan) -> None:
        name = span.name
        try:
            by_bucket = self._phases[name]
        except KeyError:
            by_bucket = self._phase(name)
        if by_bucket is None or self.off:
            return
        try:
            context = span.get_span_context()
            if context is None or not is_ours(span):
                return
            if span.end_time is None or span.start_time is None:
                return
            bucket = (span.attributes or {}).get(BUCKET_ATTRIBUTE)
            attributes = by_bucket.get(bucket) or by_bucket.setdefault(
                bucket, {**by_bucket[None], BUCKET_ATTRIBUTE: str(bucket)}
            )
            record = self._record
            if record is None:
                record = self._record = self._instruments.of(PHASE_DURATION)
            around = trace.set_span_in_context(trace.NonRecordingSpan(context), _EMPTY)
            record((span.end_time - span.start_time) / 1e9, attributes, around)
        except Exception as error:
            say(f"the duration of {name} could not be recorded: {describe(error)}", once=f"phase {name}")

    def _phase(self, name: str) -> dict[Any, dict[str, str]] | None:
        parts = name.split(".", 2)
        found = None
        if len(parts) == 3 and parts[0] == "rl" and parts[1] in self._algorithms:
            found = {None: {"rl.algorithm": parts[1], "rl.phase": parts[2]}}
        self._phases[name] = found
        return found

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


_EMPTY = Context()

"""The time that each goodput bucket claims, as a counter: what a metrics backend needs to tell goodput.

As in a report, a moment belongs to the innermost span with a bucket: what lies inside a span, in the same process, is
taken off its own time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.maps.model import Place
from autoinstr.metrics.instruments import Instruments
from autoinstr.notices import describe, say
from autoinstr.spans.opening import BUCKET_ATTRIBUTE, is_ours

if TYPE_CHECKING:
    from autoinstr.metrics.instruments import Record

BUCKET_DURATION = SeriesEntry(
    "rl.bucket.duration",
    Place("autoinstr"),
    kind="counter",
    unit="s",
    about="time that the spans of a goodput bucket claim; what lies inside a span counts for its own bucket",
)
_PARENTS = 4096
"""Spans whose children's time is kept; a child that ends after its parent would be kept forever."""


class BucketTime(SpanProcessor):
    """Adds each ended span's own time to its bucket.

    Spans that overlap in threads may claim more than the wall clock: the time is that of spans, not of a process.
    """

    def __init__(self, instruments: Instruments) -> None:
        self.off = False
        self._instruments = instruments
        self._record: Record | None = None
        # No lock, which a traced finalizer would wait for: two threads that end children of one span at the very same
        # moment lose one of them.
        self._inside: dict[int, int] = {}

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Nothing is known yet."""

    def on_end(self, span: ReadableSpan) -> None:
        if self.off:
            return
        try:
            context = span.get_span_context()
            if context is None or span.end_time is None or span.start_time is None:
                return
            took = span.end_time - span.start_time
            inside = min(self._inside.pop(context.span_id, 0), took)
            bucket = (span.attributes or {}).get(BUCKET_ATTRIBUTE) if is_ours(span) else None
            if bucket is not None and took > inside:
                record = self._record
                if record is None:
                    record = self._record = self._instruments.of(BUCKET_DURATION)
                record((took - inside) / 1e9, {BUCKET_ATTRIBUTE: str(bucket)}, None)
            parent = span.parent
            claimed = took if bucket is not None else inside
            if claimed and parent is not None and not parent.is_remote:
                if len(self._inside) >= _PARENTS:
                    self._inside.clear()
                self._inside[parent.span_id] = self._inside.get(parent.span_id, 0) + claimed
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"the bucket time of {span.name} could not be recorded: {describe(error)}", once="bucket time")

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True

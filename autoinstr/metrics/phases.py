"""Spans as metrics: how long each phase took, so that a metrics backend alone can draw a step's breakdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.maps.model import Place
from autoinstr.metrics.instruments import Instruments
from autoinstr.notices import describe, say
from autoinstr.spans import GROUP_ATTRIBUTE
from autoinstr.spans.opening import BUCKET_ATTRIBUTE, is_ours

if TYPE_CHECKING:
    from autoinstr.metrics.instruments import Record

_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)

PHASE_DURATION = SeriesEntry(
    "rl.phase.duration",
    Place("autoinstr"),
    kind="histogram",
    unit="s",
    about="time of one phase of the training loop, from the span rl.<algorithm>.<phase>",
    boundaries=_BOUNDARIES,
)
OPERATION_DURATION = SeriesEntry(
    "rl.operation.duration",
    Place("autoinstr"),
    kind="histogram",
    unit="s",
    about="time of an operation that is no phase of a loop: what a worker, an engine or a set-up does, and waits",
    boundaries=_BOUNDARIES,
)
PER_PROMPT = "per_prompt"
"""The group whose spans grow with the batch: their duration is no series."""


class PhaseDurations(SpanProcessor):
    """Records how long ended spans of ours took.

    Spans named `rl.<algorithm>.<phase>`, for the algorithms that maps name, are `rl.phase.duration`, with the
    attributes `rl.algorithm`, `rl.phase` and `rl.bucket` (absent on an umbrella). All others but those of a prompt are
    `rl.operation.duration`, with `rl.operation`, the span's name, `autoinstr.group` and `rl.bucket`. The span itself is
    the exemplar, where the SDK keeps exemplars.
    """

    def __init__(self, instruments: Instruments) -> None:
        self.off = False
        self._instruments = instruments
        self._algorithms: set[str] = set()
        self._kinds: dict[tuple[str, Any, Any], tuple[Record, dict[str, str]] | None] = {}

    def add_algorithms(self, algorithms: Iterable[str | None]) -> None:
        """Take up the algorithms of maps that became active."""
        self._algorithms.update(name for name in algorithms if name)
        self._kinds.clear()

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        """Nothing is known yet."""

    def on_end(self, span: ReadableSpan) -> None:
        if self.off:
            return
        name = span.name
        try:
            context = span.get_span_context()
            if context is None or span.end_time is None or span.start_time is None or not is_ours(span):
                return
            scope: Any = span.instrumentation_scope
            group = (scope.attributes or {}).get(GROUP_ATTRIBUTE)
            kind = (name, group, (span.attributes or {}).get(BUCKET_ATTRIBUTE))
            try:
                found = self._kinds[kind]
            except KeyError:
                found = self._kinds[kind] = self._series(*kind)
            if found is None:
                return
            record, attributes = found
            around = trace.set_span_in_context(trace.NonRecordingSpan(context), _EMPTY)
            record((span.end_time - span.start_time) / 1e9, attributes, around)
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"the duration of {name} could not be recorded: {describe(error)}", once=f"phase {name}")

    def _series(self, name: str, group: Any, bucket: Any) -> tuple[Record, dict[str, str]] | None:
        parts = name.split(".", 2)
        attributes = {} if bucket is None else {BUCKET_ATTRIBUTE: str(bucket)}
        if len(parts) == 3 and parts[0] == "rl" and parts[1] in self._algorithms:
            attributes = {"rl.algorithm": parts[1], "rl.phase": parts[2], **attributes}
            return self._instruments.of(PHASE_DURATION), attributes
        if group == PER_PROMPT:
            return None
        attributes = {"rl.operation": name, GROUP_ATTRIBUTE: str(group), **attributes}
        return self._instruments.of(OPERATION_DURATION), attributes

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


_EMPTY = Context()

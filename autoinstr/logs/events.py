"""Events of ours as log records of OpenTelemetry's, where logs are on: they go where all records go."""

from __future__ import annotations

import time
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context

from autoinstr import __version__


class LogEvents:
    """Emits with the logger provider; has the journal's way of being asked to."""

    def __init__(self, provider: Any) -> None:
        self._logger = provider.get_logger("autoinstr", __version__)

    def event(
        self,
        name: str,
        attributes: dict[str, Any],
        trace_id: int = 0,
        span_id: int = 0,
        severity: tuple[int, str] | None = None,
        body: str | None = None,
    ) -> None:
        """Emit an event, on the span with these ids."""
        span = trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=trace.TraceFlags(1))
        now = time.time_ns()
        self._logger.emit(
            LogRecord(
                timestamp=now,
                observed_timestamp=now,
                context=trace.set_span_in_context(trace.NonRecordingSpan(span), Context()),
                severity_number=SeverityNumber(severity[0]) if severity else None,
                severity_text=severity[1] if severity else None,
                body=body,
                attributes=attributes,
                event_name=name,
            )
        )

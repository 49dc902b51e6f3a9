"""Sending a journal's log records to an OTLP endpoint, as `shipping` does its spans.

A record has no id. It is known by its file and by the moment in which it was observed, in nanoseconds: that is what
the processes have recorded of the batches that they sent themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord

from autoinstr.journal.reader import LOGS_SENT, LOGS_UNSENT
from autoinstr.journal.shipping import Shipper, _File, attributes_of, value_of

_EVENTS = "autoinstr.journal"
"""The scope of the journal's own events, which are no log records."""


class LogShipper(Shipper):
    """Ships the log records of a run, beside the shipper of its spans, whose lock and memory it shares."""

    what = "log records"
    them = "log records (--no-logs leaves them out)"
    passes_over = b'{"resourceSpans"'
    sent_event, unsent_event = LOGS_SENT, LOGS_UNSENT
    ids_attribute = "autoinstr.log_ids"
    endpoints_attribute = "autoinstr.log_endpoints"

    def __init__(self, beside: Shipper, exporter: Any, endpoint: str) -> None:
        self._beside = beside
        super().__init__(
            beside.folder, exporter, endpoint, resend=beside.resend, sleep=beside.sleep, on_wait=beside.on_wait
        )

    @property
    def memory(self) -> str:
        return f"{self._endpoint} logs"

    def _take_lock(self) -> int:
        return self._beside.share_lock()

    def _load_endpoints(self) -> dict[str, Any]:
        return self._beside.endpoints

    def _advance(self, file: _File) -> None:
        if self._seen:  # a journal without log records has nothing to remember
            super()._advance(file)

    def _ids(self, document: dict[str, Any]) -> Iterator[str]:
        for _, _, record in _records(document):
            yield _id(record)

    def _take_rest(self, file: _File, span_id: str, begin: int, rests: bool) -> None:
        """That is the other shipper's."""

    def _key(self, file_name: str, item_id: str) -> str:
        return f"{file_name} {item_id}"

    def _rebuild(self, document: dict[str, Any], item_id: str) -> ReadableLogRecord:
        resource, scope, record = next(found for found in _records(document) if _id(found[2]) == item_id)
        context = Context()
        if record.get("spanId"):
            flags = trace.TraceFlags(int(record.get("flags") or 0) & 0xFF)
            span = trace.SpanContext(int(record["traceId"], 16), int(record["spanId"], 16), False, flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(span), context)
        return ReadableLogRecord(
            LogRecord(
                timestamp=int(record.get("timeUnixNano") or 0) or None,
                observed_timestamp=int(record["observedTimeUnixNano"]),
                context=context,
                severity_text=record.get("severityText"),
                severity_number=SeverityNumber(int(record["severityNumber"])) if record.get("severityNumber") else None,
                body=value_of(record.get("body") or {}),
                attributes=attributes_of(record.get("attributes")),
                event_name=record.get("eventName"),
            ),
            self._resource(resource),
            self._scope(scope),
        )


def _records(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    for of_resource in document.get("resourceLogs", ()):
        for of_scope in of_resource.get("scopeLogs", ()):
            scope = of_scope.get("scope", {})
            if scope.get("name") != _EVENTS:
                for record in of_scope.get("logRecords", ()):
                    if record.get("observedTimeUnixNano"):
                        yield of_resource.get("resource", {}), scope, record


def _id(record: dict[str, Any]) -> str:
    return f"{int(record['observedTimeUnixNano']):016x}"

"""Sending log records without ever costing the run: the guard that spans have, for the exporters of records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autoinstr.exporting.guards import GuardedExporter, guard_batch, key_beside


class GuardedLogExporter(GuardedExporter):
    """A record has no id: it is known by the moment in which it was observed, in nanoseconds."""

    what = "log records"
    queue_variable = "OTEL_BLRP_MAX_QUEUE_SIZE"
    loggers = (
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.proto.grpc._log_exporter",
        "opentelemetry.exporter.otlp.proto.http._log_exporter",
        "opentelemetry.exporter.http.transport",
        "opentelemetry.sdk._shared_internal",
    )

    def identify(self, items: Sequence[Any]) -> list[int]:
        return [item.log_record.observed_timestamp or 0 for item in items]

    def complete(self, items: Sequence[Any]) -> None:
        """A record waits for a second at most, and has the resource of its time."""


def guard(provider: Any, span_guards: Iterable[GuardedExporter]) -> list[GuardedLogExporter]:
    """Wrap the exporter of every batch processor of `provider`; what has another shape stays as it is.

    Where records go where spans go, what fails for both is said once.
    """
    beside = list(span_guards)
    processors = getattr(getattr(provider, "_multi_log_record_processor", None), "_log_record_processors", ())
    return guard_batch(processors, lambda exporter: GuardedLogExporter(exporter, key_beside(beside, exporter)))

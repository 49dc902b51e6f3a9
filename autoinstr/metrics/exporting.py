"""Recording and sending metrics without ever costing the run: the guard that spans have, for metric exporters."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from autoinstr import exporting
from autoinstr.metrics.instruments import uninterrupted_collection
from autoinstr.notices import describe, say

_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.http.transport",
    "opentelemetry.sdk.metrics._internal.export",
)


class GuardedMetricExporter(MetricExporter):
    """`exporter`, bounded, and quiet but for one notice. `once`: the key under which that is said."""

    def __init__(self, exporter: MetricExporter, once: str) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self.endpoint = str(getattr(exporter, "_endpoint", "") or type(exporter).__name__)
        self._exporter = exporter
        self._once = once
        self._closing = False
        self._down = False
        self._inherited = False
        wrong = exporting.wrong_address(exporter)
        self._no_address = wrong is not None
        if wrong is not None:
            say(f"metrics can't be sent to {self.endpoint}: {wrong}", once=once)
        exporting.quieten(_EXPORTER_LOGGERS)
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self._closing = self._down = False
        self._inherited = True

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        if (self._closing and self._down) or self._no_address:
            return MetricExportResult.FAILURE
        if self._inherited:
            self._inherited = False
            exporting.renew_connections(self._exporter)
        exporting.last_words()
        why = ""
        try:
            with exporting.AT_WORK:
                result = self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
        except Exception as error:
            result, why = MetricExportResult.FAILURE, describe(error)
        why = why or exporting.last_words()
        self._down = result is not MetricExportResult.SUCCESS
        if self._down:
            because = f": {why}" if why else ""
            say(f"metrics could not be sent to {self.endpoint}{because}; training goes on", once=self._once)
        return result

    def see_who_is_there(self) -> None:
        """The process ends: where nobody answers, there are no more tries."""
        if self._closing:
            return
        self._closing = True
        why = None if self._no_address else exporting.why_unreachable(self.endpoint)
        if why is None:
            return
        self._down = True
        say(f"metrics could not be sent to {self.endpoint}: {why}; training goes on", once=self._once)
        self._exporter.shutdown()  # also ends a retry that is waiting right now

    def say_what_was_lost(self) -> None:
        """Nothing more: a point that did not arrive has been said, and the next one holds the sums."""

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        if not (self._closing and self._down):
            self._exporter.shutdown(timeout_millis)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def guard(provider: Any, span_guards: Iterable[exporting.GuardedExporter]) -> list[GuardedMetricExporter]:
    """Wrap the exporter of every periodic reader of `provider`; what has another shape stays as it is.

    Where a metric exporter's address is one of the span exporters', what fails for both is said once.
    """
    spans_go_to = {exporting.address(one.endpoint) for one in span_guards}
    readers: Any = getattr(provider, "_metric_readers", None)
    if readers is None:  # older SDKs keep them elsewhere
        readers = getattr(getattr(provider, "_sdk_config", None), "metric_readers", ())
    guards: list[GuardedMetricExporter] = []
    for reader in readers:
        if callable(getattr(reader, "_collect", None)):
            reader._collect = uninterrupted_collection(reader._collect)
        exporter = getattr(reader, "_exporter", None)
        if isinstance(exporter, MetricExporter):
            address = exporting.address(str(getattr(exporter, "_endpoint", "")))
            guarded = GuardedMetricExporter(exporter, "export" if address in spans_go_to else f"export to {address}")
            reader._exporter = guarded
            guards.append(guarded)
    return guards


def count_own_only(provider: Any) -> None:
    """Let a forked child begin at nothing: what its parent has counted, and its gauges, are the parent's to tell.

    The SDK hands them down, and each child would send them again as its own, as long as it lives. Locks that another
    thread of the parent held in that moment would never be free in the child.
    """

    def in_child() -> None:
        try:
            consumer = provider._measurement_consumer
            consumer._lock = threading.Lock()
            for reader, storage in consumer._reader_storages.items():
                storage._lock = threading.RLock()
                storage._instrument_view_instrument_matches = {}
                if hasattr(reader, "_export_lock"):
                    reader._export_lock = threading.Lock()
            for meter in provider._meters.values():
                meter._instrument_registration_lock = threading.Lock()
        except Exception:  # a child must come to life, whatever its SDK looks like
            pass

    os.register_at_fork(after_in_child=in_child)


def leave_random_alone() -> None:
    """Give the SDK's exemplars a random source of their own.

    Each value that is recorded inside a span draws from the global `random`, which training may have seeded.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("opentelemetry.sdk.metrics.") and vars(module).get("randrange") is random.randrange:
            module.randrange = random.Random().randrange  # type: ignore[attr-defined]

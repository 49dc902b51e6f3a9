"""Recording and sending metrics without ever costing the run: the guard that spans have, for metric exporters."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

from autoinstr.exporting.guards import GuardedExporter, key_beside
from autoinstr.metrics.instruments import uninterrupted_collection


class GuardedMetricExporter(GuardedExporter):
    """A point that did not arrive is no loss to count: the next one holds the sums."""

    what = "metrics"
    failure = MetricExportResult.FAILURE
    loggers = (
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry.exporter.http.transport",
        "opentelemetry.sdk.metrics._internal.export",
    )

    def complete(self, items: Any) -> None:
        """Points have the resource of their time."""

    def account(self, items: Any, taken: bool) -> None:
        """Nothing: that it did not arrive has been said."""


def guard(provider: Any, span_guards: Iterable[GuardedExporter]) -> list[GuardedMetricExporter]:
    """Wrap the exporter of every periodic reader of `provider`; what has another shape stays as it is.

    Where a metric exporter's address is one of the span exporters', what fails for both is said once.
    """
    beside = list(span_guards)
    readers: Any = getattr(provider, "_metric_readers", None)
    if readers is None:  # older SDKs keep them elsewhere
        readers = getattr(getattr(provider, "_sdk_config", None), "metric_readers", ())
    guards: list[GuardedMetricExporter] = []
    for reader in readers:
        if callable(getattr(reader, "_collect", None)):
            reader._collect = uninterrupted_collection(reader._collect)
        exporter = getattr(reader, "_exporter", None)
        if isinstance(exporter, MetricExporter):
            guarded = GuardedMetricExporter(exporter, key_beside(beside, exporter))
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

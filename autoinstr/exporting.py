"""Sending spans without ever costing the run: a guard around the user's exporter.

The SDK's exporters retry for many seconds when a collector is down, at exit too, log each try, and the gRPC
one draws its waiting times from the global `random`, which training may have seeded. The guard says once that
the collector can't be reached, counts what was lost, and bounds the end of the process.
"""

from __future__ import annotations

import logging
import random
import socket
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from autoinstr.notices import say

EXIT_SECONDS = 5.0
"""How long the end of the process may wait for a collector that answers."""
_PROBE_SECONDS = 0.5

_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.http.transport",
    "opentelemetry.sdk._shared_internal",
)


class GuardedExporter(SpanExporter):
    """`exporter`, counted and bounded. `endpoint` is only read to name it and to see whether anybody is there."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.warn_of_loss = False
        self._exporter = exporter
        self._endpoint = str(getattr(exporter, "_endpoint", "") or type(exporter).__name__)
        self._closing = False
        self._down = False
        self.lost = 0
        """Spans that the exporter did not take."""
        quieten(_EXPORTER_LOGGERS)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._closing and self._down:
            self.lost += len(spans)
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            result = SpanExportResult.FAILURE
            say(f"spans could not be sent to {self._endpoint}: {type(error).__name__}: {error}", once="export")
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
            self._down = True
            say(f"spans could not be sent to {self._endpoint}; training goes on", once="export")
        else:
            self._down = False
        return result

    def see_who_is_there(self) -> None:
        """The process ends: where nobody answers, there are no more tries."""
        self._closing = True
        if _answers(self._endpoint):
            return
        self._down = True
        say(
            f"spans could not be sent to {self._endpoint}: nobody answers there; training goes on",
            once="export",
        )
        self._exporter.shutdown()  # also ends a retry that is waiting right now

    def shutdown(self) -> None:
        if not (self._closing and self._down):
            self._exporter.shutdown()
        if self.lost and self.warn_of_loss:
            say(f"{self.lost} spans were not sent to {self._endpoint}; AUTOINSTR_JOURNAL=on keeps them on disk")

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _answers(endpoint: str) -> bool:
    """Whether a TCP connection to the endpoint's host and port can be opened now. Unknown forms count as yes."""
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return True
    if not parts.hostname or port is None:
        return True
    try:
        with socket.create_connection((parts.hostname, port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


class _Quiet(logging.Filter):
    """Lets nothing of a logger through: the guard says what there is to say, once."""

    def filter(self, record: logging.LogRecord) -> bool:
        return False


_quiet = _Quiet()


def quieten(names: Sequence[str]) -> None:
    """Put the filter on loggers, once each; no level and no handler changes."""
    for name in names:
        logger = logging.getLogger(name)
        if _quiet not in logger.filters:
            logger.addFilter(_quiet)


def leave_random_alone() -> None:
    """Give OpenTelemetry's modules a random source of their own, where they use the global one."""
    own = random.SystemRandom()
    for name, module in list(sys.modules.items()):
        if not name.startswith("opentelemetry.") or not isinstance(module, types.ModuleType):
            continue
        if vars(module).get("random") is random:
            module.random = own  # type: ignore[attr-defined]


def finish(provider: Any, guards: Sequence[GuardedExporter]) -> None:
    """Flush and shut `provider` down, in at most `EXIT_SECONDS`."""
    for exporter in guards:
        exporter.see_who_is_there()
    # in a thread of its own: neither the SDK's processors nor its exporters promise a bound
    ending = threading.Thread(target=provider.shutdown, name="autoinstr-shutdown", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # the interpreter is too far gone for a new thread
        return
    ending.join(EXIT_SECONDS)
    if ending.is_alive():
        say(f"the exporter is too slow: the run ends after {EXIT_SECONDS:g} s without sending all spans")


def guard(provider: Any) -> list[GuardedExporter]:
    """Wrap the exporter of every batch processor of `provider`; what has another shape stays as it is."""
    guards: list[GuardedExporter] = []
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    for processor in processors:
        batch = getattr(processor, "_batch_processor", None)
        exporter = getattr(batch, "_exporter", None)
        if batch is not None and isinstance(exporter, SpanExporter) and not isinstance(exporter, GuardedExporter):
            guarded = GuardedExporter(exporter)
            batch._exporter = guarded
            guards.append(guarded)
    return guards

"""Sending spans without ever costing the run: a guard around the user's exporter.

The SDK's exporters retry for many seconds when a collector is down, at exit too, log each try, and the gRPC
one draws its waiting times from the global `random`, which training may have seeded. The guard says once that
the collector can't be reached, counts what was lost, and bounds the end of the process. The SDK's queue drops
silently when it is full: the guard counts that too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from opentelemetry.sdk.trace.export import SpanExportResult

from autoinstr import resource
from autoinstr.exporting import rejections
from autoinstr.exporting.connections import AT_WORK, renew_connections
from autoinstr.exporting.failures import QUIET, last_words, quieten, why_unreachable, wrong_address
from autoinstr.notices import describe, say

SPANS_FAIL = "export"
"""The key under which it is said that spans do not arrive."""


class GuardedExporter:
    """`exporter`, counted and bounded. `once` is the key under which it is said that nothing arrives."""

    what = "spans"
    """What is sent, in words: another kind of exporter has a class below this one."""
    queue_variable = "OTEL_BSP_MAX_QUEUE_SIZE"
    failure: Any = SpanExportResult.FAILURE
    """What is answered where nothing is tried."""
    loggers: tuple[str, ...] = (
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.exporter.http.transport",
        "opentelemetry.sdk._shared_internal",
    )
    """Who is quiet from now on."""

    def __init__(self, exporter: Any, once: str = SPANS_FAIL) -> None:
        self.warn_of_loss = False
        self.once = once
        self.endpoint = endpoint_of(exporter)
        """Only read to name it, and to see whether anybody is there."""
        self.on_delivery: Callable[[str, Sequence[int], bool], None] | None = None
        """Told of each batch: the endpoint, the ids of its spans, and whether the exporter took them."""
        self.lost = 0
        """Spans that the exporter did not take."""
        self.dropped = 0
        """Spans that never came to the exporter: its queue was full."""
        self.waiting: Callable[[], int] = lambda: 1
        """How many spans are in the queue in front; unless somebody knows, there may be some."""
        self.rejected = 0
        """Spans that the endpoint took and said that it does not keep."""
        self._exporter = exporter
        self._exporting = False
        self._thread = 0
        self._counting = threading.RLock()
        self._closing = False
        self._looked = False
        self._down = False
        self._inherited = False
        wrong = wrong_address(exporter)
        self._no_address = wrong is not None
        if wrong is not None:
            say(f"{self.what} can't be sent to {self.endpoint}: {wrong}", once=self.once)
        quieten(self.loggers)
        rejections.listen(exporter, self._on_rejected, QUIET.hear)
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.lost = self.dropped = self.rejected = 0
        self._counting = threading.RLock()
        self._closing = self._looked = self._down = self._exporting = False
        self._inherited = True

    def identify(self, items: Sequence[Any]) -> list[int]:
        """What tells an item from all others of this process."""
        return [span.context.span_id for span in items if span.context]

    def complete(self, items: Sequence[Any]) -> None:
        """Add to the items what has been learned since they were made."""
        for span in items:
            resource.complete(span)

    def export(self, items: Any, **how: Any) -> Any:
        """Export by the guarded exporter, with its answer."""
        if (self._closing and self._down) or self._no_address:
            self.account(items, taken=False)
            return self.failure
        if self._inherited:
            self._inherited = False
            renew_connections(self._exporter)
        self.complete(items)
        self._thread = threading.get_ident()
        last_words()
        why = ""
        self._exporting = True
        try:
            # The end marks itself first and looks for exports then: one of both sees the other.
            if self._closing and self._nobody_is_there():
                result = self.failure
            else:
                with AT_WORK:
                    result = self._exporter.export(items, **how)
        except Exception as error:
            result, why = self.failure, describe(error)
        finally:
            self._exporting = False
        taken = result.name == SpanExportResult.SUCCESS.name  # each signal has an enumeration of its own
        self._down = not taken
        why = why or last_words()
        if not taken:
            because = f": {why}" if why else ""
            say(f"{self.what} could not be sent to {self.endpoint}{because}; training goes on", once=self.once)
        self.account(items, taken)
        return result

    def account(self, items: Any, taken: bool) -> None:
        """Count and tell what became of a batch."""
        if not taken:
            self.lost += len(items)
        if self.on_delivery is not None:
            self.on_delivery(self.endpoint, self.identify(items), taken)

    def trouble(self) -> str:
        """What the export that is at work has met with so far; empty where it just takes long."""
        return QUIET.heard.get(self._thread, "") if self._exporting else ""

    def _on_rejected(self, count: int, why: str) -> None:
        self.rejected += count
        rejects = f"rejects {self.what}" if count else f"warns of {self.what}"
        say(f"{self.endpoint} {rejects}{': ' if why else ''}{why}; training goes on", once=f"rejected {self.what}")

    def count_dropped(self, count: int, queue_size: int) -> None:
        """The processor in front has dropped the oldest spans of its queue."""
        with self._counting:
            self.dropped += count
        keeps = "" if self.warn_of_loss else "; the journal keeps them"
        say(
            f"{self.what} come faster than {self.endpoint} takes them: the queue of {queue_size} is full and "
            f"the oldest are dropped{keeps} ({self.queue_variable})",
            once=f"queue of {self.what} full",
        )

    def see_who_is_there(self) -> None:
        """The process ends: where nobody answers, there are no more tries."""
        if self._closing:
            return
        self._closing = True
        # a batch may be between the queue and the exporter, and what is open ends with the process
        if not self._no_address and (self.waiting() or self._exporting):
            self._nobody_is_there()

    def _nobody_is_there(self) -> bool:
        """Look, once. Then it is said, and no try of the exporter goes on."""
        if self._looked:
            return self._down
        self._looked = True
        why = why_unreachable(self.endpoint)
        if why is None:
            return False
        self._down = True
        say(f"{self.what} could not be sent to {self.endpoint}: {why}", once=self.once)
        if not self._inherited:
            self._exporter.shutdown()  # also ends a retry that is waiting right now
        return True

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        # what came through a fork and was never used is the parent's to close
        if not (self._inherited or (self._closing and self._down)):
            self._exporter.shutdown(*args, **kwargs)
        self.say_what_was_lost()

    def say_what_was_lost(self) -> None:
        """One line with the counts, when there is something to count and no journal that has it."""
        if self.rejected:
            say(f"{self.endpoint} has rejected {self.rejected} {self.what}", once=f"all rejected {self.what}")
        lost = self.lost + self.dropped
        if not lost or not self.warn_of_loss:
            return
        dropped = f" ({self.dropped} of them dropped by the full queue)" if self.dropped else ""
        say(
            f"{lost} {self.what} were not sent to {self.endpoint}{dropped}; AUTOINSTR_JOURNAL=on keeps them on disk",
            once=f"lost {self.what}",
        )

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


class _CountedDrops:
    """Stands before a batch processor's own metrics, which are off by default, and hears of what its queue drops."""

    def __init__(self, metrics: Any, guarded: GuardedExporter, queue_size: int) -> None:
        self._metrics = metrics
        self._guarded = guarded
        self._queue_size = queue_size

    def drop_items(self, count: int, *why: Any) -> None:
        if not why:  # with a reason, it is another one than the full queue
            self._guarded.count_dropped(count, self._queue_size)
        self._metrics.drop_items(count, *why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metrics, name)


def endpoint_of(exporter: Any) -> str:
    """Where an exporter sends, or the name of its kind."""
    return str(getattr(exporter, "_endpoint", "") or type(exporter).__name__)


def address(endpoint: str) -> str:
    """Host and port of an endpoint."""
    return endpoint.partition("//")[2].partition("/")[0] or endpoint


def key_beside(span_guards: Iterable[GuardedExporter], exporter: Any) -> str:
    """The key of another signal's exporter: where it sends where spans go, what fails for both is said once."""
    here = address(endpoint_of(exporter))
    return SPANS_FAIL if here in {address(one.endpoint) for one in span_guards} else f"export to {here}"


def guard(provider: Any) -> list[GuardedExporter]:
    """Wrap the exporter of every batch processor of `provider`; what has another shape stays as it is."""
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    return guard_batch(processors, GuardedExporter)


Guard = TypeVar("Guard", bound=GuardedExporter)


def guard_batch(processors: Iterable[Any], make: Callable[[Any], Guard]) -> list[Guard]:
    """The same for the processors of any signal; `make` is the kind of guard."""
    guards: list[Guard] = []
    for processor in processors:
        batch = getattr(processor, "_batch_processor", None)
        exporter = getattr(batch, "_exporter", None)
        if batch is not None and hasattr(exporter, "export") and not isinstance(exporter, GuardedExporter):
            guarded = make(exporter)
            batch._exporter = guarded
            queue = getattr(batch, "_queue", None)
            if queue is not None:
                guarded.waiting = queue.__len__
            if hasattr(batch, "_metrics"):
                batch._metrics = _CountedDrops(batch._metrics, guarded, getattr(batch, "_max_queue_size", 0))
            guards.append(guarded)
    return guards

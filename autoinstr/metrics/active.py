"""All of metrics in a process where they are on: taps, phases, our own health, the node's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics

from autoinstr.maps.metric_model import layered_taps
from autoinstr.metrics import exporting, health, host_memory
from autoinstr.metrics.bucket_time import BucketTime
from autoinstr.metrics.instruments import Instruments, global_meter
from autoinstr.metrics.phases import PhaseDurations
from autoinstr.metrics.tapper import Tapper

if TYPE_CHECKING:
    from autoinstr.exporting.guards import GuardedExporter
    from autoinstr.maps.model import SpanMap
    from autoinstr.patch.ledger import Ledger
    from autoinstr.settings import Settings


class ActiveMetrics:
    """Made once, after the SDK was set up; `start` and `stop` may follow each other.

    Patches are recorded in the ledger that `start` is given, whose owner undoes them.
    """

    def __init__(
        self, settings: Settings, tracer_provider: Any, span_guards: Sequence[GuardedExporter], journal: Any | None
    ) -> None:
        self.provider: Any = metrics.get_meter_provider()
        self.guards = exporting.guard(self.provider, span_guards)
        exporting.leave_random_alone()
        exporting.count_own_only(self.provider)
        self._instruments = Instruments()
        self._phases = PhaseDurations(self._instruments)
        self._buckets = BucketTime(self._instruments)
        self._ledger: Ledger | None = None
        self._tapper: Tapper | None = None
        spans = health.SpanCounts()
        if hasattr(tracer_provider, "add_span_processor"):
            tracer_provider.add_span_processor(self._phases)
            tracer_provider.add_span_processor(self._buckets)
            tracer_provider.add_span_processor(spans)
        health.observe(global_meter(), lambda: self._ledger, spans, span_guards, journal)
        host_memory.observe(global_meter(), settings.run_id, journal.folder if journal is not None else None)

    def start(self, ledger: Ledger) -> None:
        """Take values from now on: what `take_up` is given is tapped."""
        self._ledger = ledger
        self._tapper = Tapper(ledger, self._instruments)
        self._phases.off = self._buckets.off = False

    def take_up(self, maps: Iterable[tuple[int, SpanMap]]) -> None:
        """The maps of a package that is about to be imported."""
        maps = list(maps)
        self._phases.add_algorithms(span_map.algorithm for _, span_map in maps)
        if self._tapper is not None:
            self._tapper.add(layered_taps(maps))

    def stop(self) -> None:
        """Take nothing from now on."""
        self._phases.off = self._buckets.off = True
        if self._tapper is not None:
            self._tapper.stop()
            self._tapper = None

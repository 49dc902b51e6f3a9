"""What our spans cost, beside the SDK's own `start_as_current_span` with the same name and attributes.

`python tests/bench/spans.py [--rounds N] [--only WORD] [--json FILE]` runs alone; `make bench` runs it as one part.
Both sides have a batch processor and an exporter that throws spans away. The queue is emptied between
samples, untimed: handing over to the exporter is the SDK's work on both sides.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import ours
import report
from interleave import CALLS, Side, calling, compare
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

ATTRIBUTES = ("step.index", "step.phase")


class Setting:
    """Both sides' providers and modules, and the proof that both did their work."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.our_exporter, self.sdk_exporter = ours.CountingExporter(), ours.CountingExporter()
        self.our_provider = ours.our_provider(self.our_exporter, sampler)
        self.sdk_provider = ours.bare_provider(self.sdk_exporter, sampler)
        self.ours = ours.patched(self.our_provider)
        self.original = ours.subjects()
        self.tracer = self.sdk_provider.get_tracer("bench")
        self.flush = self._flush_both

    def _flush_both(self) -> None:
        self.our_provider.force_flush()
        self.sdk_provider.force_flush()

    def sides(self, mine: Callable[[], float], other: Callable[[], float], spans: int = CALLS) -> tuple[Side, Side]:
        return (
            Side("ours", mine, self.flush, lambda: self.our_exporter.count, spans),
            Side("the SDK", other, self.flush, lambda: self.sdk_exporter.count, spans),
        )


def main() -> None:
    rows = report.Rows(report.parser(__doc__ or "").parse_args())
    setting = Setting()
    for part in (function_spans, sampled_spans, coroutine, generator, block, unnamed_block, journal, garbage):
        part(setting, rows)
    rows.finish()


def function_spans(setting: Setting, rows: report.Rows) -> None:
    """The row that matters most, for a span without parent and for one inside another."""
    tracer, step = setting.tracer, setting.original.step

    def by_sdk(index: int, phase: str) -> int:
        with tracer.start_as_current_span("bench.step", attributes={"step.index": index, "step.phase": phase}):
            return step(index, phase)

    mine, other = calling(setting.ours.step), calling(by_sdk)
    with setting.tracer.start_as_current_span("around"):
        rows.ratio(
            "function span, 2 attributes, inside another",
            "SDK start_as_current_span",
            lambda rounds: compare(*setting.sides(mine, other), rounds),
            at_most=0.80,
        )
    setting.flush()
    rows.ratio(
        "function span, 2 attributes, no parent",
        "SDK start_as_current_span",
        lambda rounds: compare(*setting.sides(mine, other), rounds),
        at_most=0.80,
    )
    same_span(setting, ATTRIBUTES)


def sampled_spans(_: Setting, rows: report.Rows) -> None:
    """With a sampler that decides by the trace id."""
    setting = Setting(ParentBasedTraceIdRatio(1.0))
    tracer, step = setting.tracer, setting.original.step

    def by_sdk(index: int, phase: str) -> int:
        with tracer.start_as_current_span("bench.step", attributes={"step.index": index, "step.phase": phase}):
            return step(index, phase)

    mine, other = calling(setting.ours.step), calling(by_sdk)
    rows.ratio(
        "function span, 2 attributes, sampler traceidratio",
        "SDK start_as_current_span",
        lambda rounds: compare(*setting.sides(mine, other), rounds),
        at_most=0.80,
    )


def coroutine(setting: Setting, rows: report.Rows) -> None:
    tracer, step = setting.tracer, setting.original.step_async

    async def by_sdk(index: int, phase: str) -> int:
        with tracer.start_as_current_span("bench.step_async", attributes={"step.index": index, "step.phase": phase}):
            return await step(index, phase)

    mine, other = awaiting(setting.ours.step_async), awaiting(by_sdk)
    rows.ratio(
        "coroutine span, 2 attributes, no suspension",
        "SDK start_as_current_span",
        lambda rounds: compare(*setting.sides(mine, other), rounds),
        at_most=1.0,
    )


def awaiting(function: Callable[[int, str], Any]) -> Callable[[], float]:
    """Samples of `await function(...)`, driven without an event loop, which would be most of the time."""

    async def many() -> None:
        for _ in repeat(None, CALLS):
            await function(7, "train")

    def sample() -> float:
        body = many()
        start = time.perf_counter_ns()
        try:
            body.send(None)
        except StopIteration:
            pass
        return (time.perf_counter_ns() - start) / CALLS

    return sample


def generator(setting: Setting, rows: report.Rows) -> None:
    tracer, steps = setting.tracer, setting.original.steps
    length = 10

    def by_sdk(count: int, phase: str) -> Iterator[int]:
        with tracer.start_as_current_span("bench.steps", attributes={"steps.count": count, "step.phase": phase}):
            yield from steps(count, phase)

    def iterating(function: Callable[[int, str], Iterator[int]], length: int, calls: int) -> Callable[[], float]:
        def sample() -> float:
            start = time.perf_counter_ns()
            for _ in repeat(None, calls):
                for _ in function(length, "train"):
                    pass
            return (time.perf_counter_ns() - start) / calls

        return sample

    rows.ratio(
        f"generator span, 2 attributes, {length} steps",
        "SDK start_as_current_span in the body",
        lambda rounds: compare(
            *setting.sides(iterating(setting.ours.steps, length, CALLS), iterating(by_sdk, length, CALLS)),
            rounds,
        ),
    )
    many = 1000

    def a_step(function: Callable[[int, str], Iterator[int]]) -> Callable[[], float]:
        whole = iterating(function, many, 1)
        return lambda: whole() / many

    rows.difference(
        "generator, one step more",
        "the same generator, untraced",
        lambda rounds: compare(
            Side("ours", a_step(setting.ours.steps), setting.flush), Side("untraced", a_step(steps)), rounds
        ),
    )


def block(setting: Setting, rows: report.Rows) -> None:
    tracer, timer, our_timer = setting.tracer, setting.original.Timer(), setting.ours.Timer()

    def by_sdk(index: int, phase: str) -> None:
        with (
            tracer.start_as_current_span("bench.block", attributes={"step.label": "named", "step.kind": "named"}),
            timer.time("named"),
        ):
            pass

    def mine(index: int, phase: str) -> None:
        with our_timer.time("named"):
            pass

    rows.ratio(
        "block span, 2 attributes",
        "SDK start_as_current_span around the block",
        lambda rounds: compare(*setting.sides(calling(mine), calling(by_sdk)), rounds),
        at_most=1.0,
    )


def unnamed_block(setting: Setting, rows: report.Rows) -> None:
    timer, our_timer = setting.original.Timer(), setting.ours.Timer()

    def original(index: int, phase: str) -> None:
        with timer.time("unnamed"):
            pass

    def mine(index: int, phase: str) -> None:
        with our_timer.time("unnamed"):
            pass

    rows.difference(
        "block whose label no map names",
        "the same block, unpatched",
        lambda rounds: compare(Side("ours", calling(mine)), Side("unpatched", calling(original)), rounds),
        at_most_ns=1000,
    )


def journal(setting: Setting, rows: report.Rows) -> None:
    """Both sides are ours: with the journal and without."""
    import shutil
    import tempfile
    from pathlib import Path

    from autoinstr.journal.writer import JournalProcessor

    exporter = ours.CountingExporter()
    provider = ours.our_provider(exporter)
    folder = Path(tempfile.mkdtemp(prefix="autoinstr-bench-"))
    writer = JournalProcessor(folder, "bench")
    provider.add_span_processor(writer)
    module = ours.patched(provider)

    def flush() -> None:
        setting.flush()
        provider.force_flush()

    try:
        rows.difference(
            "the journal, per span",
            "the same span without it",
            lambda rounds: compare(
                Side("with the journal", calling(module.step), flush, lambda: exporter.count),
                Side("without", calling(setting.ours.step), flush, lambda: setting.our_exporter.count),
                rounds,
            ),
        )
        if exporter.count:
            written = sum(len(f.read_bytes().splitlines()) for f in folder.rglob("*.jsonl"))
            if written < 2 * exporter.count:
                raise SystemExit(f"the journal has {written} lines for {exporter.count} spans")
    finally:
        shutil.rmtree(folder)


def garbage(setting: Setting, rows: report.Rows) -> None:
    """What a span leaves to the cyclic collector: a job with a large heap pays dearly for every collection."""

    def left_by(function: Callable[[int, str], Any], exporter: ours.CountingExporter) -> float:
        def forget() -> None:
            setting.flush()
            exporter.last = None

        function(7, "train")
        forget()
        gc.collect()
        gc.disable()
        try:
            for _ in repeat(None, CALLS):
                function(7, "train")
            forget()
            return gc.collect() / CALLS
        finally:
            gc.enable()

    def by_sdk(index: int, phase: str) -> None:
        with setting.tracer.start_as_current_span("bench.step", attributes={"step.index": index, "step.phase": phase}):
            pass

    rows.count(
        "objects left to the garbage collector per span",
        "SDK start_as_current_span",
        lambda: (left_by(setting.ours.step, setting.our_exporter), left_by(by_sdk, setting.sdk_exporter)),
        at_most=0,
    )


def same_span(setting: Setting, keys: tuple[str, ...]) -> None:
    """Stop when a side recorded other spans than the bench says."""
    setting.flush()
    for name, exporter in (("ours", setting.our_exporter), ("the SDK", setting.sdk_exporter)):
        span = exporter.last
        if span is None or span.name == "around":  # no row was asked for
            continue
        if span.name != "bench.step" or sorted(span.attributes or {}) != sorted(keys):
            raise SystemExit(f"{name} recorded {span.name} {dict(span.attributes or {})}")
    assert trace.get_current_span() is trace.INVALID_SPAN, "a span was left open"


if __name__ == "__main__":
    main()

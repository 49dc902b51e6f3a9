"""Our function span beside that of one other tracer: `python tests/bench/rivals.py RIVAL`, in its environment.

One rival a process, so that none meets another's patches. Each gets its own recommended set-up, with its
exporter replaced by one that throws spans away, and every span must come out of it. Spans have no parent on
either side. Where the rival's call takes attributes it is given our two; where it takes none, ours is
measured without and with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import ours
import report
from interleave import Side, calling, compare


@dataclass
class Case:
    """One way a rival traces a function. `attributes` says whether its span carries our two."""

    name: str
    function: Callable[[int, str], Any]
    attributes: bool


@dataclass
class Rival:
    """How a rival is set up here: its cases, how its queue is emptied, and how many spans came out."""

    cases: list[Case]
    flush: Callable[[], Any]
    exported: Callable[[], int]


def nemo_lens() -> Rival:
    from nemo.lens import NemoLensConfig, managed_span, setup_telemetry, trace_fn
    from opentelemetry import trace
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    exporter = ours.CountingExporter()
    config = NemoLensConfig(enabled=True, span_groups="all")
    handle = setup_telemetry(config, span_exporter=exporter, metric_reader=InMemoryMetricReader())
    step = ours.subjects().step

    def managed(index: int, phase: str) -> int:
        # attributes are keywords, so no dots; the tracer is given, which spares it a look-up
        with managed_span("step", "bench.step", tracer=handle.tracer, step_index=index, step_phase=phase):
            return step(index, phase)

    traced = trace_fn("step", "bench.step", tracer=handle.tracer)(ours.subjects().step)
    provider: Any = trace.get_tracer_provider()
    return Rival(
        [Case("managed_span", managed, True), Case("trace_fn", traced, False)],
        provider.force_flush,
        lambda: exporter.count,
    )


def ddtrace() -> Rival:
    os.environ.update(
        DD_INSTRUMENTATION_TELEMETRY_ENABLED="false", DD_REMOTE_CONFIGURATION_ENABLED="false", DD_TRACE_STARTUP_LOGS="0"
    )
    from ddtrace.internal.writer import TraceWriter
    from ddtrace.trace import tracer

    class NullWriter(TraceWriter):
        count = 0

        def recreate(self, *_: Any, **__: Any) -> NullWriter:
            return self

        def stop(self, timeout: float | None = None) -> None:
            pass

        def write(self, spans: Any = None) -> None:
            self.count += len(spans or ())

        def flush_queue(self) -> None:
            pass

    writer = NullWriter()
    aggregator = tracer._span_aggregator
    aggregator.writer = writer
    step = ours.subjects().step

    @tracer.wrap("bench.step")
    def tagged(index: int, phase: str) -> int:
        span = tracer.current_span()
        span.set_tag("step.index", index)
        span.set_tag("step.phase", phase)
        return step(index, phase)

    wrapped = tracer.wrap("bench.step")(ours.subjects().step)
    return Rival(
        [Case("tracer.wrap, 2 set_tag", tagged, True), Case("tracer.wrap", wrapped, False)],
        lambda: None,
        lambda: writer.count,
    )


def logfire() -> Rival:
    import logfire
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = ours.CountingExporter()
    processor = BatchSpanProcessor(exporter)
    logfire.configure(
        send_to_logfire=False,
        console=False,
        metrics=False,
        additional_span_processors=[processor],
        service_name="bench",
    )
    traced = logfire.instrument("bench.step", span_name="bench.step", extract_args=["index", "phase"])
    plain = logfire.instrument("bench.step", span_name="bench.step", extract_args=False)
    return Rival(
        [
            Case("instrument, 2 extract_args", traced(ours.subjects().step), True),
            Case("instrument, no extract_args", plain(ours.subjects().step), False),
        ],
        processor.force_flush,
        lambda: exporter.count,
    )


def traceloop() -> Rival:
    os.environ["TRACELOOP_TELEMETRY"] = "false"
    from traceloop.sdk import Traceloop
    from traceloop.sdk.decorators import task, workflow
    from traceloop.sdk.instruments import Instruments
    from traceloop.sdk.tracing.tracing import TracerWrapper

    exporter = ours.CountingExporter()
    Traceloop.init(
        app_name="bench", exporter=exporter, telemetry_enabled=False, block_instruments=set(Instruments), api_key=""
    )
    flush = TracerWrapper().flush
    return Rival(
        [
            Case("@task (arguments as JSON)", task(name="bench.step")(ours.subjects().step), True),
            Case("@workflow (arguments as JSON)", workflow(name="bench.step")(ours.subjects().step), True),
        ],
        flush,
        lambda: exporter.count,
    )


RIVALS: dict[str, Callable[[], Rival]] = {
    "nemo-lens": nemo_lens,
    "ddtrace": ddtrace,
    "logfire": logfire,
    "traceloop-sdk": traceloop,
}


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("rival", choices=sorted(RIVALS))
    options = parser.parse_args()
    rows = report.Rows(options)
    version = metadata.version(options.rival)
    # ours first: the bench's spans must not go through what the rival sets up for everybody
    exporter = ours.CountingExporter()
    provider = ours.our_provider(exporter)
    module = ours.patched(provider)
    module.step(7, "train"), module.tick(7, "train")
    provider.force_flush()
    rival = RIVALS[options.rival]()

    def measure(case: Case, mine: Callable[[int, str], Any]) -> Callable[[int], Any]:
        return lambda rounds: compare(
            Side("ours", calling(mine), provider.force_flush, lambda: exporter.count),
            Side(case.name, calling(case.function), rival.flush, rival.exported),
            rounds,
        )

    for case in rival.cases:
        name = f"{options.rival} {version} {case.name}"
        if not case.attributes:
            rows.ratio("function span, no attributes on either side", name, measure(case, module.tick), below=1.0)
        rows.ratio(
            f"function span, 2 attributes{'' if case.attributes else ', theirs has none'}",
            name,
            measure(case, module.step),
            below=1.0,
        )
    rows.finish()
    sys.stdout.flush()
    os._exit(0)  # the rivals' own ends of the process try to reach their servers


if __name__ == "__main__":
    main()

"""Our side: `subjects` patched by the bench's map, with a provider as autoinstr sets it up."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler

from autoinstr.maps import catalog, groups, loader
from autoinstr.patch.patcher import Patcher
from autoinstr.spans.ids import RunIdGenerator
from autoinstr.spans.opening import Tracers

MAP = """
map: bench
package: {module}
spans:
  bench.step:
    group: step
    function: "{module}:step"
    attributes: {{step.index: args.index, step.phase: args.phase}}
  bench.tick:
    group: step
    function: "{module}:tick"
  bench.step_async:
    group: step
    function: "{module}:step_async"
    attributes: {{step.index: args.index, step.phase: args.phase}}
  bench.steps:
    group: step
    function: "{module}:steps"
    attributes: {{steps.count: args.count, step.phase: args.phase}}
  bench.block:
    group: step
    block: "{module}:Timer.time(label=named)"
    attributes: {{step.label: args.label, step.kind: args.label}}
"""
_numbers = itertools.count(1)


class CountingExporter(SpanExporter):
    """Throws spans away, and knows how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self.last: ReadableSpan | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        self.last = spans[-1]
        return SpanExportResult.SUCCESS


def bare_provider(exporter: SpanExporter, sampler: Sampler | None = None) -> TracerProvider:
    """The SDK as it comes."""
    provider = TracerProvider(sampler)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def our_provider(exporter: SpanExporter, sampler: Sampler | None = None) -> TracerProvider:
    """The SDK as our configurator sets it up, which is with ids that no seed repeats."""
    provider = TracerProvider(sampler, id_generator=RunIdGenerator("bench"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def subjects() -> types.ModuleType:
    """A fresh copy of `subjects`."""
    name = f"bench_subjects_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("subjects.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patched(provider: TracerProvider) -> types.ModuleType:
    """A copy of `subjects` with the bench's map applied and every group on."""
    module = subjects()
    found = catalog.Catalog(lambda mistake: sys.exit(str(mistake)))
    loaded = loader.load_map(MAP.format(module=module.__name__), "<bench>", found.table)
    if loaded.map is None or loaded.mistakes:
        sys.exit("\n".join(map(str, loaded.mistakes)))
    patcher = Patcher(found.table, groups.select("all", found.table), Tracers(lambda: provider))
    patcher.add(catalog.layered([(3, loaded.map)]))
    left_out = [f"{r.target}: {r.state} {r.why}" for r in patcher.ledger.records if r.state != "applied"]
    if left_out:
        sys.exit("the bench's own map was not applied: " + "; ".join(left_out))
    return module

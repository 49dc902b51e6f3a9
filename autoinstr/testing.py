"""Test a map of your own: run code under given maps in this process, and compare the span tree that came out.

    from autoinstr.testing import record

    def test_my_map():
        with record(maps="my_map.yaml", groups="all") as spans:
            import my_package
            my_package.train(steps=2)
        assert spans.tree() == '''
        my.job
          my.step [productive] rl.iteration=1
          my.step [productive] rl.iteration=2
        '''

A tree compares with an indented text or with another tree. Names come first, then the bucket in brackets,
then attributes sorted by key, then `!Error` where the span has an error. `tree(attributes=False)` leaves the
attributes out, `tree(groups=True)` puts each span's group, in parentheses, behind its name. A mistake in a map
is an error here, at once.

Metrics are recorded too: `spans.series()` are lines such as `my.loss gauge 0.5`, and compare in the same way.
`spans.resource` is what the maps learned of the run.
"""

from __future__ import annotations

# before any provider is made: the SDK's fork handler takes a lock that this one's handler must have freed first
import concurrent.futures.thread  # noqa: F401
import inspect
import textwrap
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from autoinstr.activation import process_attributes
from autoinstr.maps import catalog, groups, loader
from autoinstr.maps.metric_model import MetricTap, layered_taps
from autoinstr.maps.model import Mistake, SpanEntry, SpanMap
from autoinstr.metrics import readout
from autoinstr.metrics.instruments import Instruments
from autoinstr.metrics.tapper import Tapper
from autoinstr.patch.handing import ArgumentPatcher
from autoinstr.patch.importing import PackageWatch
from autoinstr.patch.ledger import Ledger
from autoinstr.patch.patcher import Patcher
from autoinstr.spans import GROUP_ATTRIBUTE
from autoinstr.spans.ids import RunIdGenerator
from autoinstr.spans.opening import BUCKET_ATTRIBUTE, Tracers


class MapMistakes(ValueError):
    """The maps under test have mistakes; `mistakes` are their lines."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


@dataclass
class SpanNode:
    """One span and those below it, in the order in which they started."""

    name: str
    span: ReadableSpan
    children: list[SpanNode] = field(default_factory=list)

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.span.attributes or {})

    @property
    def group(self) -> str | None:
        scope = self.span.instrumentation_scope
        return str(scope.attributes[GROUP_ATTRIBUTE]) if scope and scope.attributes else None

    def line(self, attributes: bool = True, groups: bool = False) -> str:
        found = self.attributes
        bucket = found.pop(BUCKET_ATTRIBUTE, None)
        parts = [self.name]
        if groups:
            parts.append(f"({self.group})")
        if bucket is not None:
            parts.append(f"[{bucket}]")
        if attributes:
            parts += [f"{key}={value!r}" for key, value in sorted(found.items())]
        if not self.span.status.is_ok:
            parts.append("!" + str(self.span.status.description or "Error").partition(":")[0])
        return " ".join(parts)


class SpanTree:
    """The roots of what was recorded. Equal to another tree, or to an indented text, that prints the same."""

    def __init__(self, roots: list[SpanNode], attributes: bool = True, groups: bool = False) -> None:
        self.roots = roots
        self._attributes, self._groups = attributes, groups

    def __str__(self) -> str:
        lines: list[str] = []

        def write(node: SpanNode, depth: int) -> None:
            lines.append("  " * depth + node.line(self._attributes, self._groups))
            for child in node.children:
                write(child, depth + 1)

        for root in self.roots:
            write(root, 0)
        return "\n".join(lines)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str(self) == textwrap.dedent(other.strip("\n")).rstrip()
        return isinstance(other, SpanTree) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]


class Recording:
    """What was recorded: the finished spans, their tree, the ledger of patches and the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.ledger = Ledger()
        self.resource: dict[str, Any] = {}
        """What was learned of the run, by the maps' `resource`."""
        self.provider: TracerProvider
        self.metric_reader: InMemoryMetricReader
        self.meter_provider: MeterProvider
        self._spans: list[ReadableSpan] = []
        self._lock = threading.Lock()

    def add(self, spans: Iterable[ReadableSpan]) -> None:
        with self._lock:
            self._spans += spans

    @property
    def spans(self) -> list[ReadableSpan]:
        """The finished spans, in the order in which they ended."""
        with self._lock:
            return list(self._spans)

    def clear(self) -> None:
        with self._lock:
            self._spans.clear()

    def series(self, *names: str) -> readout.SeriesList:
        """What metric taps recorded, one line a point: all series, or those of these names."""
        return readout.read(self.metric_reader, *names)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def tree(self, attributes: bool = True, groups: bool = False) -> SpanTree:
        """The spans as trees, siblings by start time."""
        spans = sorted(self.spans, key=lambda s: s.start_time or 0)
        by_id = {s.context.span_id: SpanNode(s.name, s) for s in spans}
        roots: list[SpanNode] = []
        for span in spans:
            node = by_id[span.context.span_id]
            above = by_id.get(span.parent.span_id) if span.parent is not None else None
            (above.children if above is not None else roots).append(node)
        return SpanTree(roots, attributes, groups)


class _Collector(SpanExporter):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._recording.add(spans)
        return SpanExportResult.SUCCESS


@contextmanager
def record(
    maps: str | Path | Iterable[str | Path] = (),
    groups: str = "all",
    *,
    text: str | None = None,
    builtin: str = "none",
    capture_content: bool = False,
    switches: Iterable[str] = (),
) -> Iterator[Recording]:
    """Patch what the maps name, record the spans, and undo every patch at the end.

    `maps` are files or folders, `text` is a map written in the test, `builtin` is as in
    AUTOINSTR_BUILTIN_MAPS, `groups` as in AUTOINSTR_SPAN_GROUPS, `switches` are variables that are on. Nothing
    global is set: no tracer provider, no environment variable, and other recordings may follow.

    Raises:
        MapMistakes: where a map or the groups are wrong.
    """
    recording = Recording()
    mistakes: list[str] = []

    def on_mistake(mistake: Mistake) -> None:
        mistakes.append(str(mistake))

    found = catalog.Catalog(on_mistake)
    found.add_builtin(builtin)
    found.add_user([Path(m) for m in ([maps] if isinstance(maps, (str, Path)) else maps)])
    inline: list[tuple[int, SpanMap]] = []
    table = found.table
    if text is not None:
        loaded = loader.load_map(inspect.cleandoc(text), "<text>", table)
        mistakes += map(str, loaded.mistakes)
        if loaded.map is not None:
            inline.append((3, loaded.map))
    read = found.maps_for() + inline
    mistakes += map(str, catalog.lost_additions([m for _, m in read], list))
    table = found.table.extended(g for _, m in inline for g in m.groups)
    selection = _select(groups, table, mistakes)
    if mistakes:
        raise MapMistakes(mistakes)

    provider = TracerProvider(
        resource=Resource({"service.name": "test"}), id_generator=RunIdGenerator("test"), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(_Collector(recording)))
    patcher = Patcher(
        table,
        selection,
        Tracers(lambda: provider),
        capture_content,
        recording.notices.append,
        recording.resource.update,
    )
    recording.ledger = patcher.ledger
    recording.provider = provider
    recording.metric_reader = InMemoryMetricReader()
    # exemplars would draw from the global `random`
    meters = MeterProvider([recording.metric_reader], exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
    recording.meter_provider = meters
    tapper = Tapper(patcher.ledger, Instruments(lambda: meters), recording.notices.append)
    arguments = ArgumentPatcher(patcher.ledger, recording.notices.append)
    by_package: dict[str, tuple[list[SpanEntry], list[MetricTap]]] = {}
    for _, span_map in read:
        by_package.setdefault(span_map.package.partition(".")[0], ([], []))
    homes = {m.name: by_package[m.package.partition(".")[0]] for _, m in read}
    for entry in catalog.layered(read):
        homes[entry.map][0].append(entry)
    for tap in layered_taps(read):
        homes[tap.map][1].append(tap)

    def activate(package: str) -> None:
        entries, taps = by_package[package]
        of_package = [m for _, m in sorted(read, key=lambda one: one[0]) if m.package.partition(".")[0] == package]
        recording.resource.update(process_attributes(of_package))
        patcher.add(entries)
        tapper.add(taps)
        handed = (entry for _, m in read if m.package.partition(".")[0] == package for entry in m.arguments)
        arguments.add(handed, selection.selects_group, set(switches))

    watch = PackageWatch(by_package, activate)
    watch.start()
    try:
        yield recording
    finally:
        watch.stop()
        tapper.stop()
        arguments.stop()
        patcher.undo()


def _select(spec: str, table: groups.GroupTable, mistakes: list[str]) -> groups.Selection:
    selection = groups.select(spec, table)
    mistakes += [groups.explain_unknown(name, table) for name in selection.unknown]
    return selection

"""Code that sets up OpenTelemetry after us: one tree, and nothing that it brings is lost or sent twice.

OpenTelemetry keeps the first tracer provider of a process and refuses any other with a warning, so the spans of such
code come through ours. What its provider was made with is taken over: its resource's attributes, where ours lacks
them, and its exporters, those too that it is given later, but for those of a kind that ours has already. For metrics
and logs it is the same, but that the SDK has set up providers for us that send nothing where we have no exporter for
them: those give way.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from opentelemetry import trace

from autoinstr.notices import describe, say

_OWN = ("service.", "telemetry.")
"""Attributes by which a resource names itself: ours are kept, and none of theirs is added."""
_COLLECTOR = "collector"
"""The ports of OTLP over gRPC and over HTTP: a collector has both."""


def install(ours: Any, on_exporters: Callable[[], None]) -> Callable[[], None]:
    """Take over from every provider that comes after `ours`; `on_exporters` hears when exporters came along.

    Returns how to undo it.
    """
    giving_way = [_give_way(signal) for signal in _SIGNALS]
    original = trace.set_tracer_provider

    @functools.wraps(original)
    def set_tracer_provider(tracer_provider: Any) -> None:
        if tracer_provider is ours or trace.get_tracer_provider() is not ours:
            original(tracer_provider)
            return
        try:
            moved = _take_over(ours, tracer_provider, on_exporters)
            who = sys._getframe(1).f_globals.get("__name__", "the training code").partition(".providers")[0]
            also = f", and to its {', '.join(moved)} too" if moved else ""
            say(f"{who} sets up OpenTelemetry too: its spans and ours go together where ours go{also}", once="second")
        except Exception as error:
            say(f"another tracer provider could not be taken over: {describe(error)}", once="second provider")

    trace.set_tracer_provider = set_tracer_provider

    def undo() -> None:
        if trace.set_tracer_provider is set_tracer_provider:
            trace.set_tracer_provider = original
        for one in giving_way:
            one()

    return undo


class _Signal(NamedTuple):
    """Where a signal's global provider is kept, and whether a provider sends what it is told."""

    api: str
    internal: str
    setter: str
    variable: str
    sends: Callable[[Any], Any]


_SIGNALS = (
    _Signal(
        "opentelemetry.metrics",
        "opentelemetry.metrics._internal",
        "set_meter_provider",
        "_METER_PROVIDER",
        # where the SDK keeps them has changed
        lambda provider: (
            provider._metric_readers if hasattr(provider, "_metric_readers") else provider._sdk_config.metric_readers
        ),
    ),
    _Signal(
        "opentelemetry._logs",
        "opentelemetry._logs._internal",
        "set_logger_provider",
        "_LOGGER_PROVIDER",
        lambda provider: provider._multi_log_record_processor._log_record_processors,
    ),
)


def _give_way(signal: _Signal) -> Callable[[], None]:
    """Let a second provider of metrics or logs replace one that sends nothing. Returns how to undo it."""
    api, internal = sys.modules.get(signal.api), sys.modules.get(signal.internal)
    if api is None or internal is None:
        return lambda: None
    original = getattr(api, signal.setter)

    @functools.wraps(original)
    def set_provider(provider: Any) -> None:
        try:
            silent = not signal.sends(getattr(internal, signal.variable))
        except Exception:  # none is set, or it is no SDK's
            silent = False
        if silent:
            setattr(internal, signal.variable, provider)
        else:
            original(provider)

    setattr(api, signal.setter, set_provider)

    def undo() -> None:
        if getattr(api, signal.setter) is set_provider:
            setattr(api, signal.setter, original)

    return undo


def _take_over(ours: Any, theirs: Any, on_exporters: Callable[[], None]) -> list[str]:
    """Returns what exporters came along, by their classes' names."""
    _add_to_resource(ours, getattr(theirs, "resource", None))
    moved = _move(ours, theirs, _processors(theirs), on_exporters)
    add = theirs.add_span_processor

    @functools.wraps(add)
    def add_span_processor(span_processor: Any) -> None:
        add(span_processor)
        try:
            _move(ours, theirs, (span_processor,), on_exporters)
        except Exception as error:
            say(f"a span processor could not be taken over: {describe(error)}", once="second provider's processor")

    theirs.add_span_processor = add_span_processor
    return moved


def _move(ours: Any, theirs: Any, processors: tuple[Any, ...], on_exporters: Callable[[], None]) -> list[str]:
    known = {_kind(exporter) for exporter in map(_exporter_of, _processors(ours)) if exporter is not None}
    moved = []
    for processor in processors:
        exporter = _exporter_of(processor)
        if (exporter is not None and _kind(exporter) in known) or processor in _processors(ours):
            continue
        ours.add_span_processor(processor)
        moved.append(type(exporter if exporter is not None else processor).__name__)
    handler = getattr(theirs, "_atexit_handler", None)
    if moved and handler is not None:
        atexit.unregister(handler)  # ours ends them, after the last of our spans
    if moved:
        on_exporters()
    return moved


def _processors(provider: Any) -> tuple[Any, ...]:
    return tuple(getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ()))


def _exporter_of(processor: Any) -> Any:
    batch = getattr(processor, "_batch_processor", processor)
    exporter: Any = getattr(batch, "_exporter", None) or getattr(processor, "span_exporter", None)
    if type(exporter).__name__ == "GuardedExporter":
        exporter = exporter._exporter
    return exporter


def _kind(exporter: Any) -> str:
    """OTLP to one collector is one kind, whatever its protocol."""
    module = type(exporter).__module__
    if not module.startswith("opentelemetry.exporter.otlp"):
        return f"{module}.{type(exporter).__qualname__}"
    endpoint = str(getattr(exporter, "_endpoint", ""))
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    host = "localhost" if parts.hostname in ("127.0.0.1", "::1") else parts.hostname
    return f"otlp {host} {_COLLECTOR if parts.port in (None, 4317, 4318) else parts.port}"


def _add_to_resource(ours: Any, theirs: Any) -> None:
    from autoinstr.resource import learn

    known = getattr(getattr(ours, "resource", None), "attributes", {})
    found = getattr(theirs, "attributes", {})
    learn({key: value for key, value in found.items() if key not in known and not key.startswith(_OWN)}, ours)

"""Spans at half the SDK's price, where the SDK would make the same span anyway.

`Tracer.start_span` asks the sampler, validates ids, copies and cleans attributes under a lock, and `end` copies
the span once more. For a span of ours the answers are known beforehand: ids come from our generator, attributes
were made by `to_attribute`, and the SDK's own samplers decide by a bound on the trace id. `QuickSpan` is a real SDK
span (a subclass, with every method) that is put together directly. Where anything is unusual, somebody's own
sampler, a limit, a tracer that is no SDK tracer, an SDK whose insides look different, `maker` gives None and
`start_span` is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from time import time_ns
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Tracer
from opentelemetry.trace.span import DEFAULT_TRACE_STATE

_RANDOM = getattr(trace.TraceFlags, "RANDOM_TRACE_ID", 0)
_UNSAMPLED, _SAMPLED = trace.TraceFlags(trace.TraceFlags.DEFAULT), trace.TraceFlags(trace.TraceFlags.SAMPLED)
_UNSAMPLED_RANDOM, _SAMPLED_RANDOM = trace.TraceFlags(_UNSAMPLED | _RANDOM), trace.TraceFlags(_SAMPLED | _RANDOM)
_TRACE_ID_LIMIT = sampling.TraceIdRatioBased.TRACE_ID_LIMIT
_PARENT_BASED = (sampling.ParentBased, sampling.ParentBasedTraceIdRatio)
_MAX_ATTRIBUTES = 64


class QuickSpan(sdk._Span):
    """An SDK span made without its constructor; what most spans never need is made when it is asked for."""

    _attributes: Any

    def _grow(self) -> None:
        """Become like any other SDK span, before something is added to it."""
        if not isinstance(self._attributes, BoundedAttributes):
            self._attributes = BoundedAttributes(
                self._limits.max_span_attributes,
                self._attributes,
                immutable=False,
                max_value_len=self._limits.max_span_attribute_length,
            )
            self._events = self._new_events()  # type: ignore[no-untyped-call]
            self._links = self._new_links(())

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._grow()
        super().set_attributes(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self._grow()
        super().set_attribute(key, value)

    def _add_event(self, event: Any) -> None:
        self._grow()
        super()._add_event(event)

    def _add_link(self, link: Any) -> None:
        self._grow()
        super()._add_link(link)

    def end(self, end_time: int | None = None) -> None:
        if type(self._attributes) is not dict:
            super().end(end_time)
            return
        with self._lock:
            if self._end_time is not None:
                sdk.logger.warning("Calling end() on an ended span.")
                return
            self._end_time = time_ns() if end_time is None else end_time
        processor = self._span_processor
        processor._on_ending(self)
        processor.on_end(self)  # nothing of it changes any more, so it needs no copy


class Bounds(NamedTuple):
    """What a sampler samples: trace ids whose low 64 bits are below a bound, by what is above the span."""

    root: int
    sampled_parent: int
    unsampled_parent: int


class QuickMaker:
    """Makes the spans of one plan."""

    __slots__ = (
        "_bounds",
        "_class",
        "_generate_span_id",
        "_generate_trace_id",
        "_inherits_random",
        "_random_root",
        "_tracer",
    )

    def __init__(self, tracer: sdk.Tracer, name: str, bounds: Bounds) -> None:
        self._tracer = tracer
        self._bounds = bounds
        generator = tracer.id_generator
        self._generate_span_id = generator.generate_span_id
        self._generate_trace_id = generator.generate_trace_id
        is_random = getattr(generator, "is_trace_id_random", None)
        self._random_root = _RANDOM if is_random and is_random() else 0
        self._inherits_random = _inherits_random(tracer, self._random_root)
        limits = tracer._span_limits
        # what never differs between two spans of the plan is on a class of its own
        self._class = type(
            "_Span",
            (QuickSpan,),
            {
                "_name": name,
                "_kind": SpanKind.INTERNAL,
                "_instrumentation_info": tracer.instrumentation_info,
                "_instrumentation_scope": tracer._instrumentation_scope,
                "_status": trace.Status(trace.StatusCode.UNSET),
                "_sampler": tracer.sampler,
                "_trace_config": None,
                "_record_exception": True,
                "_set_status_on_exception": True,
                "_span_processor": tracer.span_processor,
                "_limits": limits,
                "_events": (),
                "_links": (),
                "_end_time": None,
                "_record_end_metrics": None,
                "__module__": sdk.__name__,
                "__doc__": sdk._Span.__doc__,
            },
        )

    def start(self, above: Any, attributes: dict[str, Any], start_ns: int | None, context: Context) -> Any:
        """A started span below the span `above` (None: a root), or None where only `start_span` knows what to do."""
        if len(attributes) > _MAX_ATTRIBUTES:
            return None
        parent = above.get_span_context() if above is not None else None
        if parent is None or not parent.is_valid:
            parent = None
            trace_id, random_trace, bound = self._generate_trace_id(), self._random_root, self._bounds.root
        else:
            above_flags = parent.trace_flags
            trace_id = parent.trace_id
            random_trace = above_flags & _RANDOM if self._inherits_random else self._random_root
            bound = self._bounds.sampled_parent if above_flags & 1 else self._bounds.unsampled_parent
        state = DEFAULT_TRACE_STATE if parent is None else parent.trace_state
        if trace_id & _TRACE_ID_LIMIT >= bound:
            flags = _UNSAMPLED_RANDOM if random_trace else _UNSAMPLED
            return NonRecordingSpan(
                tuple.__new__(SpanContext, (trace_id, self._generate_span_id(), False, flags, state, True))
            )
        flags = _SAMPLED_RANDOM if random_trace else _SAMPLED
        tracer = self._tracer
        span: Any = object.__new__(self._class)
        span._context = tuple.__new__(SpanContext, (trace_id, self._generate_span_id(), False, flags, state, True))
        span._parent = parent
        span._resource = tracer.resource
        span._lock = threading.Lock()
        span._attributes = attributes
        span._start_time = time_ns() if start_ns is None else start_ns
        tracer.span_processor.on_start(span, context)
        return span


def maker(tracer: Tracer, name: str) -> QuickMaker | None:
    """How to make the spans of a plan quickly on this tracer, or None."""
    try:
        if type(tracer) is not sdk.Tracer or not _is_usual(tracer):
            return None
        bounds = bounds_of(tracer.sampler)
        if bounds is None:
            return None
        made = QuickMaker(tracer, name, bounds)
        return made if _is_faithful(made, tracer, name) else None
    except Exception:  # another SDK than the ones we know
        return None


def bounds_of(sampler: Any) -> Bounds | None:
    """The bounds of one of the SDK's own samplers; None for any other, which is asked for each span."""
    if type(sampler) not in _PARENT_BASED:
        bound = _bound_of(sampler)
        return None if bound is None else Bounds(bound, bound, bound)
    root = _bound_of(sampler._root)
    sampled, unsampled = (
        {_bound_of(getattr(sampler, f"_{where}_parent_{what}")) for where in ("local", "remote")}
        for what in ("sampled", "not_sampled")
    )
    if root is None or len(sampled) != 1 or len(unsampled) != 1 or None in sampled | unsampled:
        return None
    return Bounds(root, *sampled, *unsampled)  # type: ignore[arg-type]


def _bound_of(sampler: Any) -> int | None:
    if sampler is sampling.ALWAYS_ON:
        return _TRACE_ID_LIMIT + 1
    if sampler is sampling.ALWAYS_OFF:
        return 0
    return int(sampler.bound) if type(sampler) is sampling.TraceIdRatioBased else None


def _is_usual(tracer: sdk.Tracer) -> bool:
    limits = tracer._span_limits
    if limits.max_span_attribute_length is not None:
        return False
    if limits.max_span_attributes is not None and limits.max_span_attributes < _MAX_ATTRIBUTES:
        return False
    if os.environ.get("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "").strip().lower() == "true":
        return False
    enabled = getattr(tracer, "_is_enabled", None)
    return enabled is None or bool(enabled())


def _is_faithful(made: QuickMaker, tracer: sdk.Tracer, name: str) -> bool:
    """Whether the SDK's own span and ours have the same parts and say the same, tried once without processors."""
    quiet = sdk.SpanProcessor()
    parent = trace.NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=_SAMPLED))
    context = trace.set_span_in_context(parent, Context())
    real = sdk.Tracer.start_span(_with_processor(tracer, quiet), name, context, attributes={"a": 1})
    quick: Any = object.__new__(made._class)
    quick._context = tuple.__new__(SpanContext, (1, 3, False, _SAMPLED, DEFAULT_TRACE_STATE, True))
    quick._parent, quick._resource, quick._lock = parent.get_span_context(), tracer.resource, threading.Lock()
    quick._attributes, quick._start_time, quick._span_processor = {"a": 1}, 5, quiet
    for part in vars(real):
        if not hasattr(quick, part):
            return False
    same = all(
        getattr(real, part) == getattr(quick, part)
        for part in ("name", "kind", "parent", "resource", "instrumentation_scope", "attributes")
    )
    reference = SpanContext(1, 3, is_remote=False, trace_flags=_SAMPLED)
    same = same and quick.get_span_context() == reference and quick.get_span_context().is_valid
    quick.set_attribute("b", 2)
    quick.end(9)
    real.end(9)
    return bool(same and dict(quick.attributes or {}) == {"a": 1, "b": 2} and quick.end_time == 9)


def _inherits_random(tracer: sdk.Tracer, of_root: int) -> bool:
    """Whether a span has its parent's flag for a random trace id: older SDKs ask the generator for each span."""
    flags = _SAMPLED if of_root else _SAMPLED_RANDOM
    parent = NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=flags))
    context = trace.set_span_in_context(parent, Context())
    real = sdk.Tracer.start_span(_with_processor(tracer, sdk.SpanProcessor()), "", context)
    return bool((real.get_span_context().trace_flags & _RANDOM) == (flags & _RANDOM))


def _with_processor(tracer: sdk.Tracer, processor: Any) -> Any:
    """A copy of the tracer that tells nobody of its spans."""
    import copy

    other = copy.copy(tracer)
    other.span_processor = processor
    other.sampler = sampling.ALWAYS_ON
    return other

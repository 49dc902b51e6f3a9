"""The quick way to a span gives what the SDK's `start_span` gives, under every sampler and below every parent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from autoinstr.spans import quick

RANDOM = getattr(TraceFlags, "RANDOM_TRACE_ID", 0)

SAMPLERS: dict[str, Any] = {
    "always_on": sampling.ALWAYS_ON,
    "always_off": sampling.ALWAYS_OFF,
    "parentbased_always_on": sampling.DEFAULT_ON,
    "parentbased_always_off": sampling.DEFAULT_OFF,
    "traceidratio": sampling.TraceIdRatioBased(0.5),
    "traceidratio 0": sampling.TraceIdRatioBased(0.0),
    "traceidratio 1": sampling.TraceIdRatioBased(1.0),
    "parentbased_traceidratio": sampling.ParentBasedTraceIdRatio(0.5),
    "unsampled parents count": sampling.ParentBased(
        sampling.ALWAYS_OFF,
        local_parent_not_sampled=sampling.ALWAYS_ON,
        remote_parent_not_sampled=sampling.ALWAYS_ON,
    ),
}

PARENTS: dict[str, SpanContext | None] = {
    "none": None,
    "invalid": trace.INVALID_SPAN_CONTEXT,
    "sampled": SpanContext(3 << 62, 7, False, TraceFlags(1)),
    "unsampled": SpanContext(1 << 62, 7, False, TraceFlags(0)),
    "remote": SpanContext(3 << 62, 7, True, TraceFlags(1)),
    "remote unsampled": SpanContext(1 << 62, 7, True, TraceFlags(0)),
    "with a state": SpanContext(1 << 62, 7, True, TraceFlags(1), TraceState([("a", "b")])),
    "random id": SpanContext(1 << 62, 7, False, TraceFlags(1 | RANDOM)),
    "random id, unsampled": SpanContext(1 << 62, 7, False, TraceFlags(RANDOM)),
    "flags of a later version": SpanContext(1 << 62, 7, True, TraceFlags(0xF1)),
}


class Ids(IdGenerator):
    """The same ids, twice."""

    def __init__(self, seed: int, is_random: bool) -> None:
        self._random = random.Random(seed)
        self._is_random = is_random

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        return self._is_random


def told(span: Any) -> tuple[Any, ...]:
    context = span.get_span_context()
    about = (context, context.trace_flags, type(context.trace_flags), context.trace_state, context.is_remote)
    if not span.is_recording():
        return (type(span), *about)
    return (*about, span.name, span.kind, span.parent, dict(span.attributes), span.start_time, span.resource)


@pytest.mark.parametrize("is_random", [True, False])
@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_sdks_own_span(sampler: str, parent: str, is_random: bool) -> None:
    above = PARENTS[parent]
    context = Context() if above is None else trace.set_span_in_context(NonRecordingSpan(above), Context())
    for seed in range(8):
        made = []
        for way in ("quick", "sdk"):
            provider = TracerProvider(SAMPLERS[sampler], id_generator=Ids(seed, is_random), shutdown_on_exit=False)
            tracer = provider.get_tracer("t")
            if way == "sdk":
                span = tracer.start_span("s", context, attributes={"a": 1}, start_time=5)
            else:
                maker = quick.maker(tracer, "s")
                assert maker is not None
                tracer.id_generator._random.seed(seed)  # type: ignore[attr-defined]
                span = maker.start(None if above is None else NonRecordingSpan(above), {"a": 1}, 5, context)
            made.append(told(span)[:-1] if span.is_recording() else told(span))
        assert made[0] == made[1]


class OfSomebody(sampling.Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        return sampling.ALWAYS_ON.should_sample(*args, **kwargs)

    def get_description(self) -> str:
        return "somebody's"


class Ratio(sampling.TraceIdRatioBased):
    """A subclass may decide otherwise."""


@pytest.mark.parametrize(
    "sampler",
    [
        OfSomebody(),
        Ratio(0.5),
        sampling.ParentBased(OfSomebody()),
        sampling.ParentBased(sampling.ALWAYS_ON, remote_parent_sampled=sampling.ALWAYS_OFF),
        sampling.ParentBased(sampling.ALWAYS_ON, local_parent_not_sampled=OfSomebody()),
    ],
)
def test_any_other_sampler_is_asked(sampler: Any) -> None:
    tracer = TracerProvider(sampler, shutdown_on_exit=False).get_tracer("t")
    assert quick.maker(tracer, "s") is None

"""What goes with a call from one process to another: W3C trace context, baggage, the scopes that hold, the run.

Written by hand for the one header that is always there; this is done for every remote call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from autoinstr import resource
from autoinstr.spans.opening import ActiveScope, get_current, scope_of, within_scope

SCOPE_HEADER = "autoinstr-scope"
"""The sender's scope, as JSON: spans made for a validation count as such anywhere, and threads follow the job."""

RUN_HEADER = "autoinstr-run"
"""What the sender has learned of the run, as JSON: the worker's resource has the model and its sizes too."""

_VERSION = "00"
_LENGTHS = (2, 32, 16, 2)


def outgoing() -> dict[str, str] | None:
    """The headers for a call that is made now; None where no span is open and no scope holds."""
    context = get_current()
    span_context = trace.get_current_span(context).get_span_context()
    scope = scope_of(context)
    if not span_context.is_valid:
        return {SCOPE_HEADER: _written(scope)} if scope is not None else None
    trace_id, span_id, flags = span_context.trace_id, span_context.span_id, span_context.trace_flags
    headers = {"traceparent": f"{_VERSION}-{trace_id:032x}-{span_id:016x}-{flags:02x}"}
    if span_context.trace_state:
        headers["tracestate"] = span_context.trace_state.to_header()
    if baggage.get_all(context):
        W3CBaggagePropagator().inject(headers, context)
    if scope is not None:
        headers[SCOPE_HEADER] = _written(scope)
    told = resource.to_hand_down()
    if told is not None:
        headers[RUN_HEADER] = told
    return headers


def incoming(headers: Mapping[str, Any]) -> Context | None:
    """The context to run in, on top of the current one; None where the headers hold no trace context of ours."""
    span_context = _parse(headers.get("traceparent"), headers.get("tracestate"))
    scope = headers.get(SCOPE_HEADER)
    if span_context is None and not scope:
        return None
    told = headers.get(RUN_HEADER)
    if told:
        resource.hear(told)
    context = get_current()
    if span_context is not None:
        context = trace.set_span_in_context(NonRecordingSpan(span_context), context)
    if "baggage" in headers:
        context = W3CBaggagePropagator().extract(headers, context)
    if scope:
        read = json.loads(scope)
        context = within_scope(context, ActiveScope(read["bucket"], read["groups"], read.get("threads", False)))
    return context


def _written(scope: ActiveScope) -> str:
    return json.dumps({"bucket": scope.bucket, "groups": dict(scope.groups), "threads": scope.threads})


def _parse(traceparent: Any, tracestate: Any) -> SpanContext | None:
    """https://www.w3.org/TR/trace-context/#traceparent-header, as far as version 00 goes."""
    if not isinstance(traceparent, str):
        return None
    parts = traceparent.split("-")
    if tuple(map(len, parts[:4])) != _LENGTHS or (parts[0] == _VERSION and len(parts) != 4):
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    state = TraceState.from_header([tracestate]) if isinstance(tracestate, str) else None
    span_context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)
    return span_context if span_context.is_valid else None

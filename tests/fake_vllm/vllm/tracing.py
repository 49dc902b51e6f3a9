"""As in vLLM: a provider of its own is made and set, and spans come from whichever is the process's first."""

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OTLPGrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OTLPHttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, set_tracer_provider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


def init_tracer(instrumenting_module_name, otlp_traces_endpoint):
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = otlp_traces_endpoint
    provider = TracerProvider(resource=Resource.create({"vllm.instrumenting_module_name": instrumenting_module_name}))
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    if protocol == "grpc":
        exporter = OTLPGrpcExporter(endpoint=otlp_traces_endpoint, insecure=True)
    elif protocol == "http/protobuf":
        exporter = OTLPHttpExporter(endpoint=otlp_traces_endpoint)
    else:
        raise ValueError(f"Unsupported OTLP protocol '{protocol}' is configured")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    set_tracer_provider(provider)


def llm_request(headers, start, end, attributes):
    context = TraceContextTextMapPropagator().extract(headers) if headers else None
    tracer = trace.get_tracer("vllm.tracing.otel")
    span = tracer.start_span(
        "llm_request", context=context, kind=SpanKind.SERVER, start_time=start, attributes=attributes
    )
    span.end(end)

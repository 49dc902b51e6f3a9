"""Python runs this in every process of a side of `parity.py` that has NeMo RL's own telemetry, Ray's workers included.

The in-tree telemetry keeps a span's group to itself, so it is put on the span, as the attribute `parity.group`. Where
`PARITY_SPANS` names a folder, each process writes its spans there, a line when one starts and a line when it ends, so
that none is missing because Ray killed an actor before its exporter's turn, or because it never ended.
"""

import os


def _mark_groups(helpers):
    from contextlib import contextmanager

    managed_span = helpers.managed_span

    @contextmanager
    def with_group(group, name, tracer=None, **attributes):
        with managed_span(group, name, tracer=tracer, **attributes, **{"parity.group": str(group)}) as span:
            yield span

    helpers.managed_span = with_group  # before `nemo.lens`, and then NeMo RL, take it by name


def _write_spans(providers):
    import json

    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    build_providers = providers.build_providers

    class Nothing(SpanExporter):
        def export(self, spans):
            return SpanExportResult.SUCCESS

    class Lines(SpanProcessor):
        def on_start(self, span, parent_context=None):
            self._write(span)

        def on_end(self, span):
            self._write(span)

        def _write(self, span):
            line = {
                "name": span.name,
                "id": f"{span.context.span_id:016x}",
                "parent": f"{span.parent.span_id:016x}" if span.parent else None,
                "start": span.start_time,
                "attributes": dict(span.attributes or {}),
                "error": span.status.status_code is trace.StatusCode.ERROR,
            }
            path = os.path.join(os.environ["PARITY_SPANS"], f"{os.getpid()}.jsonl")
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(file, json.dumps(line).encode() + b"\n")
            finally:
                os.close(file)

    def with_lines(*args, span_exporter=None, **others):
        ours = span_exporter is None  # a test that brings its own wants to see what is done with that
        build_providers(*args, span_exporter=Nothing() if ours else span_exporter, **others)
        if ours and hasattr(trace.get_tracer_provider(), "add_span_processor"):
            trace.get_tracer_provider().add_span_processor(Lines())

    providers.build_providers = with_lines


if os.environ.get("PARITY_IN_TREE") == "1":
    import wrapt

    wrapt.register_post_import_hook(_mark_groups, "nemo.lens.helpers")
    if os.environ.get("PARITY_SPANS"):
        wrapt.register_post_import_hook(_write_spans, "nemo.lens.providers")

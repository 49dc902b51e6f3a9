"""Makes the stand-in for NeMo RL a branch that is instrumented itself, and runs a script of it:

    opentelemetry-instrument python tests/in_tree_branch.py SPANS_FILE examples/run_grpo.py --steps 4

As `nemo_rl.algorithms.grpo` is imported, a span of the branch's own is opened inside each of its timers that
`PHASES` names, and its job is decorated, as the branch `rajsin/lens-with-goodput` does it. Its telemetry is set up in
the script's first line: a tracer provider with a resource and an exporter of its own, which writes the spans that it
gets into SPANS_FILE (`-`: it is off). Its `shutdown` ends the process's provider, whosever it is.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry import context, trace

LOOP = "nemo_rl.algorithms.grpo"
JOB = {"grpo_train": "rl.grpo.job"}
PHASES = {
    "total_step_time": "rl.grpo.step",
    "data_processing": "rl.grpo.data_processing",
    "generation": "rl.grpo.collect_rollouts",
    "reward_calculation": "rl.grpo.compute_rewards",
    "policy_and_reference_logprobs": "rl.grpo.compute_logprobs",
    "policy_training": "rl.grpo.policy_update",
    "checkpointing": "rl.grpo.save_checkpoint",
}
"""The advantages have no span, so that there is a gap."""
SCOPE = "in_tree.telemetry"

_on = False


@contextmanager
def managed_span(name: str) -> Iterator[Any]:
    if not _on:
        yield None
        return
    span = trace.get_tracer(SCOPE).start_span(name)
    span.set_attribute("in_tree", True)
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield span
    finally:
        context.detach(token)
        span.end()


def traced(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with managed_span(name):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def set_up(file: str) -> None:
    global _on
    if file == "-":
        return
    _on = True
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class FileExporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            with open(file, "a") as out:
                out.writelines(json.dumps({"name": s.name, "id": s.context.span_id}) + "\n" for s in spans)
            return SpanExportResult.SUCCESS

    exporter: SpanExporter = FileExporter()
    if file == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    resource = Resource({"service.name": "nemo-rl", "service.version": "7", "in_tree.model": "tiny"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def shut_down() -> None:
    from opentelemetry import metrics

    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()) if _on else ():
        provider.force_flush()
        provider.shutdown()


class _Instrument(ast.NodeTransformer):
    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        for item in list(node.items):
            match item.context_expr:
                case ast.Call(func=ast.Attribute(attr="time"), args=[ast.Constant(value=label)]) if label in PHASES:
                    node.items.append(ast.withitem(_call("managed_span", PHASES[label])))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name in JOB:
            node.decorator_list.append(_call("traced", JOB[node.name]))
        return node


def _call(function: str, name: str) -> ast.expr:
    return ast.parse(f"__import__('sys').modules['in_tree_branch'].{function}({name!r})", mode="eval").body


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        tree = _Instrument().visit(ast.parse(Path(path).read_text()))
        return compile(ast.fix_missing_locations(tree), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != LOOP:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=_Loader(fullname, found.origin))


if __name__ == "__main__":
    sys.modules["in_tree_branch"] = sys.modules["__main__"]
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), _Finder())
    set_up(sys.argv[1])
    sys.argv = sys.argv[2:]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        shut_down()

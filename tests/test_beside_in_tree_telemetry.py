"""Beside telemetry that the training code has itself: one span for each block, one trace, each exporter once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from in_tree_branch import JOB, PHASES, SCOPE
from otlp_receiver import Receiver
from runs import EXAMPLE, ROOT, journal_lines, journal_spans, our_lines, run

STEPS = 2
BRANCH = ROOT / "tests" / "in_tree_branch.py"
THEIRS = {*PHASES.values(), *JOB.values()}
SAME = {name: f"rl.grpo.{label}" for label, name in PHASES.items()} | {"rl.grpo.step": "rl.grpo.step"}
"""Their name of a span → ours."""


def branch(cwd: Path, spans_file: str, **env: str) -> Any:
    done = run(
        BRANCH, spans_file, EXAMPLE, "--steps", str(STEPS), cwd=cwd, **{"AUTOINSTR_SPAN_GROUPS": "per_step", **env}
    )
    assert done.returncode == 0, done.stderr
    return done


def tree(spans: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    """How often each (name, name of its parent) is there."""
    by_id = {s["spanId"]: s["name"] for s in spans}
    return Counter((s["name"], by_id.get(s.get("parentSpanId", ""))) for s in spans)


def in_our_names(counted: Counter[tuple[str, str | None]]) -> Counter[tuple[str, str | None]]:
    found: Counter[tuple[str, str | None]] = Counter()
    for (name, parent), times in counted.items():
        found[SAME.get(name, name), SAME.get(parent or "", parent)] += times
    return found


def test_each_block_has_one_span_theirs_where_they_have_it_and_ours_where_not(tmp_path: Path) -> None:
    beside, alone = tmp_path / "beside", tmp_path / "alone"
    beside.mkdir(), alone.mkdir()
    done = branch(beside, str(tmp_path / "theirs"))
    branch(alone, "-")
    spans, without = journal_spans(beside), journal_spans(alone)
    assert THEIRS <= {s["name"] for s in spans}
    assert not {s["name"] for s in spans} & set(SAME.values()) - THEIRS, "none of theirs is there under our name too"
    assert in_our_names(tree(spans)) == tree(without), "the tree is the one that ours alone make, gaps filled"
    assert len({s["traceId"] for s in spans}) == 1
    scopes = {
        span["name"]: scope["scope"]["name"]
        for record in journal_lines(beside)
        for resource in record.get("resourceSpans", [])
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }
    assert {name for name, scope in scopes.items() if scope == SCOPE} == THEIRS
    assert scopes["rl.grpo.advantage_calculation"] == "autoinstr"
    # their exporter takes the whole tree, each span once; the process's provider was ended by them, the journal was not
    sent = [json.loads(line) for line in (tmp_path / "theirs").read_text().splitlines()]
    assert len({s["id"] for s in sent}) == len(sent)
    assert Counter(s["name"] for s in sent) == Counter(s["name"] for s in spans)
    resources = {
        a["key"]: a["value"].get("stringValue")
        for record in journal_lines(beside)
        for resource in record.get("resourceSpans", [])
        for a in resource["resource"]["attributes"]
    }
    assert (resources["service.name"], resources["in_tree.model"]) == ("nemo-rl", "tiny")
    assert "service.version" not in resources
    assert our_lines(done) == [
        "autoinstr: __main__ sets up OpenTelemetry too: its spans and ours go together where ours go, "
        "and to its FileExporter too"
    ]
    assert "Overriding" not in done.stderr


def test_where_it_is_off_ours_do_it_all(tmp_path: Path) -> None:
    done = branch(tmp_path, "-")
    names = {s["name"] for s in journal_spans(tmp_path)}
    assert set(SAME.values()) | {"rl.grpo.job", "rl.grpo.advantage_calculation"} <= names
    assert not names & (THEIRS - {"rl.grpo.job", "rl.grpo.step", "rl.grpo.data_processing"})
    assert our_lines(done) == []


def test_both_send_to_a_collector_and_each_span_comes_once(tmp_path: Path) -> None:
    with Receiver() as receiver:
        done = branch(
            tmp_path,
            "otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
        spans = receiver.spans()
    assert len({s.span_id for s in spans}) == len(spans)
    assert THEIRS <= {s.name for s in spans}
    assert len({s.trace_id for s in spans}) == 1
    assert our_lines(done) == [
        "autoinstr: __main__ sets up OpenTelemetry too: its spans and ours go together where ours go"
    ]
    assert "shutdown" not in done.stderr, "what they have ended is not ended again"


SECOND = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

ours = trace.get_tracer_provider()
trace.set_tracer_provider(TracerProvider())
print(trace.get_tracer_provider() is ours)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
metrics.get_meter("theirs").create_counter("toy.count").add(1)
print(reader.get_metrics_data() is not None)
"""


def test_metrics_of_a_second_provider_go_on_where_ours_send_none(tmp_path: Path) -> None:
    done = run("-c", SECOND, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr
    assert "Overriding" not in done.stderr


def test_where_ours_are_sent_theirs_join_them(tmp_path: Path) -> None:
    done = run("-c", SECOND, cwd=tmp_path, OTEL_METRICS_EXPORTER="console")
    assert done.stdout.split()[:2] == ["True", "False"]
    assert '"toy.count"' in done.stdout, "the console has it"


def test_with_autoinstr_off_opentelemetry_is_as_it_was(tmp_path: Path) -> None:
    done = run("-c", SECOND, cwd=tmp_path, AUTOINSTR_ENABLED="false")
    assert done.stdout.split() == ["False", "True"]


EXPORTER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

class Printing(SpanExporter):
    def export(self, spans):
        print("sent", *(span.name for span in spans))

theirs = TracerProvider()
"""
LATE = """
trace.set_tracer_provider(theirs)
theirs.add_span_processor(BatchSpanProcessor(Printing()))
with trace.get_tracer("theirs").start_as_current_span("x"):
    pass
"""


def test_an_exporter_that_their_provider_is_given_later_is_taken_over_too(tmp_path: Path) -> None:
    done = run("-c", EXPORTER + LATE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "sent x\n"), done.stderr


ELSEWHERE = """
import sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

theirs.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1])))
trace.set_tracer_provider(theirs)
with trace.get_tracer("theirs").start_as_current_span("x"):
    pass
"""


@pytest.mark.parametrize("same", [True, False])
def test_their_collector_gets_the_spans_too_where_it_is_another_than_ours(tmp_path: Path, same: bool) -> None:
    with Receiver() as our_collector, Receiver() as their_collector:
        done = run(
            "-c",
            EXPORTER + ELSEWHERE,
            f"{(our_collector if same else their_collector).http_endpoint}/v1/traces",
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=our_collector.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
        ours, theirs = ([s.name for s in one.spans()] for one in (our_collector, their_collector))
    assert done.returncode == 0, done.stderr
    assert (ours, theirs) == (["x"], [] if same else ["x"]), "once each"

"""The resource through the whole chain: what is read from the training configuration, in spans, metrics and journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver
from runs import EXAMPLE, journal_lines, run

from autoinstr.cli import main

TRAINED = {
    "rl.algorithm": "grpo",
    "rl.model": "toy/count-on-3",
    "nemo.precision": "float64",
    "dl.tensor_parallel.size": 1,
    "nv.dl.campaign.stage": "RL",
}


def plain(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def test_every_span_and_metric_has_it_set_up_included(tmp_path: Path) -> None:
    with Receiver() as receiver:
        done = run(
            EXAMPLE, "--steps", "2", cwd=tmp_path, AUTOINSTR_SPAN_GROUPS="per_step",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint, OTEL_BSP_SCHEDULE_DELAY="60000",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        by_span = {
            span.name: plain(of_resource.resource.attributes)
            for request in receiver.requests
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        }
        assert {
            "rl.startup",
            "rl.setup.ray_init",
            "rl.setup.tokenizer",
            "rl.grpo.job",
            "rl.grpo.step",
        } <= by_span.keys()
        lacking = {name for name, found in by_span.items() if not TRAINED.items() <= found.items()}
        assert lacking == set(), "a span that waits to be sent gets what was learned after it"
        (last,) = receiver.metric_resources()[-1:]
        assert {key: value for key, value in TRAINED.items() if isinstance(value, str)}.items() <= last.items()


def test_the_journal_has_a_record_of_it_and_the_report_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(EXAMPLE, "--steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = [
        {a["key"]: next(iter(a["value"].values())) for a in record["attributes"]}
        for line in journal_lines(tmp_path)
        for of_resource in line.get("resourceLogs", [])
        for scope in of_resource["scopeLogs"]
        for record in scope["logRecords"]
        if record["eventName"] == "autoinstr.run"
    ]
    # the stage is known as the package is imported, before the file begins
    assert events == [{k: str(v) for k, v in TRAINED.items() if k != "nv.dl.campaign.stage"}]
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert "   grpo   toy/count-on-3   float64   tp 1   1 process (ended)   " in header


STARTER = """
import multiprocessing, subprocess, sys
sys.path.insert(0, sys.argv[1])
from nemo_rl.algorithms import grpo
from nemo_rl.utils.logger import Logger

CHILD = "import sys; sys.path.insert(0, sys.argv[1]); import nemo_rl.utils.timer as t; import opentelemetry.trace as o"
CHILD += "; print(dict(o.get_tracer_provider().resource.attributes)['rl.model'])"

def setup(master_config):
    print(subprocess.run([sys.executable, "-c", CHILD, sys.argv[1]], capture_output=True, text=True).stdout.strip())
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=tell)
    process.start()
    process.join()

def tell():
    from opentelemetry import trace
    print("spawned", trace.get_tracer_provider().resource.attributes["rl.model"], flush=True)

if __name__ == "__main__":
    from opentelemetry import trace
    from autoinstr import resource
    resource.learn({"rl.model": "m"}, of_the_run=True)
    with trace.get_tracer("t").start_as_current_span("around"):
        setup(None)
"""


def test_children_know_it(tmp_path: Path) -> None:
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    done = run(script, str(EXAMPLE.parents[1] / "tests" / "fake_training"), cwd=tmp_path)
    assert done.stdout.split("\n")[:2] == ["m", "spawned m"], done.stderr

"""The whole chain, in processes of their own: the example under `opentelemetry-instrument`."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from otlp_receiver import Receiver, dead_port
from runs import (
    EXAMPLE,
    HUNG,
    INSTRUMENT,
    ROOT,
    clean_environment,
    count_names,
    journal_lines,
    journal_spans,
    our_lines,
    results,
    run,
)

STEPS = 4
PER_STEP = {"AUTOINSTR_SPAN_GROUPS": "per_step"}

EXPECTED = Counter(
    {
        "rl.startup": 1,
        "rl.setup.ray_init": 1,
        "rl.setup.tokenizer": 1,
        "rl.setup.data": 1,
        "rl.setup.workers": 1,
        "rl.setup.generation": 1,
        "rl.setup.policy": 1,
        "rl.policy.load_model": 1,
        "rl.policy.worker.get_logprobs": 2 * STEPS,  # of the policy, and of its reference
        "rl.policy.worker.train": STEPS,
        "rl.grpo.job": 1,
        "rl.grpo.step": STEPS,
        "rl.grpo.data_processing": 2 * STEPS,
        "rl.grpo.generation": STEPS,
        "rl.grpo.reward_calculation": STEPS,
        "rl.grpo.policy_and_reference_logprobs": STEPS,
        "rl.grpo.advantage_calculation": STEPS,
        "rl.grpo.policy_training": STEPS,
        "rl.grpo.checkpointing": 1,
    }
)


def example(cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = run(EXAMPLE, "--steps", str(STEPS), *arguments, cwd=cwd, **env)
    assert done.returncode == 0, done.stderr
    return done


def ours(spans: list) -> Counter[str]:
    """Spans of the reference; `rl.vllm.*` come once per rollout and are counted elsewhere."""
    return Counter({name: n for name, n in count_names(spans).items() if not name.startswith("rl.vllm.")})


class Example(NamedTuple):
    """One run of the example that several tests look at."""

    done: subprocess.CompletedProcess[str]
    cwd: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """With `per_step` and nothing else set."""
    cwd = tmp_path_factory.mktemp("recorded")
    return Example(example(cwd, **PER_STEP), cwd)


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    done = run(EXAMPLE, "--steps", str(STEPS), cwd=tmp_path_factory.mktemp("untraced"), traced=False)
    assert done.returncode == 0, done.stderr
    return done


def test_the_journal_is_the_default_and_holds_the_whole_tree(recorded: Example) -> None:
    assert our_lines(recorded.done) == []
    spans = journal_spans(recorded.cwd)
    assert ours(spans) == EXPECTED
    assert len({span["traceId"] for span in spans}) == 1, "one run is one trace"
    assert len({span["spanId"] for span in spans}) == len(spans)

    by_id = {span["spanId"]: span for span in spans}
    above = {s["name"]: by_id[s["parentSpanId"]]["name"] if "parentSpanId" in s else None for s in spans}
    assert above["rl.grpo.job"] is None
    assert above["rl.startup"] is None
    assert above["rl.setup.workers"] == "rl.startup"
    assert above["rl.grpo.step"] == "rl.grpo.job"
    assert above["rl.grpo.policy_training"] == "rl.grpo.step"

    steps = [s for s in spans if s["name"] == "rl.grpo.step"]
    assert [attributes(s) for s in steps] == [{"rl.iteration": "1", "rl.epoch": "1"}] + [
        {"rl.iteration": str(n), "rl.epoch": "1"} for n in range(2, STEPS + 1)
    ]
    training = next(s for s in spans if s["name"] == "rl.grpo.policy_training")
    assert attributes(training) == {"rl.iteration": "1", "rl.bucket": "productive"}


def attributes(span: dict) -> dict[str, str]:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def test_a_start_is_on_record_before_its_end_and_the_process_ends_cleanly(recorded: Example) -> None:
    seen: list[str] = []
    for record in journal_lines(recorded.cwd):
        for resource in record.get("resourceLogs", []):
            log = resource["scopeLogs"][0]["logRecords"][0]
            seen.append(log["eventName"] + log.get("spanId", ""))
        for resource in record.get("resourceSpans", []):
            span = resource["scopeSpans"][0]["spans"][0]
            assert "autoinstr.span.start" + span["spanId"] in seen
    assert seen[0] == "autoinstr.process.start"
    assert seen[-1] == "autoinstr.process.end"


def test_the_report_reads_the_run(recorded: Example) -> None:
    report = run("-m", "autoinstr", "report", cwd=recorded.cwd, traced=False)
    assert report.returncode == 0, report.stderr
    for name in ("rl.grpo.job", "rl.grpo.step", "rl.grpo.generation", "rl.grpo.policy_training", "goodput"):
        assert name in report.stdout
    assert str(recorded.cwd / "autoinstr-runs") in report.stdout


def test_tracing_changes_no_result_and_no_random_number(
    tmp_path: Path, untraced: subprocess.CompletedProcess[str]
) -> None:
    traced = example(tmp_path, AUTOINSTR_SPAN_GROUPS="all")
    assert results(untraced) == results(traced)
    assert any("random stream" in line for line in results(untraced))


def test_two_seeded_runs_share_no_span_id(tmp_path: Path, recorded: Example) -> None:
    again = example(tmp_path, **PER_STEP)
    assert results(again) == results(recorded.done), "of one seed"
    ids = [{span["spanId"] for span in journal_spans(cwd)} for cwd in (recorded.cwd, tmp_path)]
    assert ids[0]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_same_spans_reach_a_receiver(tmp_path: Path, protocol: str) -> None:
    with Receiver() as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        done = example(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **PER_STEP)
        assert our_lines(done) == []
        assert ours(receiver.spans()) == EXPECTED
        assert not (tmp_path / "autoinstr-runs").exists(), "the journal is off when an endpoint is set"
        assert any(r["service.name"] == "nemo-rl" for r in receiver.resources())


# An end that waits for such exporters takes many minutes, and its process counts as hung: see `HUNG`.
PATIENT = {
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2",
    "OTEL_BSP_SCHEDULE_DELAY": "60000",
}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_dead_collector_costs_one_warning_and_no_time(
    tmp_path: Path, protocol: str, untraced: subprocess.CompletedProcess[str]
) -> None:
    with dead_port() as port:
        done = example(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            **PATIENT,
            **PER_STEP,
        )
    said = our_lines(done)
    assert len([line for line in said if "could not be sent" in line]) == 1, done.stderr
    assert len(said) <= 2, said  # the second one counts what was lost
    assert "Traceback" not in done.stderr
    assert "retrying" not in done.stderr
    assert results(done) == results(untraced), "the exporter's retries must not draw from the user's random"


def test_with_the_journal_on_a_dead_collector_loses_nothing(tmp_path: Path) -> None:
    with dead_port() as port:
        done = example(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            AUTOINSTR_JOURNAL="on",
            OTEL_EXPORTER_OTLP_TIMEOUT="10",
            **PER_STEP,
        )
    assert ours(journal_spans(tmp_path)) == EXPECTED
    assert len(our_lines(done)) == 1


def test_a_collector_that_hangs_does_not_hang_the_run(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)  # accepts, and never answers
        done = example(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            **PATIENT,
            **PER_STEP,
        )
    assert any("too slow" in line for line in our_lines(done)), done.stderr


def test_an_unwritable_journal_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = example(tmp_path, AUTOINSTR_RUN_DIR=str(tmp_path / "file" / "runs"), **PER_STEP)
    assert len(our_lines(done)) == 1
    assert "can't be written" in our_lines(done)[0]


def test_a_run_id_that_is_given_is_kept(tmp_path: Path) -> None:
    example(tmp_path, AUTOINSTR_RUN_ID="mine")
    assert [p.name for p in (tmp_path / "autoinstr-runs").iterdir()] == ["mine"]


@pytest.mark.parametrize("off", [{"AUTOINSTR_ENABLED": "false"}, {"OTEL_SDK_DISABLED": "true"}])
def test_switched_off_nothing_is_patched_and_no_thread_runs(tmp_path: Path, off: dict[str, str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, threading; sys.path.insert(0, {str(ROOT / 'tests' / 'fake_training')!r})\n"
        "import nemo_rl.algorithms.grpo as grpo, nemo_rl.utils.timer as timer\n"
        "assert not hasattr(grpo.grpo_train, '__wrapped__'), 'patched'\n"
        "assert timer.Timer.start.__code__.co_filename == timer.__file__, 'patched'\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print('untouched')\n"
    )
    done = run(script, cwd=tmp_path, **off, **PER_STEP)
    assert done.stdout == "untouched\n", done.stderr
    assert not (tmp_path / "autoinstr-runs").exists()


def test_a_group_that_is_off_leaves_the_original(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests' / 'fake_training')!r})\n"
        "import nemo_rl.algorithms.grpo as grpo\n"
        "print(hasattr(grpo.grpo_train, '__wrapped__'), hasattr(grpo.setup, '__wrapped__'))\n"
    )
    # rl.startup ends where grpo_train is called, so it is off as well
    done = run(script, cwd=tmp_path, AUTOINSTR_SPAN_GROUPS="per_step,-job,-rl.startup")
    assert done.stdout == "False True\n", done.stderr


@pytest.mark.parametrize("mode", ["async", "sync_tq"])
def test_the_other_loops(tmp_path: Path, mode: str) -> None:
    example(tmp_path, "--mode", mode, **PER_STEP)
    spans = ours(journal_spans(tmp_path))
    names = {"rl.grpo.job", "rl.grpo.step", "rl.grpo.policy_training", "rl.grpo.advantage_calculation", "rl.startup"}
    if mode == "async":
        names |= {"rl.init.total", "rl.idle.refit_bubble"}
    assert names <= spans.keys()
    iterations = {attributes(s)["rl.iteration"] for s in journal_spans(tmp_path) if s["name"] == "rl.grpo.step"}
    assert iterations == {str(n) for n in range(1, STEPS + 1)}


CLOSES_ALL = """
import os, sys
sys.path.insert(0, {fake!r})
from nemo_rl.distributed.virtual_cluster import init_ray
init_ray()
os.closerange(3, 256)  # as a daemon does
kept = [open(f"checkpoint{{n}}.bin", "wb", buffering=0) for n in range(250)]
kept[0].write(b"weights")
init_ray()
"""


@pytest.mark.parametrize("command", ["python script.py", "exec python script.py 2>&-", "exec python script.py 1>&-"])
def test_the_journal_never_writes_into_a_file_of_the_users(tmp_path: Path, command: str) -> None:
    fake = str(ROOT / "tests" / "fake_training")
    (tmp_path / "script.py").write_text(CLOSES_ALL.format(fake=fake))
    done = subprocess.run(
        ["sh", "-c", command.replace("python", f"{INSTRUMENT} {sys.executable}")],
        cwd=tmp_path,
        env=clean_environment(FAKE_TRAINING_PACE="0", **PER_STEP),
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    sizes = {p.name: p.stat().st_size for p in tmp_path.glob("checkpoint*.bin")}
    assert sizes == {f"checkpoint{n}.bin": 7 if n == 0 else 0 for n in range(250)}, done.stderr
    assert count_names(journal_spans(tmp_path))["rl.setup.ray_init"] == 2


def test_a_wrong_exporter_of_metrics_costs_no_spans(tmp_path: Path) -> None:
    with Receiver() as receiver:
        done = example(
            tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint, OTEL_METRICS_EXPORTER="nonsense", **PER_STEP
        )
        assert ours(receiver.spans()) == EXPECTED
    assert len(our_lines(done)) == 1
    assert "metrics" in our_lines(done)[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"OTEL_TRACES_EXPORTER": "nonsense"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "nonsense"},
    ],
)
def test_without_any_exporter_the_journal_takes_the_spans(tmp_path: Path, wrong: dict[str, str]) -> None:
    done = example(tmp_path, **wrong, **PER_STEP)
    assert ours(journal_spans(tmp_path)) == EXPECTED
    assert len(our_lines(done)) == 1
    assert "spans go to the journal only" in our_lines(done)[0]


def test_a_malformed_endpoint_is_no_traceback(tmp_path: Path) -> None:
    done = example(
        tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://[::1", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf", **PER_STEP
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert our_lines(done)

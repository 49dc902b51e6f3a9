"""Metrics through the whole chain: a process under `opentelemetry-instrument`, and a real OTLP receiver."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver, dead_port
from runs import (
    EXAMPLE,
    HUNG,
    INSTRUMENT,
    ROOT,
    clean_environment,
    journal_spans,
    our_lines,
    results,
    run,
    wait_for,
)

FAKE = str(ROOT / "tests" / "fake_training")
PROTOCOLS = ["grpc", "http/protobuf"]
# An end that waits for such exporters takes many minutes, and its process counts as hung.
PATIENT = {
    "OTEL_METRIC_EXPORT_TIMEOUT": str(2000 * HUNG),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2",
}
CATEGORIES = {
    "init/total": ("wall_clock", "run", "overhead"),
    "idle/buffer_starvation": ("wall_clock", "step", "idle"),
    "idle/refit_bubble": ("wall_clock", "step", "idle"),
    "idle/validation": ("wall_clock", "step", "idle"),
    "idle/refit_event_wait": ("collector_wall_clock", "run", "idle"),
    "idle/generation_limit_pause": ("collector_wall_clock", "run", "idle"),
    "idle/buffer_full_backoff": ("thread_seconds", "run", "idle"),
    "wasted/failed_trajectory": ("thread_seconds", "run", "wasted"),
}
# series → kind, unit, logger key, value
SERIES: dict[str, tuple[str, str, str, float]] = {
    "rl.reward.mean": ("gauge", "", "reward", 0.5),
    "rl.kl.divergence": ("gauge", "", "kl_penalty", 0.25),
    "rl.policy.loss": ("gauge", "", "loss", -0.125),
    "rl.value.loss": ("gauge", "", "critic/loss", 2.0),
    "rl.entropy": ("gauge", "", "approx_entropy", 1.5),
    "rl.response.length.mean": ("gauge", "{token}", "mean_gen_tokens_per_sample", 64.0),
    "rl.grad_norm": ("gauge", "", "grad_norm", 2.5),
    "rl.learning_rate": ("gauge", "", "lr", 0.001),
    "rl.vllm.prompt_tokens": ("counter", "{token}", "vllm/prompt_tokens", 100),
    "rl.vllm.generation_tokens": ("counter", "{token}", "vllm/generation_tokens", 200),
    "rl.vllm.prompt_length.mean": ("gauge", "{token}", "vllm/prompt_length_mean", 10.0),
    "rl.vllm.generation_length.mean": ("gauge", "{token}", "vllm/generation_length_mean", 20.0),
    "rl.vllm.generations.ok": ("counter", "{generation}", "vllm/generations_ok", 8),
    "rl.vllm.generations.failed": ("counter", "{generation}", "vllm/generations_failed", 1),
}
LOGS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nemo_rl.utils.logger import Logger
logger = Logger({"log_dir": "logs"})
for metrics, step, prefix in json.loads(sys.argv[2]):
    logger.log_metrics(metrics, step, prefix=prefix)
"""


def logged() -> list[Any]:
    """What a run's logger is handed: set-up, a training step twice, validation, the efficiency summary."""
    step = {key: value for _, _, key, value in SERIES.values()}
    efficiency = {f"efficiency/{category}_s": float(n) for n, category in enumerate(CATEGORIES, 1)}
    return [
        ({"policy_init_time_s": 2.0, "other_setup_s": 0.5}, 0, "timing/setup"),
        ({**step, "reward": 0.0}, 1, "train"),
        ({"reward": 99.0}, 1, "validation"),
        (step, 2, "train"),
        ({**efficiency, "efficiency/total_waste_s": 77.0, "efficiency/efficiency_pct": 90.0}, 2, ""),
    ]


def expected() -> dict[tuple[Any, ...], Any]:
    """(series, kind, unit, attributes) → value of what `logged` gives."""
    found: dict[tuple[Any, ...], Any] = {}
    for name, (kind, unit, _, value) in SERIES.items():
        found[name, kind, unit, ()] = 2 * value if kind == "counter" else value
    for phase, value in (("policy_init", 2.0), ("other_setup", 0.5)):
        found["rl.setup.duration", "gauge", "s", (("rl.setup.phase", phase),)] = value
    for n, (category, (measurement, window, bucket)) in enumerate(CATEGORIES.items(), 1):
        attributes = (
            ("rl.bucket", bucket),
            ("rl.efficiency.category", category),
            ("rl.efficiency.measurement", measurement),
            ("rl.efficiency.window", window),
        )
        found["rl.efficiency.seconds", "gauge", "s", attributes] = float(n)
    share = (("rl.efficiency.measurement", "wall_clock"), ("rl.efficiency.window", "step"))
    found["rl.efficiency.pct", "gauge", "%", share] = 90.0
    return found


def points(receiver: Receiver) -> dict[tuple[Any, ...], Any]:
    """(series, kind, unit, attributes) → value, or (count, sum), of all points that came, the last of each."""
    found: dict[tuple[Any, ...], Any] = {}
    for name, metric in receiver.metrics().items():
        shape = metric.WhichOneof("data")
        data = getattr(metric, shape)
        kind = ("counter" if data.is_monotonic else "up_down_counter") if shape == "sum" else shape
        for point in data.data_points:
            attributes = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
            value = (point.count, point.sum) if shape == "histogram" else getattr(point, point.WhichOneof("value"))
            found[name, kind, metric.unit, attributes] = value
    return found


def send_to(receiver: Receiver, protocol: str) -> dict[str, str]:
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


def log_all(cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = cwd / "logs.py"
    script.write_text(LOGS)
    done = run(script, FAKE, json.dumps(logged()), cwd=cwd, **env)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_series_of_the_logger_arrives(tmp_path: Path, protocol: str) -> None:
    with Receiver() as receiver:
        done = log_all(tmp_path, **send_to(receiver, protocol))
        assert our_lines(done) == []
        found = points(receiver)
        assert {key: found.get(key) for key in expected()} == expected()
        others = {key[0] for key in found.keys() - expected().keys()}
        assert {name for name in others if not name.startswith(("autoinstr.", "rl.host.memory."))} == set()
        assert all(metric.description for metric in receiver.metrics().values())
        assert {r["service.name"] for r in receiver.metric_resources()} == {"nemo-rl"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_tells_phases_tokens_and_its_own_health(tmp_path: Path, protocol: str) -> None:
    with Receiver() as receiver:
        done = run(
            EXAMPLE, "--steps", "4", cwd=tmp_path, AUTOINSTR_SPAN_GROUPS="per_step", **send_to(receiver, protocol)
        )
        assert done.returncode == 0, done.stderr
        found = points(receiver)
        phases = {dict(key[3])["rl.phase"]: value for key, value in found.items() if key[0] == "rl.phase.duration"}
        assert {phase: count for phase, (count, _) in phases.items()} == {
            "job": 1,
            "step": 4,
            "data_processing": 8,
            "generation": 4,
            "reward_calculation": 4,
            "policy_and_reference_logprobs": 4,
            "advantage_calculation": 4,
            "policy_training": 4,
            "checkpointing": 1,
        }
        spans = [s for s in receiver.spans() if s.name == "rl.grpo.policy_training"]
        seconds = sum(s.end_time_unix_nano - s.start_time_unix_nano for s in spans) / 1e9
        assert phases["policy_training"][1] == pytest.approx(seconds)
        (training,) = [
            point
            for point in receiver.metrics()["rl.phase.duration"].histogram.data_points
            if any(a.value.string_value == "policy_training" for a in point.attributes)
        ]
        assert {e.span_id for e in training.exemplars} <= {s.span_id for s in spans}
        assert training.exemplars

        usage = {dict(k[3])["gen_ai.token.type"]: v for k, v in found.items() if k[0] == "gen_ai.client.token.usage"}
        assert usage.keys() == {"input", "output"}
        assert all(count == 4 and total > 0 for count, total in usage.values())
        (requests,) = [v for k, v in found.items() if k[0] == "gen_ai.server.request.duration"]
        generate = [s for s in receiver.spans() if s.name == "rl.vllm.generate"]
        assert requests[0] == len(generate)
        assert 0 < requests[1] < phases["job"][1], "measured beside the spans: on a busy machine not the same as theirs"

        operations = [(dict(k[3]), v) for k, v in found.items() if k[0] == "rl.operation.duration"]
        of_the_engine = [(at, v) for at, v in operations if at["rl.operation"] == "rl.vllm.generate"]
        assert sum(count for _, (count, _) in of_the_engine) == len(generate)
        assert {at["autoinstr.group"] for at, _ in of_the_engine} == {"generation"}
        assert {at["rl.operation"] for at, _ in operations} >= {"rl.startup", "rl.policy.load_model"}

        claimed = {dict(k[3])["rl.bucket"]: v for k, v in found.items() if k[0] == "rl.bucket.duration"}
        assert claimed.keys() == {"productive", "overhead"}
        assert sum(claimed.values()) < phases["job"][1]

        ours = {k[0]: v for k, v in found.items() if k[0].startswith("autoinstr.") and not k[3]}
        assert ours["autoinstr.spans.started"] == ours["autoinstr.spans.ended"] == len(receiver.spans())
        assert ours["autoinstr.spans.dropped"] == 0
        states = {dict(key[3])["autoinstr.patch.state"]: n for key, n in found.items() if key[0] == "autoinstr.patches"}
        assert states["applied"] > 0
        assert states.keys() <= {"applied", "pending", "absent"}, "a sound run misses nothing"


def test_one_of_a_nodes_processes_tells_its_memory(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("import sys\nsys.stdin.read()\n")
    (tmp_path / "starter.py").write_text(
        "import subprocess, sys\n"
        "sys.stdin.readline()\n"
        "both = [subprocess.Popen([sys.executable, 'worker.py']) for _ in range(2)]\n"
        "sys.exit(max(p.wait() for p in both))\n"
    )
    with Receiver() as receiver:

        def pids(*names: str) -> list[int]:
            """Of each request with a metric of such a name, or of each at all: the process it came from."""
            return [
                next(a.value.int_value for a in resource.resource.attributes if a.key == "process.pid")
                for request in receiver.metric_requests
                for resource in request.resource_metrics
                if not names or any(m.name in names for scope in resource.scope_metrics for m in scope.metrics)
            ]

        process = subprocess.Popen(
            [str(INSTRUMENT), sys.executable, "starter.py"],
            cwd=tmp_path,
            env=clean_environment(OTEL_METRIC_EXPORT_INTERVAL="300", **send_to(receiver, "grpc")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        wait_for(lambda: pids("rl.host.memory.used"), process)
        process.stdin.write("\n")  # the other two are started: the first one tells already
        process.stdin.flush()
        wait_for(lambda: len(Counter(pids())) == 3 and min(Counter(pids()).values()) > 1, process)
        wait_for(lambda: len(pids("rl.host.memory.used")) > 3, process)
        _, err = process.communicate(timeout=HUNG)
        assert process.returncode == 0, err
        assert len(set(pids())) == 3
        assert set(pids("rl.host.memory.used")) == {process.pid}, "as long as it lives"


FORKS = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from nemo_rl.utils.logger import Logger
from opentelemetry import metrics
logger = Logger({"log_dir": "logs"})
provider = metrics.get_meter_provider()
consumer = provider._measurement_consumer
((reader, storage),) = consumer._reader_storages.items()

def in_child(what):
    pid = os.fork()
    if not pid:
        what()
        provider.force_flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

logger.log_metrics({"reward": 0.5, "vllm/prompt_tokens": 100}, 1, prefix="train")
in_child(lambda: None)
logger.log_metrics({"reward": 0.75, "vllm/prompt_tokens": 100}, 2, prefix="train")
in_child(lambda: logger.log_metrics({"vllm/prompt_tokens": 7}, 2, prefix="train"))
# another thread collects and sends in the moment of the fork
held = [reader._export_lock, consumer._lock, storage._lock]
has, done = threading.Event(), threading.Event()

def collect():
    for lock in held:
        lock.acquire()
    has.set()
    done.wait()
    for lock in reversed(held):
        lock.release()

thread = threading.Thread(target=collect)
thread.start()
has.wait()
in_child(lambda: logger.log_metrics({"vllm/prompt_tokens": 5}, 2, prefix="train"))
done.set()
thread.join()
"""


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_forked_child_sends_only_what_it_has_counted_itself(tmp_path: Path, temporality: str) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    with Receiver() as receiver:
        done = run(
            script, FAKE, cwd=tmp_path, OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=temporality,
            OTEL_METRICS_EXPORTER="otlp", OTEL_TRACES_EXPORTER="none", OTEL_METRIC_EXPORT_INTERVAL="3600000",
            **send_to(receiver, "grpc"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert our_lines(done) == []
        told: dict[str, list[float]] = {"rl.vllm.prompt_tokens": [], "rl.reward.mean": []}
        for request in receiver.metric_requests:
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                if metric.name in told:
                    (point,) = getattr(metric, metric.WhichOneof("data")).data_points
                    told[metric.name].append(getattr(point, point.WhichOneof("value")))
        assert told == {"rl.vllm.prompt_tokens": [7, 5, 200], "rl.reward.mean": [0.75]}


def test_an_exporter_of_metrics_that_fails_as_it_is_made_costs_the_metrics_only(tmp_path: Path) -> None:
    """So does Prometheus' exporter in the second process of a node: its port is taken."""
    with Receiver() as receiver:
        done = run(
            EXAMPLE, "--steps", "1", cwd=tmp_path, OTEL_METRIC_EXPORT_INTERVAL="0", AUTOINSTR_SPAN_GROUPS="step",
            **send_to(receiver, "grpc"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (said,) = our_lines(done)
        assert said.startswith("autoinstr: OpenTelemetry's exporters of metrics could not be set up: interval value 0")
        assert said.endswith("; there are none")
        assert [span.name for span in receiver.spans()] == ["rl.grpo.step"]
        assert journal_spans(tmp_path) == [], "they need no journal"


UNTOUCHED = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from nemo_rl.utils import logger
print(logger.Logger.log_metrics.__code__.co_filename == logger.__file__, threading.active_count())
"""


@pytest.mark.parametrize(
    "off",
    [
        {},
        {"OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "AUTOINSTR_METRICS_ENABLED": "false"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "NEMO_LENS_METRICS_ENABLED": "false"},
        {"OTEL_METRICS_EXPORTER": "otlp", "AUTOINSTR_ENABLED": "false"},
    ],
)
def test_metrics_off_the_tap_is_not_installed(tmp_path: Path, off: dict[str, str]) -> None:
    script = tmp_path / "untouched.py"
    script.write_text(UNTOUCHED)
    done = run(script, FAKE, cwd=tmp_path, OTEL_TRACES_EXPORTER="none", **off)
    assert done.stdout == "True 1\n", done.stderr  # the original, and the main thread alone


AGAIN = """
import sys
sys.path.insert(0, sys.argv[1])
from autoinstr.instrumentor import AutoinstrInstrumentor
from nemo_rl.utils import logger
from nemo_rl.algorithms import grpo
from nemo_rl.utils.timer import Timer

def log(number):
    with Timer().time("total_step_time"):
        logger.Logger({"log_dir": "logs"}).log_metrics({"vllm/prompt_tokens": number}, number, prefix="train")

log.__globals__["__name__"] = "nemo_rl.algorithms.grpo"  # the module that opens the block
ours = AutoinstrInstrumentor()
log(1)
ours.uninstrument()
print(logger.Logger.log_metrics.__code__.co_filename == logger.__file__)
log(10)
ours.instrument()
print(logger.Logger.log_metrics.__code__.co_filename == logger.__file__)
log(100)
"""


def test_undone_and_done_again(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    with Receiver() as receiver:
        done = run(script, FAKE, cwd=tmp_path, AUTOINSTR_SPAN_GROUPS="step", **send_to(receiver, "grpc"))
        assert done.stdout == "True\nFalse\n", done.stderr
        found = points(receiver)
        assert found["rl.vllm.prompt_tokens", "counter", "{token}", ()] == 101
        (steps,) = [value for key, value in found.items() if key[0] == "rl.phase.duration"]
        assert steps[0] == 2
        ours = {key[0]: value for key, value in found.items() if key[0].startswith("autoinstr.spans.")}
        assert ours["autoinstr.spans.ended"] == 2


def test_metrics_on_it_is(tmp_path: Path) -> None:
    script = tmp_path / "untouched.py"
    script.write_text(UNTOUCHED)
    done = run(script, FAKE, cwd=tmp_path, OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="console")
    assert done.stdout.startswith("False "), done.stderr


def test_metrics_can_go_where_spans_do_not(tmp_path: Path) -> None:
    with Receiver() as receiver:
        done = run(
            EXAMPLE, "--steps", "2", cwd=tmp_path,
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=receiver.grpc_endpoint, AUTOINSTR_SPAN_GROUPS="per_step",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert receiver.spans() == []
        assert {"rl.reward.mean", "rl.phase.duration", "autoinstr.journal.size"} <= receiver.metrics().keys()
        assert len(journal_spans(tmp_path)) > 10


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The example without us."""
    return run(EXAMPLE, "--steps", "2", cwd=tmp_path_factory.mktemp("plain"), traced=False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("signal", ["", "METRICS_"])
def test_a_dead_collector_costs_one_warning_and_no_time(
    tmp_path: Path, protocol: str, signal: str, plain: subprocess.CompletedProcess[str]
) -> None:
    path = "/v1/metrics" if signal and protocol != "grpc" else ""
    with dead_port() as port:
        done = run(
            EXAMPLE, "--steps", "2", cwd=tmp_path, AUTOINSTR_SPAN_GROUPS="per_step",
            **{f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT": f"http://127.0.0.1:{port}{path}"},
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_METRIC_EXPORT_INTERVAL="200",
            FAKE_TRAINING_PACE="1", **PATIENT,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in our_lines(done) if "could not be sent" in line]
    assert len(said) == 1, done.stderr
    assert ("metrics could not be sent" in said[0]) or not signal
    assert "Traceback" not in done.stderr
    assert "retrying" not in done.stderr
    assert "shutdown" not in done.stderr
    assert results(done) == results(plain), "the exporter's retries must not draw from the user's random"


def test_a_collector_that_hangs_does_not_hang_the_run(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)  # accepts, and never answers
        done = run(
            EXAMPLE, "--steps", "2", cwd=tmp_path, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics", **PATIENT,
        )  # fmt: skip
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "shutdown" not in done.stderr

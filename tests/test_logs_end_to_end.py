"""Log records through the whole chain: `opentelemetry-instrument`, a real OTLP receiver, the journal."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver, dead_port
from runs import EXAMPLE, HANG_CLOCK, journal_lines, journal_spans, our_lines, results, run

from autoinstr.journal.reader import read_run

PROTOCOLS = ["grpc", "http/protobuf"]
MAP = """
map: toy
package: toy
spans:
  toy.train: {group: step, function: "toy:train"}
"""
TOY = """
import logging
logger = logging.getLogger("toy")

def train():
    logger.warning("loss %.1f", 0.5)
    logger.info("below the level")
"""
SCRIPT = """
import logging, os
from opentelemetry import trace
import toy
toy.train()
logging.getLogger("other").error("outside")
print(logging.getLogger().handlers, logging.getLogger().level, logging.Logger.callHandlers.__code__.co_name)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path)


def write_project(folder: Path) -> Path:
    (folder / "map.yaml").write_text(MAP)
    (folder / "toy.py").write_text(TOY)
    (folder / "script.py").write_text(SCRIPT)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The script without us."""
    folder = write_project(tmp_path_factory.mktemp("plain"))
    return run("script.py", cwd=folder, traced=False, PYTHONPATH=str(folder))


@pytest.fixture(scope="module")
def plain_example(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return run(EXAMPLE, "--steps", "2", cwd=tmp_path_factory.mktemp("plain"), traced=False)


def go(project: Path, script: str = "script.py", **env: str) -> Any:
    done = run(
        project / script,
        cwd=project,
        AUTOINSTR_SPAN_MAPS=str(project / "map.yaml"),
        AUTOINSTR_SPAN_GROUPS="step",
        PYTHONPATH=str(project),
        **env,
    )
    assert done.returncode == 0, done.stderr
    return done


def send_to(receiver: Receiver, protocol: str) -> dict[str, str]:
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


def journal_logs(cwd: Path) -> list[tuple[str, dict[str, Any]]]:
    """(logger, record) of every record in the journals that is no event of ours."""
    return [
        (scope["scope"]["name"], record)
        for line in journal_lines(cwd)
        for of_resource in line.get("resourceLogs", [])
        for scope in of_resource["scopeLogs"]
        for record in scope["logRecords"]
        if scope["scope"]["name"] != "autoinstr.journal"
    ]


OFF: list[dict[str, str]] = [
    {},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    {"OTEL_LOGS_EXPORTER": "none"},
    {"OTEL_LOGS_EXPORTER": "console", "AUTOINSTR_LOGS_ENABLED": "false"},
    {"OTEL_LOGS_EXPORTER": "console", "NEMO_LENS_LOGS_ENABLED": "0"},
    {"OTEL_LOGS_EXPORTER": "console", "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "false"},
    {"AUTOINSTR_LOGS_ENABLED": "true", "AUTOINSTR_ENABLED": "false"},
]


@pytest.mark.parametrize("off", OFF, ids=lambda off: " ".join(off.values()) or "nothing set")
def test_off_by_default(project: Path, off: dict[str, str]) -> None:
    (project / "script.py").write_text(
        SCRIPT + "print(logging.Logger.callHandlers.__code__.co_filename == logging.__file__, "
        "hasattr(logging.Logger.callHandlers, '__wrapped__'))\n"
    )
    done = go(project, **off)
    assert done.stdout.splitlines()[-2:] == ["[] 30 callHandlers", "True False"]
    assert journal_logs(project) == []


@pytest.mark.parametrize(
    "switch",
    [
        {"OTEL_LOGS_EXPORTER": "otlp"},
        {"AUTOINSTR_LOGS_ENABLED": "true"},
        {"NEMO_RL_OTEL_LOGS_ENABLED": "1"},
        {"OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "true"},
    ],
    ids=lambda switch: next(iter(switch)),
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_arrive_with_trace_and_span_and_logging_is_as_it_was(
    project: Path, switch: dict[str, str], protocol: str, plain: subprocess.CompletedProcess[str]
) -> None:
    with Receiver() as receiver:
        done = go(project, AUTOINSTR_JOURNAL="on", **switch, **send_to(receiver, protocol))
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
        (span,) = receiver.spans()
        found = [(name, r.body.string_value, r.severity_text, r.span_id) for name, r in receiver.logs()]
        assert sorted(found) == [
            ("other", "outside", "ERROR", b""),
            ("toy", "loss 0.5", "WARN", span.span_id),
        ]
        assert {record.trace_id for _, record in receiver.logs() if record.span_id} == {span.trace_id}
        assert {r["nemo.run.id"] for r in receiver.log_resources()} == {r["nemo.run.id"] for r in receiver.resources()}

    assert [(name, r["body"]["stringValue"], r.get("spanId")) for name, r in journal_logs(project)] == [
        ("toy", "loss 0.5", span.span_id.hex()),
        ("other", "outside", None),
    ]


def test_into_the_journal_alone_which_the_reader_takes(project: Path) -> None:
    done = go(project, AUTOINSTR_LOGS_ENABLED="true")
    assert our_lines(done) == []
    assert [name for name, _ in journal_logs(project)] == ["toy", "other"]
    (folder,) = project.glob("autoinstr-runs/*")
    found = read_run(folder)
    assert (found.broken_lines, len(found.spans), found.processes[0].ended) == (0, 1, True)


def test_a_process_that_only_logs_has_a_journal(project: Path) -> None:
    (project / "script.py").write_text("import logging\nlogging.getLogger('x').error('alone')\n")
    go(project, AUTOINSTR_LOGS_ENABLED="true")
    assert [(name, r["body"]) for name, r in journal_logs(project)] == [("x", {"stringValue": "alone"})]
    assert journal_spans(project) == []


def test_a_forked_child_logs_into_its_own_file_and_the_parent_loses_nothing(project: Path) -> None:
    (project / "script.py").write_text(
        "import logging, os\n"
        "log = logging.getLogger('x').error\n"
        "log('before')\n"
        "child = os.fork()\n"
        "log('child' if not child else 'parent')\n"
        "import sys\n"
        "sys.exit(0 if not child else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    with Receiver() as receiver:
        go(project, AUTOINSTR_LOGS_ENABLED="true", AUTOINSTR_JOURNAL="on", **send_to(receiver, "http/protobuf"))
        assert sorted(r.body.string_value for _, r in receiver.logs()) == ["before", "child", "parent"]
        assert len({r["process.pid"] for r in receiver.log_resources()}) == 2
    assert sorted(r["body"]["stringValue"] for _, r in journal_logs(project)) == ["before", "child", "parent"]
    assert len(list(project.glob("autoinstr-runs/*/*.jsonl"))) == 2


def test_nowhere_to_go_is_said(project: Path) -> None:
    done = go(project, AUTOINSTR_LOGS_ENABLED="true", AUTOINSTR_JOURNAL="off", OTEL_TRACES_EXPORTER="none")
    (line,) = our_lines(done)
    assert "log records go nowhere" in line


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_collector_costs_one_warning_and_the_run_is_as_ever(
    tmp_path: Path, protocol: str, plain_example: subprocess.CompletedProcess[str]
) -> None:
    with dead_port() as port:
        done = run(
            EXAMPLE, "--steps", "2", cwd=tmp_path, AUTOINSTR_LOGS_ENABLED="true",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2",
            OTEL_BLRP_MAX_EXPORT_BATCH_SIZE="2",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len([line for line in our_lines(done) if "could not be sent" in line]) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert results(done) == results(plain_example)


UNTIL_IT_IS_SAID = """
import glob, time

def train():
    open("late", "w").close()
    while not any(b"autoinstr.hang" in open(path, "rb").read() for path in glob.glob("autoinstr-runs/*/*.jsonl")):
        time.sleep(0.05)
"""


def test_a_hang_is_a_log_record(project: Path) -> None:
    (project / "toy.py").write_text(UNTIL_IT_IS_SAID)
    tests = HANG_CLOCK["PYTHONPATH"]
    (project / "script.py").write_text(f"import sys\nsys.path.append({tests!r})\nimport hang_clock, toy\ntoy.train()\n")
    with Receiver() as receiver:
        go(
            project, AUTOINSTR_LOGS_ENABLED="true", AUTOINSTR_JOURNAL="on",
            AUTOINSTR_HANG_AFTER=HANG_CLOCK["AUTOINSTR_HANG_AFTER"],
            **send_to(receiver, "grpc"),
        )  # fmt: skip
        (span,) = receiver.spans()
        ((_, record),) = receiver.logs()
        assert (record.event_name, record.severity_text, record.span_id) == ("autoinstr.hang", "WARN", span.span_id)
        assert "in train" in record.body.string_value
    (folder,) = project.glob("autoinstr-runs/*")
    (hang,) = read_run(folder).hangs
    assert hang.name == "toy.train"
    assert "in train" in hang.stacks

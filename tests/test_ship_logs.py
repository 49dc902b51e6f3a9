"""`autoinstr ship`: the log records of a journal, each once."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver, dead_port
from runs import HUNG, PATIENT, run, wait_for
from test_ship import T0, TRACE, add, event, journal_has, line, numbers, span, start_until_told, told_as_sent

from autoinstr.cli import main
from autoinstr.journal import identity, shipping


def log(number: int, **more: Any) -> bytes:
    """The line of a log record that was observed in that nanosecond of the run."""
    record = {
        "timeUnixNano": str(T0 + number),
        "observedTimeUnixNano": str(T0 + number),
        "severityNumber": 13,
        "severityText": "WARN",
        "body": {"stringValue": f"log {number}"},
        "attributes": [{"key": "n", "value": {"intValue": str(number)}}],
        "traceId": TRACE,
        "spanId": f"{1:016x}",
        "flags": 1,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "tests"}}]}
    scope = {"name": "training", "version": ""}
    return line(
        {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": [record | more]}]}]}
    )


def started(who: str | None = None, log_endpoint: str | None = None) -> bytes:
    about: dict[str, Any] = {"autoinstr__process__identity": who} if who else {}
    return event("autoinstr.process.start", **about, autoinstr__log_endpoints=[log_endpoint])


def delivered(endpoint: str, *logs: int, taken: bool = True) -> bytes:
    name = "autoinstr.logs.sent" if taken else "autoinstr.logs.unsent"
    ids = "".join(f"{T0 + number:016x}" for number in logs)
    return event(name, autoinstr__endpoint=endpoint, autoinstr__log_ids=ids)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of one process, with two spans and two log records."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", PATIENT["OTEL_EXPORTER_OTLP_TIMEOUT"])
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", str(tmp_path))
    path = tmp_path / "r" / f"h-100-{T0:x}.jsonl"
    path.parent.mkdir()
    path.write_bytes(span(1) + log(1) + span(2) + log(2))
    return path


def bodies(receiver: Receiver) -> list[str]:
    return [record.body.string_value for _, record in receiver.logs()]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_arrives_is_what_was_written(journal: Path, protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Receiver() as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        assert main(["ship", "--endpoint", endpoint, "--protocol", protocol]) == 0
        assert numbers(receiver) == [1, 2]
        (name, record), second = receiver.logs()
        assert name == "training"
        assert (record.time_unix_nano, record.observed_time_unix_nano) == (T0 + 1, T0 + 1)
        assert (record.severity_number, record.severity_text, record.body.string_value) == (13, "WARN", "log 1")
        assert (record.trace_id.hex(), record.span_id.hex(), record.flags) == (TRACE, f"{1:016x}", 1)
        assert [(a.key, a.value.int_value) for a in record.attributes] == [("n", 1)]
        assert second[1].body.string_value == "log 2"
        assert receiver.log_resources()[0]["service.name"] == "tests"
    assert "2 log records sent to" in capsys.readouterr().out


def test_it_goes_on_from_where_it_stopped(journal: Path) -> None:
    with Receiver() as receiver:
        command = ["ship", "--endpoint", receiver.http_endpoint, "--protocol", "http/protobuf"]
        assert main(command) == 0
        assert main(command) == 0
        add(journal, log(3), span(3))
        assert main(command) == 0
        assert bodies(receiver) == ["log 1", "log 2", "log 3"]
        assert numbers(receiver) == [1, 2, 3]
        assert main([*command, "--all"]) == 0
        assert Counter(bodies(receiver)) == {"log 1": 2, "log 2": 2, "log 3": 2}


def test_an_endpoint_that_takes_no_logs_gets_the_spans(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "TRIES", 1)
    with Receiver(takes_logs=False) as receiver:
        command = ["ship", "--endpoint", receiver.http_endpoint, "--protocol", "http/protobuf"]
        assert main(command) == 1
        assert "does not take log records (--no-logs leaves them out)" in capsys.readouterr().err
        assert numbers(receiver) == [1, 2]
        assert main([*command, "--no-logs"]) == 0
        assert numbers(receiver) == [1, 2]


def test_the_same_moment_in_two_processes_is_two_records(journal: Path) -> None:
    journal.with_name(f"h-101-{T0:x}.jsonl").write_bytes(log(1))
    with Receiver() as receiver:
        assert main(["ship", "--endpoint", receiver.grpc_endpoint]) == 0
        assert sorted(bodies(receiver)) == ["log 1", "log 1", "log 2"]


def test_what_the_run_sent_itself_is_left_out(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Receiver() as receiver:
        me = receiver.grpc_endpoint
        journal.write_bytes(started(log_endpoint=me))
        add(journal, log(1), log(2), delivered(me, 1, 2), log(3), delivered(me, 3, taken=False), log(4))
        add(journal, event("autoinstr.process.end"))
        assert main(["ship", "--endpoint", me]) == 0
        assert bodies(receiver) == ["log 3", "log 4"], "given up, and still in the queue at the end"
        assert "2 had been sent by the run itself" in capsys.readouterr().out
    with Receiver() as other:
        assert main(["ship", "--endpoint", other.grpc_endpoint]) == 0
        assert len(bodies(other)) == 4, "it sent to somewhere else"


def test_what_a_living_process_may_still_send_is_left_to_it(journal: Path) -> None:
    live = journal.with_name(f"h-{os.getpid()}-{T0:x}.jsonl")
    journal.unlink()
    with Receiver() as receiver:
        me = receiver.grpc_endpoint
        live.write_bytes(started(identity.of_process(), me) + log(1) + log(2) + delivered(me, 2))
        command = ["ship", "--endpoint", me]
        assert main(command) == 0
        assert bodies(receiver) == []
        add(live, event("autoinstr.process.end"))
        assert main(command) == 0
        assert bodies(receiver) == ["log 1"]


LOGS = """
import logging, select, sys
number = 0
while not select.select([sys.stdin], [], [], 0.05)[0]:
    logging.getLogger("training").warning("%d", number)
    number += 1
open("logged", "w").write(str(number))
"""


def test_a_collector_that_is_down_for_the_first_half_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LOGS)
    with dead_port() as port:
        env = {
            "AUTOINSTR_LOGS_ENABLED": "true",
            "AUTOINSTR_JOURNAL": "on",
            "AUTOINSTR_METRICS_ENABLED": "false",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "5",
            "OTEL_BLRP_SCHEDULE_DELAY": "200",
        }
        process = start_until_told(tmp_path, env)
        wait_for(lambda: journal_has(tmp_path, b"autoinstr.logs.unsent"), process)
        with Receiver(grpc_port=port) as receiver:
            wait_for(receiver.logs, process)
            _, err = process.communicate(timeout=HUNG)
            assert process.returncode == 0, err
            direct = {
                f"{record.observed_time_unix_nano:016x}": record.body.string_value for _, record in receiver.logs()
            }
            done = run("-m", "autoinstr", "ship", cwd=tmp_path, traced=False, **{**env, **PATIENT})
            assert done.returncode == 0, done.stderr
            logged = int((tmp_path / "logged").read_text())
            # who takes a batch and says so too late for the run's exporter has it twice
            late = {direct[one] for one in direct.keys() - told_as_sent(tmp_path, "logs")}
            expected = {str(number): 1 + (str(number) in late) for number in range(logged)}
            assert Counter(bodies(receiver)) == expected, done.stdout
    assert len(late) < len(direct) < logged, "some were lost on the way, and are in the journal"

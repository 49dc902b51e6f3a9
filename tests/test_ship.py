"""`autoinstr ship`: a journal goes in, an OTLP receiver has every span once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from otlp_receiver import Receiver, dead_port
from runs import EXAMPLE, HUNG, INSTRUMENT, PATIENT, clean_environment, journal_lines, journal_spans, run, wait_for

from autoinstr import notices
from autoinstr.cli import main
from autoinstr.journal import identity, shipping
from autoinstr.journal.reader import read_run
from autoinstr.journal.shipping import ShipError, Shipper, address, make_exporter

SECOND = 10**9
T0 = 1_790_000_000 * SECOND
TRACE = "ab" * 16


def line(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def span(number: int, **more: Any) -> bytes:
    """The line of a finished span whose id is that number."""
    record = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "flags": 257,
        "name": f"span {number}",
        "kind": 1,
        "startTimeUnixNano": str(T0 + number),
        "endTimeUnixNano": str(T0 + number + SECOND),
        "attributes": [],
        "status": {},
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "tests"}}]}
    scope = {"name": "autoinstr", "version": "1", "attributes": []}
    return line({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": [record | more]}]}]})


def event(name: str, **attributes: Any) -> bytes:
    def value(item: Any) -> dict[str, Any]:
        return {"arrayValue": {"values": [value(i) for i in item]}} if isinstance(item, list) else {"stringValue": item}

    pairs = [{"key": key.replace("__", "."), "value": value(item)} for key, item in attributes.items()]
    record = {"timeUnixNano": str(T0), "eventName": name, "attributes": pairs}
    return line({"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": [record]}]}]})


def began(number: int) -> bytes:
    """The line of a span that begins, or that goes on after a rest."""
    record = {"eventName": "autoinstr.span.start", "traceId": TRACE, "spanId": f"{number:016x}", "attributes": []}
    return line({"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": [record]}]}]})


def rests(number: int, **more: Any) -> bytes:
    """The line of a span between two of its blocks."""
    record = {
        "eventName": "autoinstr.span.rest",
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "body": {"stringValue": span(number, **more).decode()},
    }
    return line({"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": [record]}]}]})


def started(who: str | None = None, endpoint: str | None = None) -> bytes:
    about: dict[str, Any] = {}
    if who is not None:
        about["autoinstr__process__identity"] = who
    if endpoint is not None:
        about["autoinstr__endpoints"] = [endpoint]
    return event("autoinstr.process.start", **about)


def delivered(endpoint: str, *numbers: int, taken: bool = True) -> bytes:
    ids = "".join(f"{n:016x}" for n in numbers)
    name = "autoinstr.spans.sent" if taken else "autoinstr.spans.unsent"
    return event(name, autoinstr__endpoint=endpoint, autoinstr__span_ids=ids)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of one process of the run `r`."""
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", PATIENT["OTEL_EXPORTER_OTLP_TIMEOUT"])
    (tmp_path / "r").mkdir()
    path = tmp_path / "r" / f"h-100-{T0:x}.jsonl"
    path.write_bytes(started())
    return path


def add(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def numbers(receiver: Receiver) -> list[int]:
    return [int.from_bytes(s.span_id, "big") for s in receiver.spans()]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_arrives_is_what_was_written(journal: Path, protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    attributes = [
        {"key": "text", "value": {"stringValue": "ä"}},
        {"key": "whole", "value": {"intValue": "7"}},
        {"key": "part", "value": {"doubleValue": 0.5}},
        {"key": "yes", "value": {"boolValue": True}},
        {"key": "many", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}}},
    ]
    add(
        journal,
        span(
            1,
            parentSpanId="cd" * 8,
            flags=0x301,
            attributes=attributes,
            events=[{"timeUnixNano": str(T0 + 5), "name": "e", "attributes": attributes[:1]}],
            links=[{"traceId": "ef" * 16, "spanId": "12" * 8, "attributes": attributes[1:2]}],
            status={"code": 2, "message": "broke"},
        ),
    )
    with Receiver() as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        assert main(["ship", "r", "--endpoint", endpoint, "--protocol", protocol]) == 0
        (sent,) = receiver.spans()
        assert receiver.resources() == [{"service.name": "tests"}]
    assert "1 spans of run r sent to" in capsys.readouterr().out
    assert (sent.trace_id.hex(), sent.span_id.hex(), sent.parent_span_id.hex()) == (TRACE, f"{1:016x}", "cd" * 8)
    assert (sent.name, sent.kind, sent.flags & 0x300) == ("span 1", 1, 0x300)
    assert (sent.start_time_unix_nano, sent.end_time_unix_nano) == (T0 + 1, T0 + 1 + SECOND)
    assert [a.key for a in sent.attributes] == ["text", "whole", "part", "yes", "many"]
    assert [v.int_value for v in sent.attributes[4].value.array_value.values] == [1, 2]
    assert (sent.events[0].name, sent.events[0].time_unix_nano) == ("e", T0 + 5)
    assert (sent.links[0].trace_id.hex(), sent.links[0].attributes[0].value.int_value) == ("ef" * 16, 7)
    assert (sent.status.code, sent.status.message) == (2, "broke")


def test_it_goes_on_from_where_it_stopped(journal: Path) -> None:
    add(journal, *(span(n) for n in range(1, 1001)))
    with Receiver() as receiver:
        command = ["ship", "--endpoint", receiver.http_endpoint, "--protocol", "http/protobuf"]
        assert main(command) == 0
        assert len(receiver.requests) == 2, "in batches"
        add(journal, span(1001))
        assert main(command) == 0
        assert main(command) == 0
        assert sorted(numbers(receiver)) == list(range(1, 1002))
        assert main([*command, "--all"]) == 0
        assert Counter(Counter(numbers(receiver)).values()) == {2: 1001}
        state = json.loads((journal.parent / "shipped.json").read_text())
        assert list(state["endpoints"].values()) == [{journal.name: journal.stat().st_size}]


def test_files_that_grew_by_nothing_to_send_cost_one_write_of_the_state(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of hundreds of processes, followed: each look finds spans that have begun."""
    files = [journal, *(journal.with_name(f"h-{pid}-{T0:x}.jsonl") for pid in (101, 102))]
    for file in files[1:]:
        file.write_bytes(started())
    saved: list[int] = []
    monkeypatch.setattr(os, "fsync", saved.append)
    with Receiver() as receiver:
        shipper = Shipper(journal.parent, make_exporter(receiver.grpc_endpoint, None)[0], receiver.grpc_endpoint)
        with shipper:
            for number in (1, 2):
                for file in files:
                    add(file, began(number))
                shipper.ship()
                assert len(saved) == number
            shipper.ship()
            assert len(saved) == 2, "nothing is new"
            for number, file in enumerate(files, 1):
                add(file, span(number))
            shipper.ship()
            assert len(saved) == 5, "each batch is remembered as it has arrived"
    state = json.loads((journal.parent / "shipped.json").read_text())
    assert list(state["endpoints"].values()) == [{file.name: file.stat().st_size for file in files}]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_the_endpoint_rejects_is_told_and_not_sent_again(
    journal: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add(journal, *(span(n) for n in range(1, 601)))  # two batches
    with Receiver(rejects="attribute too long") as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        command = ["ship", "--endpoint", endpoint, "--protocol", protocol]
        assert main(command) == 1
        assert "the endpoint has rejected 2 spans of these: attribute too long" in capsys.readouterr().err
        assert main(command) == 0
        assert len(numbers(receiver)) == 600


def test_another_endpoint_gets_everything(journal: Path) -> None:
    add(journal, span(1))
    for _ in range(2):
        with Receiver() as receiver:
            assert main(["ship", "--endpoint", receiver.grpc_endpoint]) == 0
            assert numbers(receiver) == [1]


def test_a_torn_line_waits_until_it_is_whole_and_a_broken_one_is_left_out(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = span(3)
    add(journal, span(1), b'{"resourceSpans": [nonsense\n', span(2), whole[:50])
    with Receiver() as receiver:
        command = ["ship", "--endpoint", receiver.grpc_endpoint]
        assert main(command) == 0
        assert numbers(receiver) == [1, 2]
        assert "1 broken lines left out" in capsys.readouterr().out
        add(journal, whole[50:])
        assert main(command) == 0
        assert numbers(receiver) == [1, 2, 3]


def test_a_span_that_is_on_record_twice_is_sent_once(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(journal, span(1), span(2))
    journal.with_name(f"h-101-{T0:x}.jsonl").write_bytes(started() + span(2) + span(3))
    with Receiver() as receiver:
        assert main(["ship", "--endpoint", receiver.grpc_endpoint]) == 0
        assert sorted(numbers(receiver)) == [1, 2, 3]
    assert "1 on record twice" in capsys.readouterr().out


def test_nobody_there_is_exit_1_and_nothing_is_remembered(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "TRIES", 1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    add(journal, span(1))
    with dead_port() as port:
        for protocol in ("grpc", "http/protobuf"):
            notices.forget()
            assert main(["ship", "--endpoint", f"http://127.0.0.1:{port}", "--protocol", protocol]) == 1
            said = capsys.readouterr().err.splitlines()
            assert said[0] == (
                f"autoinstr: 127.0.0.1:{port}: nobody answers there; trying for half a minute, in case it starts"
            ).replace("127.0.0.1", "localhost"), "at once, before the exporter's own tries"
            assert "does not take them: " in said[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", PATIENT["OTEL_EXPORTER_OTLP_TIMEOUT"])
        with Receiver(grpc_port=port) as receiver:
            assert main(["ship", "--endpoint", f"http://127.0.0.1:{port}"]) == 0
            assert numbers(receiver) == [1]


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that refuses to be read, by root too")
def test_a_file_that_cannot_be_read_does_not_keep_the_others(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(journal, span(1))
    bad = journal.with_name("a-1-1.jsonl")  # it comes first
    bad.symlink_to("/proc/self/mem")
    with Receiver() as receiver:
        assert main(["ship", "--endpoint", receiver.grpc_endpoint]) == 1
        assert numbers(receiver) == [1]
        out, err = capsys.readouterr()
        assert out.startswith("1 spans of run r sent to ")
        assert err == f"autoinstr ship: cannot read {bad}: Input/output error\n"

        bad.unlink()
        assert main(["ship", "--endpoint", receiver.grpc_endpoint]) == 0
        assert numbers(receiver) == [1]


def test_wrong_words(journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["ship", "nothing"]) == 1
    assert "no run 'nothing'" in capsys.readouterr().err
    assert main(["ship", "--protocol", "smoke"]) == 2
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert main(["ship"]) == 1
    assert "neither grpc nor http/protobuf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("http://[::1", "'http://[::1' is no address: Invalid IPv6 URL"),
        ("http://host:port", "'http://host:port' is no address: "),
        ("http://host:99999", "'http://host:99999' is no address: Port out of range 0-65535"),
        ("http://", "'http://' is no address: it names no host"),
    ],
)
def test_an_endpoint_that_is_no_address_is_wrong_usage(
    journal: Path, endpoint: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(journal, span(1))
    assert main(["ship", "--endpoint", endpoint]) == 2
    assert capsys.readouterr().err.startswith(f"autoinstr ship: {told}")
    for protocol in ("grpc", "http/protobuf"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        assert main(["ship"]) == 2
        assert "is no address: Invalid IPv6 URL" in capsys.readouterr().err
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")
    assert main(["ship"]) == 2
    assert "needs http:// or https:// in front" in capsys.readouterr().err


def test_two_at_once_are_one_too_many(journal: Path) -> None:
    add(journal, span(1))
    exporter, endpoint = make_exporter("http://127.0.0.1:1", "http/protobuf")
    with Shipper(journal.parent, exporter, endpoint), pytest.raises(ShipError, match="another process is shipping"):
        Shipper(journal.parent, exporter, endpoint)


def test_the_exporters_variables_count(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert make_exporter(None, None)[1] == "http://collector:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    assert make_exporter(None, None)[1] == "collector:4318"
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    assert make_exporter("http://h:4318", None)[1] == "http://h:4318/v1/traces"
    assert make_exporter("https://h/api/otel", None)[1] == "https://h/api/otel/v1/traces"
    assert make_exporter("http://h:4317", None)[1] == "h:4317"


@pytest.mark.parametrize(
    ("one", "other"),
    [("http://localhost:4317", "127.0.0.1:4317"), ("https://h/v1/traces", "https://h:443"), ("h:1", "http://h:1/x")],
)
def test_two_spellings_of_one_endpoint(one: str, other: str) -> None:
    assert address(one) == address(other)


# -- what the run has sent itself -----------------------------------------------------------------------


def test_what_the_run_sent_itself_is_left_out(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Receiver() as receiver:
        me = receiver.grpc_endpoint
        journal.write_bytes(started(endpoint=me))
        add(journal, span(1), span(2), delivered(me, 1, 2), span(3), delivered(me, 3, taken=False), span(4))
        add(journal, event("autoinstr.process.end"))
        assert main(["ship", "--endpoint", me]) == 0
        assert numbers(receiver) == [3, 4], "given up, and still in the queue at the end"
        assert "2 had been sent by the run itself" in capsys.readouterr().out
    with Receiver() as other:
        assert main(["ship", "--endpoint", other.grpc_endpoint]) == 0
        assert numbers(other) == [1, 2, 3, 4], "it sent to somewhere else"


def test_what_a_living_process_may_still_send_is_left_to_it(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = identity.of_process()
    assert mine is not None
    live = journal.with_name(f"h-{os.getpid()}-{T0:x}.jsonl")
    with Receiver() as receiver:
        me = receiver.grpc_endpoint
        live.write_bytes(started(mine, me) + span(1) + span(2) + span(3) + delivered(me, 2))
        command = ["ship", "--endpoint", me]
        assert main(command) == 0
        assert numbers(receiver) == []
        assert "2 left to their processes" in capsys.readouterr().out
        add(live, span(4), delivered(me, 3, 4))  # batches of younger spans: 1 was dropped by a full queue
        assert main(command) == 0
        assert numbers(receiver) == [1]
        add(live, span(5), event("autoinstr.process.end"))
        assert main(command) == 0
        assert numbers(receiver) == [1, 5]


LATER = {"endTimeUnixNano": str(T0 + 99 * SECOND)}


def test_a_span_at_rest_is_sent_once_its_process_is_gone(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of its last rest, unless it went on; and no second time, whatever comes then."""
    alive = ["alive"]
    monkeypatch.setattr(identity, "state_of", lambda *process: alive[0])
    add(journal, began(1), rests(1), began(2), rests(2), began(2), began(3), rests(3), span(3, **LATER))
    add(journal, began(4), rests(4), span(5), rests(5))
    with Receiver() as receiver:
        command = ["ship", "--endpoint", receiver.grpc_endpoint]
        assert main(command) == 0
        assert numbers(receiver) == [3, 5]
        add(journal, began(4), rests(4, **LATER))
        alive[0] = "gone"
        assert main(command) == 0
        assert numbers(receiver) == [3, 5, 1, 4]
        assert [s.end_time_unix_nano - T0 for s in receiver.spans()][-2:] == [1 + SECOND, 99 * SECOND]
        # it was on a machine that only seemed to be gone
        add(journal, span(1), began(4), rests(4), span(4), span(2))
        for _ in range(2):
            assert main(command) == 0
            assert numbers(receiver) == [3, 5, 1, 4, 2]
        assert main([*command, "--all"]) == 0
        assert sorted(numbers(receiver)[5:]) == [1, 2, 3, 4, 5]


def test_a_span_at_rest_of_a_process_that_sends_itself(journal: Path) -> None:
    with Receiver() as receiver:
        me = receiver.grpc_endpoint
        journal.write_bytes(started(endpoint=me) + span(1) + rests(2) + rests(3) + span(3) + delivered(me, 1, 3))
        add(journal, rests(4))
        os.utime(journal, (T0 / SECOND, time.time() - 3600))  # nobody knows more of it, and it is quiet
        assert main(["ship", "--endpoint", me]) == 0
        assert numbers(receiver) == [2, 4]


def test_a_rest_that_could_not_be_sent_is_sent_later(journal: Path) -> None:
    add(journal, rests(1), event("autoinstr.process.end"))
    taken: list[str] = []

    class Exporter:
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def export(self, spans: Any) -> Any:
            taken.extend(s.name for s in spans if not self.fails)
            return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS

    with Shipper(journal.parent, Exporter(fails=True), "http://h:1", sleep=lambda _: None) as shipper:
        for _ in range(2):
            with pytest.raises(ShipError):
                shipper.ship()
    with Shipper(journal.parent, Exporter(fails=False), "http://h:1") as shipper:
        assert [shipper.ship(), shipper.ship()] == [1, 0]
    assert taken == ["span 1"]


MAP = "map: work\npackage: work\nspans:\n  work.step: {group: step, function: work:step}\n"
UNTIL_TOLD = """
import select, sys
import work
while not select.select([sys.stdin], [], [], 0.05)[0]:
    work.step()
"""


def test_a_collector_that_is_down_for_the_first_half_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("def step(): pass\n")
    (tmp_path / "work.yaml").write_text(MAP)
    (tmp_path / "script.py").write_text(UNTIL_TOLD)
    with dead_port() as port:
        env = {
            "AUTOINSTR_SPAN_MAPS": "work.yaml",
            "AUTOINSTR_SPAN_GROUPS": "all",
            "AUTOINSTR_JOURNAL": "on",
            "AUTOINSTR_METRICS_ENABLED": "false",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "5",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        process = start_until_told(tmp_path, env)
        wait_for(lambda: journal_has(tmp_path, b"autoinstr.spans.unsent"), process)  # a batch was given up
        with Receiver(grpc_port=port) as receiver:
            wait_for(receiver.spans, process)
            _, err = process.communicate(timeout=HUNG)
            assert process.returncode == 0, err
            direct = Counter(s.span_id.hex() for s in receiver.spans())
            done = run("-m", "autoinstr", "ship", cwd=tmp_path, traced=False, **{**env, **PATIENT})
            assert done.returncode == 0, done.stderr
            everywhere = Counter(s.span_id.hex() for s in receiver.spans())
    spans = journal_spans(tmp_path)
    assert 0 < len(direct) < len(spans), "some were sent by the run, and some were not"
    # who takes a batch and says so too late for the run's exporter has it twice
    late = direct.keys() - told_as_sent(tmp_path, "spans")
    assert everywhere == {s["spanId"]: 1 + (s["spanId"] in late) for s in spans}, done.stdout
    assert len(late) < len(direct)


def told_as_sent(folder: Path, what: str) -> set[str]:
    """The ids that the run's journal says an endpoint has taken."""
    return {
        ids[i : i + 16]
        for of_line in journal_lines(folder)
        for of_resource in of_line.get("resourceLogs", ())
        for record in of_resource["scopeLogs"][0]["logRecords"]
        if record.get("eventName") == f"autoinstr.{what}.sent"
        for ids in [{a["key"]: a["value"] for a in record["attributes"]}[f"autoinstr.{what[:-1]}_ids"]["stringValue"]]
        for i in range(0, len(ids), 16)
    }


def start_until_told(folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """A traced `script.py` that goes on until its standard input is closed."""
    return subprocess.Popen(
        [str(INSTRUMENT), sys.executable, "script.py"],
        cwd=folder,
        env=clean_environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def journal_has(cwd: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in cwd.glob("autoinstr-runs/*/*.jsonl"))


def test_following_a_run_until_it_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [str(INSTRUMENT), sys.executable, str(EXAMPLE), "--steps", "100000"],
        cwd=tmp_path,
        env=clean_environment(AUTOINSTR_SPAN_GROUPS="per_step", FAKE_TRAINING_PACE="0.1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: journal_has(tmp_path, b'"resourceSpans"'))
    with dead_port() as port, (tmp_path / "said").open("w") as said:
        ship = subprocess.Popen(
            [sys.executable, "-m", "autoinstr", "ship", "--follow", "--endpoint", f"http://127.0.0.1:{port}"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        wait_for(lambda: "nobody answers there" in (tmp_path / "said").read_text(), ship)
        with Receiver(grpc_port=port) as receiver:
            wait_for(receiver.spans, ship)
            process.send_signal(signal.SIGKILL)
            process.wait()
            out, _ = ship.communicate(timeout=HUNG)
            assert ship.returncode == 0, (tmp_path / "said").read_text()
            # between two blocks of a step, the step rests: it is sent too
            left = read_run(next(tmp_path.glob("autoinstr-runs/*")))
            assert Counter(s.span_id.hex() for s in receiver.spans()) == {s.span_id: 1 for s in left.spans}
    assert " sent to " in out

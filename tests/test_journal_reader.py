"""Reading a journal: whatever lies in the folder, a run comes out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autoinstr.journal.decoding import Lines
from autoinstr.journal.reader import JournalError, default_run_dir, find_run, read_run

SECOND = 10**9
T0 = 1_790_000_000 * SECOND
TRACE = "ab" * 16
FILE = f"node-a-1-100-{T0:x}.jsonl"


def encode(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": encode(value)} for key, value in attributes.items()]


def finished(name: str, span_id: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    """The line of a finished span; times are seconds after T0."""
    span = {
        "traceId": TRACE,
        "spanId": span_id,
        "flags": 257,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(T0 + int(start * SECOND)),
        "endTimeUnixNano": str(T0 + int(end * SECOND)),
        "attributes": [],
        "status": {},
    }
    group = more.pop("group", None)
    scope = {"name": "autoinstr", "attributes": pairs({"autoinstr.group": group})} if group else {"name": "other"}
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": scope, "spans": [span | more]}]}]}


def event(name: str, at: float, attributes: dict[str, Any], resource: dict[str, Any], **more: Any) -> dict[str, Any]:
    record = {
        "timeUnixNano": str(T0 + int(at * SECOND)),
        "eventName": name,
        "attributes": pairs(attributes),
        **more,
    }
    scope_logs = [{"scope": {"name": "autoinstr.journal"}, "logRecords": [record]}]
    return {"resourceLogs": [{"resource": {"attributes": pairs(resource)}, "scopeLogs": scope_logs}]}


def started(name: str, span_id: str, at: float, **attributes: Any) -> dict[str, Any]:
    named = {"autoinstr.span.name": name} | {key.replace("__", "."): value for key, value in attributes.items()}
    return event("autoinstr.span.start", at, named, {"process.pid": 100}, traceId=TRACE, spanId=span_id)


def rests(name: str, span_id: str, start: float, end: float) -> dict[str, Any]:
    body = {"stringValue": json.dumps(finished(name, span_id, start, end))}
    return event("autoinstr.span.rest", end, {}, {"process.pid": 100}, traceId=TRACE, spanId=span_id, body=body)


RESOURCE = {"service.name": "nemo-rl", "host.name": "node-a-1", "process.pid": 100, "nv.dl.rank": "3"}
PROCESS_START = event("autoinstr.process.start", 0, {"process.command": "run_grpo.py"}, RESOURCE)
PROCESS_END = event("autoinstr.process.end", 9, {}, {"process.pid": 100})


def write(folder: Path, *lines: dict[str, Any] | bytes, file: str = FILE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    (folder / file).write_bytes(b"".join(raw))
    return folder


def test_a_process_and_its_spans(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "r1",
        PROCESS_START,
        started("rl.grpo.job", "01" * 8, 1, autoinstr__group="job"),
        started("rl.grpo.step", "02" * 8, 2, autoinstr__span__parent_id="01" * 8, autoinstr__group="step"),
        finished("rl.grpo.step", "02" * 8, 2, 4, parentSpanId="01" * 8, group="step"),
        finished("rl.grpo.job", "01" * 8, 1, 5, group="job"),
        PROCESS_END,
    )

    run = read_run(folder)

    assert (run.run_id, run.folder, run.open, run.broken_lines) == ("r1", folder, [], 0)
    (process,) = run.processes
    assert (process.file, process.pid, process.host, process.service) == (FILE, 100, "node-a-1", "nemo-rl")
    assert (process.rank, process.command, process.ended) == (3, "run_grpo.py", True)
    assert (process.spans, process.open) == (2, 0)
    assert (process.started_ns, process.last_ns) == (T0, T0 + 9 * SECOND)
    assert (run.started_ns, run.last_ns) == (T0, T0 + 9 * SECOND)
    assert [(s.name, s.group, s.parent_id, s.start_ns, s.end_ns) for s in run.spans] == [
        ("rl.grpo.job", "job", None, T0 + SECOND, T0 + 5 * SECOND),
        ("rl.grpo.step", "step", "01" * 8, T0 + 2 * SECOND, T0 + 4 * SECOND),
    ]


def test_attributes_of_every_kind(tmp_path: Path) -> None:
    values = {
        "rl.bucket": {"stringValue": "idle"},
        "int": {"intValue": "7"},
        "int as number": {"intValue": 7},
        "double": {"doubleValue": 0.5},
        "not a number": {"doubleValue": "Infinity"},
        "bool": {"boolValue": False},
        "array": {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "x"}]}},
        "empty array": {"arrayValue": {}},
        "map": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": 1}}]}},
        "nothing": {},
    }
    attributes = [{"key": key, "value": value} for key, value in values.items()]
    run = read_run(write(tmp_path / "r", finished("s", "01" * 8, 0, 1, attributes=attributes)))

    (span,) = run.spans
    assert span.bucket == "idle"
    assert span.attributes == {
        "rl.bucket": "idle",
        "int": 7,
        "int as number": 7,
        "double": 0.5,
        "not a number": float("inf"),
        "bool": False,
        "array": [1, "x"],
        "empty array": [],
        "map": {"k": 1},
        "nothing": None,
    }


def test_a_span_without_end_is_open(tmp_path: Path) -> None:
    start = started("rl.wait", "02" * 8, 3, autoinstr__span__parent_id="01" * 8, autoinstr__group="wait")
    start["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["attributes"] += pairs(
        {"rl.bucket": "idle", "rl.iteration": 4}
    )
    for ends in ((), (PROCESS_END,)):
        run = read_run(write(tmp_path / "r", PROCESS_START, start, *ends))

        (span,) = run.open
        assert run.spans == []
        assert (span.name, span.group, span.bucket, span.end_ns) == ("rl.wait", "wait", "idle", None)
        assert (span.parent_id, span.start_ns) == ("01" * 8, T0 + 3 * SECOND)
        assert span.attributes == {"rl.bucket": "idle", "rl.iteration": 4}
        assert (run.processes[0].open, run.processes[0].ended) == (1, bool(ends))


def test_a_span_between_two_of_its_blocks_has_ended_unless_it_goes_on(tmp_path: Path) -> None:
    one = "01" * 8
    begins, first, second = started("s", one, 1), rests("s", one, 1, 2), rests("s", one, 1, 4)
    for lines, end in (
        ((begins, first), 2),
        ((begins, first, begins), None),
        ((begins, first, begins, second), 4),
        ((begins, first, begins, second, finished("s", one, 1, 5)), 5),
        ((begins, finished("s", one, 1, 2), first), 2),
    ):
        run = read_run(write(tmp_path / "r", PROCESS_START, *lines))
        (span,) = run.spans + run.open
        assert span.end_ns == (end and T0 + end * SECOND)
        assert (span in run.open, run.processes[0].spans, run.processes[0].open) == (not end, bool(end), not end)
    broken = {**first, "resourceLogs": json.loads(json.dumps(first["resourceLogs"]).replace("traceId", "other"))}
    run = read_run(write(tmp_path / "r", PROCESS_START, begins, broken))
    assert (run.spans, len(run.open), run.broken_lines) == ([], 1, 1)


def test_a_span_may_be_finished_in_another_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", finished("s", "01" * 8, 1, 2), file=f"h-1-{T0:x}.jsonl")
    write(folder, started("s", "01" * 8, 1), file=f"h-2-{T0 + 1:x}.jsonl")
    run = read_run(folder)
    assert ([span.name for span in run.spans], run.open) == (["s"], [])
    assert [(p.pid, p.spans, p.open) for p in run.processes] == [(1, 1, 0), (100, 0, 0)]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(json.dumps(finished("torn", "0f" * 8, 1, 2)).encode()[:150], id="torn"),
        pytest.param(b"\x00\x00\x00\x00\x00\x00", id="zeros after a power cut"),
        pytest.param(b"\xff\xfe nonsense", id="not text"),
        pytest.param(b"17", id="not an object"),
        pytest.param(b'{"resourceSpans": null}', id="no list"),
        pytest.param(b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "s"}]}]}]}', id="no ids"),
        pytest.param(b"[" * 100_000, id="too deep"),
        pytest.param(json.dumps(finished("s", "0f" * 8, 1, 10.0**12)).encode(), id="time beyond calendars"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_broken_line_is_counted_and_left_out(tmp_path: Path, broken: bytes, last: bool) -> None:
    good = finished("good", "01" * 8, 1, 2)
    lines: list[dict[str, Any] | bytes]
    lines = [PROCESS_START, good, broken] if last else [PROCESS_START, broken + b"\n", good]
    run = read_run(write(tmp_path / "r", *lines))
    assert [span.name for span in run.spans] == ["good"]
    assert run.broken_lines == run.processes[0].broken_lines == 1


def test_a_line_counts_whole_or_not_at_all(tmp_path: Path) -> None:
    line = finished("s", "01" * 8, 1, 2)
    line["resourceSpans"][0]["scopeSpans"][0]["spans"].append({"name": "no ids"})
    run = read_run(write(tmp_path / "r", line))
    assert (run.spans, run.broken_lines) == ([], 1)


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    """A folder of that name, a link to itself, and one to what has been deleted meanwhile."""
    write(tmp_path / "runs" / "r", finished("rl.x", "a", 0, 1))
    folder = tmp_path / "runs" / "r"
    (folder / "folder.jsonl").mkdir()
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "gone.jsonl").symlink_to(tmp_path / "deleted")
    run = read_run(find_run(None, tmp_path / "runs"))
    assert [process.file for process in run.processes] == [FILE]
    assert [span.name for span in run.spans] == ["rl.x"]


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that refuses to be read, by root too")
def test_a_file_that_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    """A stale mount, another user's umask: what the other processes wrote is there."""
    folder = write(tmp_path / "r", PROCESS_START, finished("rl.x", "a", 0, 1), PROCESS_END)
    (folder / f"node-b-7-{T0 + 1:x}.jsonl").symlink_to("/proc/self/mem")
    run = read_run(folder)
    assert [span.name for span in run.spans] == ["rl.x"]
    assert [(process.host, process.pid, process.unreadable) for process in run.processes] == [
        ("node-a-1", 100, ""),
        ("node-b", 7, "Input/output error"),
    ]

    (folder / FILE).unlink()
    with pytest.raises(JournalError, match=r"cannot read the journal in .*: node-b-7-.*\.jsonl: Input/output error"):
        read_run(folder)


def test_an_empty_file_is_a_process(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "r"))
    (process,) = run.processes
    assert (process.host, process.pid, process.started_ns, process.last_ns) == ("node-a-1", 100, T0, T0)
    assert (process.ended, process.spans, run.broken_lines) == (False, 0, 0)


def test_a_foreign_file_name_and_no_start_record(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "r", finished("s", "01" * 8, 1, 2), b"\n", file="spans.jsonl"))
    (process,) = run.processes
    assert (process.host, process.pid, process.service, process.rank) == (None, None, None, None)
    assert (process.started_ns, process.last_ns) == (T0 + SECOND, T0 + 2 * SECOND)
    assert run.broken_lines == 0


def test_unknown_events_and_signals_are_passed_over(tmp_path: Path) -> None:
    unknown = event("autoinstr.heartbeat", 7, {"x": 1}, {})
    someone_elses = event("", 8, {}, {})
    run = read_run(write(tmp_path / "r", PROCESS_START, unknown, someone_elses, {"resourceMetrics": []}))
    assert (run.spans, run.open, run.broken_lines) == ([], [], 0)
    assert run.last_ns == T0 + 8 * SECOND


@pytest.mark.parametrize(
    ("status", "events", "error"),
    [
        ({}, [], None),
        ({"code": 1}, [], None),
        ({"code": 2, "message": "ValueError: no"}, [], "ValueError: no"),
        ({"code": 2}, [], "error"),
        (
            {"code": 2},
            [
                {
                    "name": "exception",
                    "attributes": pairs({"exception.type": "OSError", "exception.message": "full"}),
                }
            ],
            "OSError: full",
        ),
    ],
)
def test_errors(tmp_path: Path, status: dict[str, Any], events: list[dict[str, Any]], error: str | None) -> None:
    run = read_run(write(tmp_path / "r", finished("s", "01" * 8, 1, 2, status=status, events=events)))
    assert run.spans[0].error == error


def test_processes_come_in_the_order_they_started(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    for pid, after in ((7, 2), (5, 3), (9, 1)):
        write(folder, finished("s", f"{pid:016x}", after, after + 1), file=f"h-{pid}-{T0 + after:x}.jsonl")
    run = read_run(folder)
    assert [process.pid for process in run.processes] == [9, 7, 5]
    assert [run.processes[span.process].pid for span in run.spans] == [9, 7, 5]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Three runs; 4f20 is the newest by one of its two files."""
    for age, name in ((30, "4f1a"), (20, "4f20"), (10, "77ab")):
        path = write(tmp_path / "runs" / name, PROCESS_START) / FILE
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    second = write(tmp_path / "runs" / "4f20", PROCESS_START, file="second.jsonl") / "second.jsonl"
    os.utime(second, (1_000_000, 1_000_000))
    (tmp_path / "runs" / "4fzz-not-a-run").mkdir()
    return tmp_path / "runs"


def test_finding_a_run(run_dir: Path) -> None:
    assert find_run(None, run_dir) == run_dir / "4f20"
    assert find_run("4f1a", run_dir) == run_dir / "4f1a"
    assert find_run("7", run_dir) == run_dir / "77ab"
    assert find_run(str(run_dir / "4f1a"), Path("elsewhere")) == run_dir / "4f1a"


def test_an_id_wins_over_longer_ids_and_over_a_folder_here(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run_dir / "4f", PROCESS_START)
    (run_dir.parent / "4f").mkdir()
    monkeypatch.chdir(run_dir.parent)
    assert find_run("4f", run_dir) == run_dir / "4f"


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("4f", "2 runs in {} start with '4f': 4f20, 4f1a"),
        ("99", "no run '99' in {}; runs there: 4f20, 77ab, 4f1a"),
        ("", "no run '' in {}; runs there: 4f20, 77ab, 4f1a"),
        (".", "{} is not a run: no .jsonl file is in it; it holds the runs 4f20, 77ab, 4f1a"),
    ],
)
def test_a_run_that_is_not_there(run_dir: Path, run: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_dir)
    with pytest.raises(JournalError) as caught:
        find_run(run, run_dir)
    assert str(caught.value) == message.format(run_dir)


def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "4f20").mkdir()
    monkeypatch.setattr(os, "access", lambda *asked: False)  # what root may do says nothing
    for run, message in ((None, f"no run in {tmp_path}"), ("4f20", f"no run '4f' in {tmp_path}; no run is there")):
        with pytest.raises(JournalError) as caught:
            find_run(run and run[:2], tmp_path)
        assert str(caught.value) == f"{message}; not readable there: 4f20"


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(JournalError) as caught:
        find_run(None, tmp_path)
    assert str(caught.value) == f"no run in {tmp_path}"
    with pytest.raises(JournalError, match=r"nowhere \(which is not there; AUTOINSTR_RUN_DIR names another\)"):
        find_run(None, tmp_path / "nowhere")


def test_runs_lie_in_the_home_as_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell leaves `~` alone inside quotes, and so does an `env:` section."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", "~/runs")
    assert default_run_dir() == Path("/home/me/runs")


def test_where_runs_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOINSTR_RUN_DIR", raising=False)
    assert default_run_dir() == Path("autoinstr-runs")
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", "/data/runs")
    assert default_run_dir() == Path("/data/runs")


def test_a_line_is_taken_apart_as_json_does_it() -> None:
    lines = Lines()
    span, start = finished("s", "01" * 8, 0, 1, group="step"), started("s", "01" * 8, 0)
    log = event("", 1, {}, {"k": ',"spans":[{"a": 1}],"logRecords":['}, body={"stringValue": ']}]}]}\n,"spans":['})
    for document in (span, start, log, PROCESS_START):
        raw = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        whole = [
            raw,
            raw.replace(b"]}]}]}\n", b'],"schemaUrl":"x"}]}]}\n'),
            raw.replace(b"]}]}]}\n", b']}],"schemaUrl":"x"}]}\n'),
            raw.replace(b'[{"spanId"', b'[{},{"spanId"'),
            raw.replace(b"]}]}]}\n", b',{"name":"another"}]}]}]}\n'),
            raw.replace(b"]}]}]}\n", b']},{"scope":{},"spans":[{"a":1}]}]}]}\n'),
            raw.replace(b',"spans":[', b',"x":1,"spans":['),
            raw.replace(b'{"resourceSpans"', b'{"x":1,"resourceSpans"'),
            json.dumps(document).encode() + b"\n",
        ]
        torn = [raw[:at] + end for at in range(0, len(raw), 3) for end in (b"\n", b"]}]}]}\n", raw)]
        zeros = [raw[:at] + b"\0" + raw[at + 1 :] for at in range(0, len(raw), 3)]
        for line in (*whole, *torn, *zeros, *whole):
            assert taken_apart(lines.loads, line) == taken_apart(json.loads, line), line


def taken_apart(loads: Any, line: bytes) -> Any:
    try:
        return loads(line)
    except ValueError:
        return "broken"


def test_how_a_span_began_is_read_only_while_it_is_open(tmp_path: Path) -> None:
    bad = started("rl.wait", "02" * 8, 3)
    bad["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["attributes"] = [{"key": "k", "value": {"intValue": "x"}}]

    still_open = read_run(write(tmp_path / "open", bad))
    ended = read_run(write(tmp_path / "ended", bad, finished("rl.wait", "02" * 8, 3, 4)))

    assert ([span.name for span in still_open.open], still_open.broken_lines) == ([], 1)
    assert (ended.open, [span.name for span in ended.spans], ended.broken_lines) == ([], ["rl.wait"], 0)

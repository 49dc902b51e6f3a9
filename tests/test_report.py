"""``autoinstr report``: a journal goes in, the report comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import autoinstr
from autoinstr.cli import main
from autoinstr.journal.reader import Run, read_run
from autoinstr.report.goodput import goodput
from autoinstr.report.phases import phases
from autoinstr.report.tree import NoSuchStep, step_tree

SECOND = 10**9
T0 = 1_790_000_000 * SECOND
TRACE = "ab" * 16


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}
    return [{"key": key, "value": {kinds[type(value)]: value}} for key, value in attributes.items()]


@dataclass
class Journal:
    """Writes one process's file. Times are seconds after T0; ids are short names for the tests to use."""

    folder: Path
    pid: int = 100
    resource: dict[str, Any] = field(default_factory=lambda: {"service.name": "nemo-rl", "host.name": "h"})

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"h-{self.pid}-{T0 + self.pid:x}.jsonl"
        self._event("autoinstr.process.start", 0, {"process.command": "run.py"})

    def span(
        self,
        name: str,
        start: float,
        end: float | None,
        *,
        id: str = "",
        parent: str = "",
        group: str | None = None,
        bucket: str | None = None,
        error: str | None = None,
        **attributes: Any,
    ) -> Journal:
        """A span with its start record, open where ``end`` is None."""
        span_id, parent_id = self._id(id or f"{name}@{start}"), self._id(parent) if parent else None
        own = {f"rl.{key}": value for key, value in attributes.items()}
        own |= {"rl.bucket": bucket} if bucket else {}
        about: dict[str, Any] = {"autoinstr.span.name": name}
        about |= {"autoinstr.span.parent_id": parent_id} if parent_id else {}
        about |= {"autoinstr.group": group} if group else {}
        self._event("autoinstr.span.start", start, about | own, traceId=TRACE, spanId=span_id)
        if end is None:
            return self
        span: dict[str, Any] = {
            "traceId": TRACE,
            "spanId": span_id,
            "name": name,
            "startTimeUnixNano": str(self._ns(start)),
            "endTimeUnixNano": str(self._ns(end)),
            "attributes": pairs(own),
            "status": {"code": 2, "message": error} if error else {},
        }
        span |= {"parentSpanId": parent_id} if parent_id else {}
        scope = {"name": "autoinstr", "attributes": pairs({"autoinstr.group": group} if group else {})}
        return self._line({"resourceSpans": [{"scopeSpans": [{"scope": scope, "spans": [span]}]}]})

    def ended(self, at: float) -> Journal:
        return self._event("autoinstr.process.end", at, {})

    def heartbeat(self, at: float) -> Journal:
        return self._event("unknown.heartbeat", at, {})

    def torn(self) -> Journal:
        with self.path.open("a") as file:
            file.write('{"resourceSpans":[{"scopeSp')
        return self

    @property
    def run(self) -> Run:
        return read_run(self.folder)

    def _event(self, name: str, at: float, attributes: dict[str, Any], **more: Any) -> Journal:
        record = {
            "timeUnixNano": str(self._ns(at)),
            "eventName": name,
            "attributes": pairs(attributes),
        } | more
        resource = {"attributes": pairs(self.resource | {"process.pid": self.pid})}
        return self._line({"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [record]}]}]})

    def _line(self, line: dict[str, Any]) -> Journal:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return self

    @staticmethod
    def _ns(seconds: float) -> int:
        return T0 + round(seconds * SECOND)

    @staticmethod
    def _id(name: str) -> str:
        return name.encode().hex()[-16:].rjust(16, "0")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "runs" / "r1")


def training(journal: Journal, last_step_open: bool = False) -> Journal:
    """A driver: set-up, then two steps of four seconds. An end comes with its span, not in order of time."""
    journal.span("rl.grpo.job", 0, None if last_step_open else 10, id="job", group="job")
    journal.span("rl.setup", 0, 2, parent="job", group="setup", bucket="overhead")
    for number, start in ((1, 2), (2, 6)):
        is_open = last_step_open and number == 2
        step = f"step{number}"
        end = None if is_open else start + 4
        journal.span("rl.grpo.step", start, end, id=step, parent="job", group="step", iteration=number)
        journal.span("rl.generate", start, start + 1, parent=step, group="generate", bucket="productive")
        journal.span(
            "rl.train",
            start + 1,
            None if is_open else start + 3.5,
            parent=step,
            group="train",
            bucket="productive",
        )
    return journal


# Phases


def test_phases_by_name_group_and_bucket(journal: Journal) -> None:
    rows = phases(training(journal).run)
    assert [(row.name, row.group, row.bucket, row.count, row.total_s, row.step_share) for row in rows] == [
        ("rl.grpo.job", "job", None, 1, 10.0, None),
        ("rl.setup", "setup", "overhead", 1, 2.0, None),
        ("rl.grpo.step", "step", None, 2, 8.0, None),
        ("rl.train", "train", "productive", 2, 5.0, 5 / 8),
        ("rl.generate", "generate", "productive", 2, 2.0, 2 / 8),
    ]
    assert (rows[3].mean_s, rows[3].p95_s, rows[3].max_s) == (2.5, 2.5, 2.5)


def test_a_name_in_two_buckets_has_two_rows(journal: Journal) -> None:
    journal.span("rl.generate", 0, 2, id="a", bucket="productive").span("rl.generate", 2, 3, id="b", bucket="overhead")
    assert [(row.bucket, row.total_s) for row in phases(journal.run)] == [
        ("productive", 2.0),
        ("overhead", 1.0),
    ]


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (2, 2), (19, 19), (20, 19), (21, 20), (100, 95)])
def test_p95_is_the_nearest_rank(journal: Journal, count: int, p95: int) -> None:
    for seconds in range(1, count + 1):
        journal.span("s", 0, seconds, id=str(seconds))
    (row,) = phases(journal.run)
    assert (row.p95_s, row.max_s, row.mean_s) == (p95, count, (count + 1) / 2)


def test_step_share_reaches_into_other_processes(journal: Journal) -> None:
    journal.span("rl.grpo.step", 0, 4, id="step", group="step")
    worker = Journal(journal.folder, pid=101)
    worker.span("actor", 0, 3, id="actor", parent="step").span("forward", 0, 1, parent="actor")
    worker.span("forward", 10, 12, id="outside")
    shares = {row.name: row.step_share for row in phases(journal.run)}
    assert shares == {"rl.grpo.step": None, "actor": 3 / 4, "forward": 1 / 4}


def test_what_lies_in_an_open_step_has_no_share(journal: Journal) -> None:
    rows = {row.name: row for row in phases(training(journal, last_step_open=True).run)}
    assert (rows["rl.generate"].total_s, rows["rl.generate"].step_share) == (2.0, 1 / 4)
    assert "rl.grpo.job" not in rows


def test_no_step_no_share(journal: Journal) -> None:
    journal.span("a", 0, 2, id="a").span("b", 0, 1, parent="a")
    assert [row.step_share for row in phases(journal.run)] == [None, None]


def test_parents_in_a_circle_and_a_clock_set_back(journal: Journal) -> None:
    journal.span("a", 0, 2, id="a", parent="b").span("b", 0, 1, id="b", parent="a", group="step", iteration=1)
    journal.span("self", 1, 0.5, id="self", parent="self")
    run = journal.run
    assert {row.name: row.total_s for row in phases(run)} == {"a": 2.0, "b": 1.0, "self": 0.0}
    assert goodput(run).wall_s == 0
    assert "b" in step_tree(run, 1)


# Goodput


def buckets(journal: Journal) -> dict[str, float]:
    good = goodput(journal.run)
    return {name: seconds for name, seconds in good.buckets.items() if seconds} | {"-": good.unattributed_s}


def test_goodput_of_a_training(journal: Journal) -> None:
    good = goodput(training(journal).run)
    assert good.process == journal.path.name
    assert good.wall_s == 10
    assert good.buckets == {"productive": 7.0, "overhead": 2.0, "idle": 0.0, "wasted": 0.0}
    assert good.goodput == 7 / 9
    assert (good.unattributed_s, good.unattributed_share) == (1.0, 0.1)


def test_the_innermost_bucketed_span_claims(journal: Journal) -> None:
    journal.span("job", 0, 10, id="job", group="job")
    journal.span("train", 1, 9, id="train", parent="job", bucket="productive")
    journal.span("umbrella", 2, 6, id="umb", parent="train")
    journal.span("wait", 3, 5, parent="umb", bucket="idle")
    assert buckets(journal) == {"productive": 6.0, "idle": 2.0, "-": 2.0}


def test_a_child_that_starts_with_its_parent_is_the_inner_one(journal: Journal) -> None:
    # Written child first, as finished spans are.
    journal.span("inner", 0, 4, id="inner", parent="outer", bucket="idle")
    journal.span("outer", 0, 10, id="outer", bucket="productive")
    assert buckets(journal) == {"idle": 4.0, "productive": 6.0, "-": 0.0}


def test_overlapping_threads_count_once(journal: Journal) -> None:
    journal.span("job", 0, 10, id="job", group="job")
    journal.span("train", 0, 6, parent="job", bucket="productive")
    journal.span("checkpoint in a thread", 4, 8, parent="job", bucket="overhead")
    assert buckets(journal) == {"productive": 4.0, "overhead": 4.0, "-": 2.0}


def test_an_outer_span_that_outlives_the_inner_claims_again(journal: Journal) -> None:
    journal.span("a", 0, 10, id="a", bucket="productive")
    journal.span("b", 1, 3, parent="a", bucket="idle").span("c", 2, 8, parent="a", bucket="wasted")
    assert buckets(journal) == {"productive": 3.0, "idle": 1.0, "wasted": 6.0, "-": 0.0}


def test_time_outside_of_root_spans_is_not_wall_time(journal: Journal) -> None:
    journal.span("one", 0, 2, id="one", bucket="productive").span("two", 5, 8, id="two", bucket="idle")
    journal.span("outlives its parent", 1, 4, parent="one", bucket="overhead")
    assert goodput(journal.run).wall_s == 5
    assert buckets(journal) == {"productive": 1.0, "overhead": 1.0, "idle": 3.0, "-": 0.0}


def test_open_spans_count_up_to_the_last_record(journal: Journal) -> None:
    training(journal, last_step_open=True).heartbeat(9)
    good = goodput(journal.run)
    assert (good.wall_s, good.buckets["productive"], good.unattributed_s) == (9.0, 6.5, 0.5)


def test_a_bucket_of_a_users_own_is_neither_good_nor_bad(journal: Journal) -> None:
    journal.span("a", 0, 6, id="a", bucket="productive").span("b", 1, 3, parent="a", bucket="debug")
    good = goodput(journal.run)
    assert (good.goodput, good.buckets["debug"], good.buckets["productive"]) == (1.0, 2.0, 4.0)


def test_no_bucketed_time_is_no_goodput(journal: Journal) -> None:
    good = goodput(journal.span("a", 0, 6).run)
    assert (good.goodput, good.wall_s, good.unattributed_share) == (None, 6.0, 1.0)


def test_the_driver_is_the_process_with_the_job(journal: Journal) -> None:
    for number in range(3):
        journal.span("work", number, number + 1, bucket="idle")
    busiest = journal.path.name
    worker = Journal(journal.folder, pid=101)
    assert goodput(journal.run).process == busiest
    worker.span("rl.grpo.job", 0, None, group="job", bucket="productive").heartbeat(3)
    good = goodput(journal.run)
    assert (good.process, good.goodput) == (worker.path.name, 1.0)


def test_where_every_rank_has_a_job_the_lowest_drives(tmp_path: Path) -> None:
    for pid, rank in ((100, 2), (101, 0), (102, 1)):
        journal = Journal(tmp_path, pid, {"dl.rank": rank}).span("job", 0, 1, id=str(pid), group="job")
    assert goodput(journal.run).process == f"h-101-{T0 + 101:x}.jsonl"


def test_many_spans_are_swept_quickly(tmp_path: Path) -> None:
    # Staggered so that thousands are active at once: a sweep that looks at all of them would take minutes.
    from autoinstr.journal.reader import Process, Span

    count = 100_000
    spans = [
        Span("s", TRACE, f"{i:016x}", None, T0 + i, T0 + i + count // 2, {}, None, "idle", None, 0)
        for i in range(count)
    ]
    run = Run("r", tmp_path, [Process("f", 1, "h", last_ns=T0, spans=count)], spans, [])
    assert goodput(run).buckets["idle"] == (1.5 * count - 1) / 1e9


# One step as a tree


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_tree_of_the_last_finished_step(journal: Journal) -> None:
    training(journal)
    assert lines(step_tree(journal.run, None)) == [
        f"step 2  trace {TRACE}  h pid 100",
        "",
        "rl.grpo.step    4000.0 ms                iteration=2",
        "├─ rl.generate  1000.0 ms  [productive]",
        "└─ rl.train     2500.0 ms  [productive]",
    ]
    assert lines(step_tree(journal.run, 1))[0].startswith("step 1 ")


def test_tree_of_an_open_step_and_of_one_that_is_not_there(journal: Journal) -> None:
    training(journal, last_step_open=True).heartbeat(9)
    assert lines(step_tree(journal.run, None))[0].startswith("step 1 ")
    assert lines(step_tree(journal.run, 2))[2:] == [
        "rl.grpo.step    3000.0 ms                open  iteration=2",
        "├─ rl.generate  1000.0 ms  [productive]",
        "└─ rl.train     2000.0 ms  [productive]  open",
    ]
    with pytest.raises(NoSuchStep, match=r"^no step with rl.iteration 7 in run r1; its steps are 1, 2$"):
        step_tree(journal.run, 7)


def test_more_than_five_alike_are_one_line(journal: Journal) -> None:
    journal.span("rl.step", 0, 1, id="step", group="step")
    for number in range(5):
        journal.span("five", 0.001 * number, 0.001 * number + 0.001, parent="step")
    for number in range(12):
        journal.span("twelve", 0.1 + number / 100, 0.1 + number / 100 + 0.002, parent="step", bucket="idle")
    for number in range(6):
        id = f"six{number}"
        journal.span("six", 0.5 + number / 100, 0.505 + number / 100, id=id, parent="step")
        journal.span("below", 0.501 + number / 100, 0.502 + number / 100, parent=id)
    assert lines(step_tree(journal.run, None))[2:] == [
        "rl.step            1000.0 ms",
        *["├─ five               1.0 ms"] * 5,
        "├─ twelve ×12  total 24.0 ms  [idle]",
        "└─ six ×6      total 30.0 ms          each with 1 below",
    ]


def test_an_error_is_never_hidden(journal: Journal) -> None:
    journal.span("rl.step", 0, 1, id="step", group="step")
    for number in range(13):
        error = "ValueError: bad\nreward" if number == 6 else None
        journal.span("reward", number / 100, number / 100 + 0.005, parent="step", error=error)
    assert lines(step_tree(journal.run, None))[2:] == [
        "rl.step           1000.0 ms",
        "├─ reward ×6  total 30.0 ms",
        "├─ reward            5.0 ms  error",
        "└─ reward ×6  total 30.0 ms",
        "",
        "errors",
        "  reward: ValueError: bad reward",
    ]


def test_tree_across_processes(journal: Journal) -> None:
    journal.span("rl.step", 0, 1, id="step", group="step", iteration=1)
    for rank in range(8):
        worker = Journal(journal.folder, 101 + rank, {"nv.dl.rank": rank})
        worker.span("train", 0.1 * rank, 0.1 * rank + 0.1, id=f"train{rank}", parent="step")
    worker.span("refit", 0.9, 1, id="refit", parent="step").span("copy", 0.9, 0.95, parent="refit")
    assert lines(step_tree(journal.run, None))[2:] == [
        "rl.step           1000.0 ms  iteration=1",
        "├─ train ×8  total 800.0 ms  in 8 processes",
        "└─ refit           100.0 ms  @ rank 7",
        "   └─ copy          50.0 ms",
    ]


# The command line


def test_text(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(journal, last_step_open=True).torn()
    Journal(journal.folder, 101, {"dl.rank": 1}).span("actor", 3, 4, parent="step1").ended(21.75)

    assert main(["report"]) == 0

    assert lines(capsys.readouterr().out) == [
        "run r1   grpo   2 processes (1 ended, 1 not ended)   21.8 s   since 2026-09-21T14:13:20Z",
        f"journal {journal.folder}",
        "  nemo-rl          h pid 100  not ended  5 spans  3 open",
        "  run.py   rank 1  h pid 101  ended       1 span  0 open",
        "1 broken line left out (a process killed while writing leaves one)",
        "",
        "span          group     bucket      count  total s  mean s  p95 s  max s  % of step",
        "rl.setup      setup     overhead        1     2.00    2.00   2.00   2.00          -",
        "rl.grpo.step  step      -               1     4.00    4.00   4.00   4.00          -",
        "rl.train      train     productive      1     2.50    2.50   2.50   2.50       62.5",
        "rl.generate   generate  productive      2     2.00    1.00   1.00   1.00       25.0",
        "actor         -         -               1     1.00    1.00   1.00   1.00       25.0",
        "",
        "goodput 69.2 % of 6.50 s  (productive 4.50 s, overhead 2.00 s, idle 0.00 s, wasted 0.00 s; "
        "unattributed 7.1 % of 7.0 s)",
        "",
        "3 open spans, innermost last",
        "  nemo-rl  h pid 100  not ended",
        "    rl.grpo.job     [job]    since 21.8 s before the last record",
        "      rl.grpo.step  [step]   since 15.8 s before the last record",
        "        rl.train    [train]  since 14.8 s before the last record",
    ]


def test_text_of_a_run_that_ended(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(journal).ended(10)
    assert main(["report", "r1"]) == 0
    out = lines(capsys.readouterr().out)
    assert "1 process (ended)" in out[0]
    assert out[-1] == "no span is open"


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that refuses to be read, by root too")
def test_a_file_that_cannot_be_read_is_told(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(journal).ended(10)
    (journal.folder / "h-101-1.jsonl").symlink_to("/proc/self/mem")
    told = "1 of 2 files can't be read, in whole or in part (h-101-1.jsonl: Input/output error)"
    assert main(["report"]) == 0
    assert told in capsys.readouterr().out
    assert main(["report", "--json"]) == 0
    unreadable = {one["pid"]: one["unreadable"] for one in json.loads(capsys.readouterr().out)["processes"]}
    assert unreadable == {100: None, 101: "Input/output error"}
    assert main(["postmortem"]) == 0
    out = capsys.readouterr().out
    assert told in out
    assert "(its journal can't be read: Input/output error)" in out


def test_a_run_of_the_default_groups_is_told_how_to_have_steps(
    journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "steps and their phases were not recorded; AUTOINSTR_SPAN_GROUPS=per_step records them"
    journal.span("my.job", 0, 9, id="job", group="job")
    main(["report"])
    assert hint in lines(capsys.readouterr().out)

    journal.span("my.train", 1, 5, id="train", parent="job", group="policy_update", bucket="productive")
    main(["report"])  # more is selected, and the map has no step
    assert hint not in lines(capsys.readouterr().out)


def test_text_of_an_empty_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "empty").mkdir(parents=True)
    (runs / "empty" / "file.jsonl").touch()
    assert main(["report"]) == 0
    assert lines(capsys.readouterr().out) == [
        "run empty   1 process (not ended)",
        f"journal {runs / 'empty'}",
        "  -  ? pid ?  not ended  0 spans  0 open",
        "",
        "no span has finished",
        "",
        "goodput unknown: the driver has no span",
        "",
        "no span is open",
    ]


def test_text_fits_the_width_and_keeps_control_characters_out(
    journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "rl." + "long." * 40 + "end"
    journal.span(name, 0, 123456, id="a", group="g" * 50, bucket="b" * 50).span(name, 0, None, id="b", parent="a")
    journal.span("rl.x\x1b[31m\n", 0, 1, id="c", group="step", text="x" * 500)
    for arguments in (["report"], ["report", "--tree"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert all(len(line) <= 130 for line in lines(out) if not line.startswith("journal "))


def test_goodput_of_a_day_is_one_line(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.span("job", 0, 86_400, id="job", group="job")
    journal.span("train", 0, 60_000.4, parent="job", bucket="productive")
    journal.span("wait", 60_000.4, 80_000, parent="job", bucket="idle")
    assert main(["report"]) == 0
    assert (
        "goodput 75.0 % of 80000 s  (productive 60000 s, overhead 0 s, idle 20000 s, wasted 0 s; "
        "unattributed 7.4 % of 86400.0 s)"
    ) in lines(capsys.readouterr().out)


def test_json(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.span("rl.grpo.job", 0, None, id="job", group="job", ratio=float("inf"))
    journal.span("rl.grpo.step", 1, 5, id="step", parent="job", group="step", iteration=1)
    journal.span("rl.train", 1, 4, parent="step", group="train", bucket="productive").torn()

    assert main(["report", "--json", "r1"]) == 0

    assert json.loads(capsys.readouterr().out) == {
        "run": {
            "id": "r1",
            "folder": str(journal.folder),
            "started": "2026-09-21T14:13:20.000000Z",
            "duration_s": 5.0,
            "traces": [TRACE],
            "algorithms": ["grpo"],
            "model": None,
            "broken_lines": 1,
            "launches": ["2026-09-21T14:13:20.000000Z"],
        },
        "processes": [
            {
                "file": journal.path.name,
                "pid": 100,
                "host": "h",
                "service": "nemo-rl",
                "rank": None,
                "resource": {"service.name": "nemo-rl", "host.name": "h", "process.pid": 100},
                "state": "not ended",
                "spans": 2,
                "open": 1,
                "broken_lines": 1,
                "lost_records": 0,
                "unreadable": None,
            }
        ],
        "phases": [
            {
                "name": "rl.grpo.step",
                "group": "step",
                "bucket": None,
                "count": 1,
                "total_s": 4.0,
                "mean_s": 4.0,
                "p95_s": 4.0,
                "max_s": 4.0,
                "step_share": None,
            },
            {
                "name": "rl.train",
                "group": "train",
                "bucket": "productive",
                "count": 1,
                "total_s": 3.0,
                "mean_s": 3.0,
                "p95_s": 3.0,
                "max_s": 3.0,
                "step_share": 0.75,
            },
        ],
        "goodput": {
            "process": journal.path.name,
            "wall_s": 5.0,
            "buckets": {"productive": 3.0, "overhead": 0.0, "idle": 0.0, "wasted": 0.0},
            "goodput": 1.0,
            "unattributed_s": 2.0,
            "unattributed_share": 0.4,
        },
        "open": [
            {
                "name": "rl.grpo.job",
                "group": "job",
                "trace_id": TRACE,
                "span_id": Journal._id("job"),
                "parent_id": None,
                "process": journal.path.name,
                "started": "2026-09-21T14:13:20.000000Z",
                "open_for_s": 5.0,
                "attributes": {"rl.ratio": "inf"},
            }
        ],
    }


def test_json_of_an_empty_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "empty").mkdir(parents=True)
    (runs / "empty" / "file.jsonl").touch()
    assert main(["report", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["run"]["started"], document["run"]["duration_s"]) == (None, 0.0)
    assert (document["phases"], document["open"], document["goodput"]["goodput"]) == ([], [], None)


def test_tree_on_the_command_line(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(journal)
    assert main(["report", "r1", "--tree"]) == 0
    assert capsys.readouterr().out.startswith("step 2 ")
    assert main(["report", "--tree", "1"]) == 0
    assert capsys.readouterr().out.startswith("step 1 ")
    assert main(["report", "--tree", "9"]) == 1
    assert capsys.readouterr().err == ("autoinstr report: no step with rl.iteration 9 in run r1; its steps are 1, 2\n")


def test_no_step_for_the_tree(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.span("a", 0, 1)
    assert main(["report", "--tree"]) == 1
    assert capsys.readouterr().err == "autoinstr report: no step has finished in run r1\n"


def test_no_such_run(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "zz"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"autoinstr report: no run 'zz' in {runs}; runs there: r1\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["reprot"], ["report", "--tree", "x"], ["report", "--json", "--tree"], ["report", "a", "b"]],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: autoinstr")


def test_a_run_behind_the_tree_is_told_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--tree", "4f2a9c01d3b7"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "autoinstr report: error: argument --tree: '4f2a9c01d3b7' is no iteration; "
        "a run comes first: autoinstr report RUN --tree"
    )


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"autoinstr {autoinstr.__version__}\n"
    assert main(["--help"]) == 0
    assert "report" in capsys.readouterr().out


def command(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(autoinstr.__file__).parents[1])} | more
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_closed_pipe_is_quiet(journal: Journal, runs: Path) -> None:
    for number in range(2000):
        journal.span(f"span.{number}", 0, 1)
    process = command("-m", "autoinstr", "report")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


@pytest.mark.parametrize(("closed", "status"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("nope 2>&-", 1)])
def test_closed_streams(journal: Journal, runs: Path, closed: str, status: int) -> None:
    """Python has None for a stream that the shell has closed; and what is for one does not go to the other."""
    training(journal)
    shell = f'"$0" -m autoinstr report --json {closed}'
    done = subprocess.run(["sh", "-c", shell, sys.executable], cwd=runs.parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith("{" if closed == "2>&-" else "")
    assert done.stdout == "" or closed == "2>&-"


def test_a_terminal_without_unicode(journal: Journal, runs: Path) -> None:
    """The tree keeps its shape; what is not ours to draw becomes a question mark."""
    journal.span("rl.step", 0, 9, id="step", group="step")
    for start in range(6):
        journal.span("größe", start, start + 1, id=f"g{start}", parent="step")
    journal.span("rl.train", 6, 9, id="train", parent="step")
    out, err = command("-m", "autoinstr", "report", "--tree", PYTHONIOENCODING="ascii").communicate()
    assert err == ""
    assert [line.split("  ")[0] for line in out.splitlines()[2:]] == ["rl.step", "|- gr??e x6", "`- rl.train"]


def test_report_imports_nothing_heavy(journal: Journal, runs: Path) -> None:
    training(journal)
    check = (
        "import sys; from autoinstr.cli import main; main(['report']); main(['report', '--json']);"
        "print([m for m in ('opentelemetry', 'yaml', 'wrapt', 'asyncio') if m in sys.modules])"
    )
    out, err = command("-c", check).communicate()
    assert (err, out.splitlines()[-1]) == ("", "[]")


def test_a_run_that_failed_says_so(journal: Journal, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.span("rl.grpo.job", 0, 10, id="a", group="job", error="RuntimeError: CUDA out of memory")
    journal.span("rl.grpo.step", 0, 9, id="b", parent="a", group="step", error="RuntimeError: CUDA out of memory")
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    assert "2 spans ended with an error" in out
    assert "  rl.grpo.job: RuntimeError: CUDA out of memory" in out

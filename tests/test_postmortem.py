"""`autoinstr postmortem` and the hang watch: what became of each process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import HANG_CLOCK, make_late, our_lines, run, start_job
from test_report import Journal

from autoinstr.cli import main
from autoinstr.hang import HangWatch, python_stacks
from autoinstr.journal import identity
from autoinstr.journal.reader import read_run
from autoinstr.report.postmortem import Apart, fates, standing_apart
from autoinstr.settings import Settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", str(tmp_path))
    return tmp_path / "r"


def rank(folder: Path, number: int, **resource: Any) -> Journal:
    return Journal(folder, 100 + number, {"service.name": "nemo-rl", "host.name": "h", "nv.dl.rank": number} | resource)


def sitting(folder: Path, number: int, phase: str, iteration: int, **resource: Any) -> None:
    """A rank that is in that phase of that step."""
    journal = rank(folder, number, **resource)
    journal.span("rl.grpo.step", 1, None, id=f"step{number}", group="step", iteration=iteration)
    journal.span(phase, 2, None, id=f"phase{number}", parent=f"step{number}", group="policy_update")


def test_the_one_rank_that_stands_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        sitting(folder, number, "rl.grpo.generation" if number == 5 else "rl.policy.all_reduce", 12)
    apart = standing_apart(fates(read_run(folder)))
    assert apart == [Apart([5], "span", "rl.grpo.generation", "rl.policy.all_reduce", 7, None)]
    assert main(["postmortem"]) == 0
    assert "rank 5 stands apart: in rl.grpo.generation; 7 others in rl.policy.all_reduce" in capsys.readouterr().out


def test_a_rank_behind_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        sitting(folder, number, "rl.policy.all_reduce", 11 if number == 2 else 12)
    assert standing_apart(fates(read_run(folder))) == [Apart([2], "iteration", "11", "12", 3, None)]
    main(["postmortem"])
    assert "rank 2 stands apart: at iteration 11; 3 others at iteration 12" in capsys.readouterr().out


def test_worker_groups_are_compared_with_themselves(folder: Path) -> None:
    for number in range(3):
        sitting(folder, number, "rl.policy.train", 3, **{"rl.worker_group": "policy"})
    for number in range(3, 6):
        sitting(folder, number, "rl.vllm.generate", 3, **{"rl.worker_group": "generation"})
    assert standing_apart(fates(read_run(folder))) == []


def test_where_there_is_no_majority_nobody_stands_apart(folder: Path) -> None:
    for number in range(4):
        sitting(folder, number, f"phase {number % 2}", 1)
    assert standing_apart(fates(read_run(folder))) == []


def test_an_older_journal_says_not_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(folder)
    journal.span("rl.grpo.job", 0, None, id="job", group="job")
    journal.span("rl.grpo.step", 1, 3, id="step", parent="job", group="step", iteration=1)
    (fate,) = fates(read_run(folder))
    assert fate.state == "not ended"
    assert fate.last_finished is not None
    assert fate.last_finished.name == "rl.grpo.step"
    main(["postmortem"])
    out = capsys.readouterr().out
    assert "not ended, last record" in out
    assert "rl.grpo.job   for at least 3.0 s, since " in out


def test_identity() -> None:
    mine = identity.of_process()
    assert mine is not None
    assert identity.state_of(os.getpid(), mine) == "alive"
    ticks = mine.rpartition(" ")[2]
    assert identity.state_of(os.getpid(), mine.removesuffix(ticks) + "1") == "gone", "the id was used again"
    assert identity.state_of(os.getpid(), "another-boot pid:[1] " + ticks) is None
    assert identity.state_of(os.getpid(), None) is None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = identity.of_process(child.pid)
    assert identity.state_of(child.pid, theirs) == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.state_of(child.pid, theirs) == "gone", "a zombie is gone"
    child.wait()


MAP = """
map: work
package: work
spans:
  work.job:
    group: job
    function: work:job
  work.step:
    group: step
    function: work:step
    attributes:
      rl.iteration: args.n
  work.wait:
    group: reward
    function: work:wait
"""

WORK = """
import threading, time

def job():
    for n in range(3):
        step(n, 0)
    step(3, 3600)

def step(n, seconds):
    wait(seconds)

def wait(seconds):
    (seconds and print("ready", flush=True)) or time.sleep(seconds)  # whoever has heard it finds it in this line
"""


def start(folder: Path, job: str = "work.job()", **env: str) -> subprocess.Popen[str]:
    """A process that sleeps in its fourth step."""
    process, line = start_job(folder, WORK, MAP, job, **env)
    assert line == "ready\n", process.communicate()
    return process


def postmortem(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["postmortem", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_alive_and_then_killed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(folder.parent)
    time.sleep(0.2)
    try:
        (one,) = postmortem(capsys)["processes"]
        assert one["state"] == "alive"
        assert one["pid"] == process.pid
        assert [(s["name"], s["depth"]) for s in one["open"]] == [("work.job", 0), ("work.step", 1), ("work.wait", 2)]
        assert one["iteration"] == 3
        assert one["last_finished"]["name"] == "work.step"
        assert one["hangs"] == []
        assert main(["report"]) == 0
        out = capsys.readouterr().out
        assert "1 process (alive)" in out
        opened = [line.split() for line in out.splitlines() if line.strip().startswith("work.wait")]
        assert opened[-1][:3] == ["work.wait", "[reward]", "for"], out
        amount, unit = opened[-1][3:5]
        assert unit != "ms" or float(amount) >= 200, "it slept since its last record, and that counts"
    finally:
        process.kill()
        process.communicate()
    assert main(["postmortem"]) == 0
    out = capsys.readouterr().out
    assert "1 process (1 killed)" in out
    assert f"pid {process.pid} is gone from this machine" in out
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("open") and "work.job" in line for line in lines)
    assert any(line.startswith("work.step 3") and "for at least " in line for line in lines)


def test_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "work.py").write_text(WORK)
    (folder.parent / "work.yaml").write_text(MAP)
    done = run(
        "-c",
        "import work; work.step(0, 0)",
        cwd=folder.parent,
        AUTOINSTR_SPAN_MAPS=str(folder.parent / "work.yaml"),
        AUTOINSTR_SPAN_GROUPS="all",
        AUTOINSTR_RUN_DIR=str(folder.parent),
        AUTOINSTR_RUN_ID="r",
    )
    assert done.returncode == 0, done.stderr
    (one,) = postmortem(capsys)["processes"]
    assert (one["state"], one["open"]) == ("ended", [])


FULL_DISK = """
import resource, work

resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))   # no file grows over this: a full disk
for n in range(20):
    work.step(n, 0)
"""


def test_a_process_whose_disk_was_full_is_not_said_to_be_killed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder.parent / "work.py").write_text(WORK)
    (folder.parent / "work.yaml").write_text(MAP)
    done = run(
        "-c",
        FULL_DISK,
        cwd=folder.parent,
        AUTOINSTR_SPAN_MAPS=str(folder.parent / "work.yaml"),
        AUTOINSTR_SPAN_GROUPS="all",
        AUTOINSTR_RUN_DIR=str(folder.parent),
        AUTOINSTR_RUN_ID="r",
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in our_lines(done) if "File too large; training goes on" in line], done.stderr
    (one,) = postmortem(capsys)["processes"]
    assert one["state"] == "not ended"
    assert "among the records that could not be written" in one["why"]
    for command in ("postmortem", "report"):
        assert main([command]) == 0
        assert "lacks records that could not be written (a full disk?)" in capsys.readouterr().out


def test_a_disk_that_was_full_for_a_while(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end is on record, with the number of records that are not."""
    journal = Journal(folder).span("rl.job", 0, 1)
    journal._event("autoinstr.process.end", 2, {"autoinstr.journal.lost": 7})
    (process,) = journal.run.processes
    assert (process.ended, process.lost) == (True, 7)
    assert main(["postmortem"]) == 0
    assert "lacks records" in capsys.readouterr().out


# -- one run id, several runs ---------------------------------------------------------------------------


def launch(folder: Path, pid: int, at: float, **resource: Any) -> None:
    journal = Journal(folder, pid, {"service.name": "nemo-rl", "host.name": "h"} | resource)
    journal.span("rl.grpo.job", at, at + 5, id=f"job{pid}", group="job").ended(at + 5)
    journal.span("rl.grpo.step", at + 1, at + 2, id=f"step{pid}", parent=f"job{pid}", group="step")


def test_two_runs_under_one_id_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same AUTOINSTR_RUN_ID in two shells, or a SLURM job that was put back into the queue."""
    launch(folder, 100, 0)
    launch(folder, 200, 60)
    for command in ("report", "postmortem"):
        assert main([command]) == 0
        out = capsys.readouterr().out
        assert "2 launches under this run id, at 2026-09-21T14:13:20Z, 2026-09-21T14:13:20Z" in out


def test_the_processes_of_one_run_are_one_launch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each torchrun rank has a job of its own, and a worker's job lies below the driver's."""
    for number in range(4):
        launch(folder, 100 + number, 0, **{"nv.dl.rank": number})
    worker = Journal(folder, 300)
    worker.span("rl.eval.job", 1, 2, id="eval", parent="step100", group="job")
    child = Journal(folder, 400)
    child._event("autoinstr.process.start", 3, {"process.command": "eval.py", "process.parent_pid": 100})
    child.span("rl.eval.job", 3, 4, id="by a child", group="job")
    assert main(["report"]) == 0
    assert "launches" not in capsys.readouterr().out


def test_no_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["postmortem", "r"]) == 1
    assert "no run 'r'" in capsys.readouterr().err


# -- the hang watch -------------------------------------------------------------------------------------


def test_a_step_that_hangs_has_its_stacks_on_record_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(folder.parent, "import hang_clock; work.job()", **HANG_CLOCK)
    try:
        make_late(folder.parent, process)
        (one,) = postmortem(capsys)["processes"]
        (hang,) = one["hangs"]
        assert hang["name"] == "work.step"
        assert hang["open_for_s"] == 3600
        assert hang["span_id"] == one["open"][1]["span_id"]
        first = hang["stacks"].splitlines()[0]
        assert first.startswith("Thread 0x")
        assert '"MainThread" (most recent call first):' in first
        sleeping = WORK[: WORK.index("time.sleep(")].count("\n") + 1
        assert f'File "{folder.parent / "work.py"}", line {sleeping} in wait' in hang["stacks"]
        assert "autoinstr-hang" not in hang["stacks"]
    finally:
        process.kill()
        process.communicate()
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    assert "open for too long; `autoinstr postmortem` shows the stacks" in out
    assert main(["postmortem"]) == 0
    assert "hang: work.step was open for" in capsys.readouterr().out
    (record,) = [
        record
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
        for logs in json.loads(line).get("resourceLogs", ())
        for record in logs["scopeLogs"][0]["logRecords"]
        if record["eventName"] == "autoinstr.hang"
    ]
    assert (record["severityNumber"], record["severityText"]) == (13, "WARN")


def test_without_the_setting_nobody_watches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(folder.parent)
    threads = os.listdir(f"/proc/{process.pid}/task")
    process.kill()
    process.communicate()
    assert len(threads) == 1
    assert postmortem(capsys)["processes"][0]["hangs"] == []


def test_without_a_journal_it_is_said(tmp_path: Path) -> None:
    done = run("-c", "pass", cwd=tmp_path, AUTOINSTR_HANG_AFTER="5", AUTOINSTR_JOURNAL="off")
    assert our_lines(done) == [
        "autoinstr: AUTOINSTR_HANG_AFTER writes into the journal, which is off; AUTOINSTR_JOURNAL=on turns it on"
    ]


@pytest.mark.parametrize(
    ("value", "after"), [("", None), ("off", None), ("0", None), ("auto", "auto"), ("600", 600.0), ("1.5", 1.5)]
)
def test_the_setting(value: str, after: object) -> None:
    settings = Settings.from_environ({"AUTOINSTR_HANG_AFTER": value})
    assert settings.hang_after == after
    assert settings.mistakes == ()


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_wrong_setting_is_a_mistake_and_nobody_watches(value: str) -> None:
    settings = Settings.from_environ({"AUTOINSTR_HANG_AFTER": value})
    assert settings.hang_after is None
    assert "neither a number of seconds nor auto" in settings.mistakes[0]


def test_auto_is_ten_times_the_median_and_at_least_five_minutes() -> None:
    watch = HangWatch(None, "auto")  # type: ignore[arg-type]
    assert watch.limit("work.step") == 300
    watch._durations["work.step"] = deque([1.0, 2.0, 3.0])
    assert watch.limit("work.step") == 300
    watch._durations["work.step"].extend([60.0] * 10)
    assert watch.limit("work.step") == 600
    assert watch.limit("another") == 300


@pytest.mark.parametrize(("after", "pause"), [("auto", 5), (600.0, 5), (10.0, 1), (0.3, 0.05)])
def test_it_looks_often_enough(after: Any, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times in the time that a step has, and every five seconds at least."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise SystemExit

    monkeypatch.setattr("autoinstr.hang.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    with pytest.raises(SystemExit):
        HangWatch(None, after)._watch()  # type: ignore[arg-type]
    assert pauses == [pause] * 3


def test_a_step_between_two_of_its_blocks_hangs_in_none() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    class Events:
        def event(self, name: str, attributes: dict[str, Any], *_: Any, **__: Any) -> None:
            said.append(attributes["autoinstr.span.name"])

    said: list[str] = []
    watch = HangWatch(Events(), 0.0)  # type: ignore[arg-type]
    watch._thread = threading.current_thread()  # looks are ours
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(watch)
    span: Any = provider.get_tracer("autoinstr", attributes={"autoinstr.group": "step"}).start_span("step")
    told: set[int] = set()
    watch.on_rest(span, 1)
    watch._look(told)
    assert said == []
    watch.on_resume(span)
    watch._look(told)
    watch.on_rest(span, 2)
    watch._look(told)
    watch.on_resume(span)
    watch._look(told)
    assert said == ["step"], "once, however often it rests"
    span.end()
    assert not watch._open
    assert not watch._resting


def test_stacks_name_the_main_thread_first_and_leave_the_asking_one_out() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(python_stacks()), name="asking")
    thread.start()
    thread.join()
    assert '"MainThread"' in found[0].splitlines()[0]
    assert '"asking"' not in found[0]

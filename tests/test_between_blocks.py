"""A step that may be started over (`coalesce`) is on record as soon as its block has ended, whatever comes then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver
from runs import HANG_CLOCK, HUNG, PATIENT, make_late, start_job

from autoinstr.cli import main
from autoinstr.journal.reader import read_run

MAP = """
map: work
package: work
spans:
  work.job: {group: job, function: "work:job"}
  work.step:
    group: step
    function: work:step
    attributes: {rl.iteration: args.n}
    coalesce: {match: args.n}
  work.poll:
    group: efficiency
    function: work:poll
    coalesce: {match: args.n, count: work.polls}
  work.train: {group: policy_update, function: "work:train"}
"""

WORK = """
import time

def job(steps, then):
    for n in steps:
        step(n)
    print(time.time_ns(), flush=True)
    then()

def step(n, then=lambda: None):
    for _ in range(3):
        poll(n)
    train(then)

def poll(n):
    pass

def train(then):
    then()

def hang():
    print("hangs", flush=True)
    time.sleep(3600)
"""

HANG = "work.hang"


def start(folder: Path, job: str, **env: str) -> tuple[subprocess.Popen[str], int]:
    """A process in that job, which has come to what it does after its steps; and when the last step had ended."""
    process, line = start_job(folder, WORK, MAP, job, **env)
    assert line.strip().isdigit(), (line, process.communicate())
    return process, int(line)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", PATIENT["OTEL_EXPORTER_OTLP_TIMEOUT"])
    return tmp_path


def postmortem(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["postmortem", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["processes"]
    return dict(one)


def test_a_hang_and_a_kill_between_two_steps_are_in_no_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process, ended = start(folder, f"import hang_clock; work.job([1, 2], {HANG})", **HANG_CLOCK)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        make_late(folder, process)  # it would hang, were it in a step
        alive = postmortem(capsys)
    finally:
        kill(process)
    dead = postmortem(capsys)
    for one, state in ((alive, "alive"), (dead, "killed")):
        assert one["state"] == state
        assert [span["name"] for span in one["open"]] == ["work.job"]
        assert one["last_finished"]["name"] == "work.step"
        assert one["hangs"] == []

    run = read_run(folder / "r")
    assert [span.name for span in run.open] == ["work.job"]
    steps = [span for span in run.spans if span.name == "work.step"]
    assert [(span.attributes, (span.end_ns or 0) <= ended) for span in steps] == [
        ({"rl.iteration": 1}, True),
        ({"rl.iteration": 2}, True),
    ]
    assert [span.attributes["work.polls"] for span in run.spans if span.name == "work.poll"] == [3, 3]
    assert (run.processes[0].spans, run.processes[0].open) == (6, 1)

    assert main(["report", "--tree", "2"]) == 0
    tree = [line.split() for line in capsys.readouterr().out.splitlines() if "work." in line]
    names = [[word for word in line if word.startswith("work.")][0] for line in tree[-3:]]
    assert names == ["work.step", "work.poll", "work.train"]
    assert not any("open" in line for line in tree[-3:])


def test_it_is_shipped_once_and_not_before_the_process_is_gone(folder: Path) -> None:
    process, _ = start(folder, f"work.job([1, 2], {HANG})")

    def sent(receiver: Receiver) -> Counter[str]:
        assert Counter(span.span_id for span in receiver.spans()).most_common(1)[0][1] == 1
        return Counter(span.name for span in receiver.spans())

    with Receiver() as receiver:
        command = ["ship", "--endpoint", receiver.grpc_endpoint]
        assert main(command) == 0
        assert sent(receiver) == {"work.step": 1, "work.poll": 2, "work.train": 2}
        kill(process)
        for _ in range(2):
            assert main(command) == 0
            assert sent(receiver) == {"work.step": 2, "work.poll": 2, "work.train": 2}
    with Receiver() as receiver:
        assert main(["ship", "--follow", "--endpoint", receiver.grpc_endpoint]) == 0
        assert sent(receiver) == {"work.step": 2, "work.poll": 2, "work.train": 2}


def test_killed_in_a_later_block_it_is_open(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process, _ = start(folder, f"work.job([1, 2], lambda: work.step(2, {HANG}))")
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    kill(process)
    one = postmortem(capsys)
    assert [span["name"] for span in one["open"]] == ["work.job", "work.step", "work.train"]
    assert one["iteration"] == 2


ROOTS = "[work.step(n) for n in (1, 2)]; print(work.time.time_ns(), flush=True)"


@pytest.mark.parametrize(
    ("script", "status"),
    [
        pytest.param(f"work.job([1, 2], {HANG})", -signal.SIGTERM, id="SIGTERM"),
        pytest.param(ROOTS, 0, id="exit"),
    ],
)
def test_an_exporter_gets_it_at_the_end(folder: Path, script: str, status: int) -> None:
    with Receiver() as receiver:
        process, ended = start(
            folder, script, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint, OTEL_BSP_SCHEDULE_DELAY="60000"
        )
        if status:
            process.send_signal(-status)
        _, err = process.communicate(timeout=HUNG)
        assert (process.returncode, err) == (status, "")
        steps = [span for span in receiver.spans() if span.name == "work.step"]
    assert len(steps) == 2
    assert all(span.end_time_unix_nano <= ended for span in steps)
    assert not any(attribute.key == "autoinstr.lost_end" for span in steps for attribute in span.attributes)

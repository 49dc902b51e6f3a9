"""The example, killed by SIGKILL, and what must be true of its journal afterwards.

At each moment that leaves something else on disk (`every_state`), by its own hand after so many writes (`kill_after`),
and at random moments:

    python tests/kills.py 200

What finished is known independently: a copy of the stand-in writes a line of its own, by `os.write`, each time
one of its timer blocks has been entered or left.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from autoinstr.journal.reader import read_run
from autoinstr.report.postmortem import fates

sys.path.insert(0, str(Path(__file__).resolve().parent))
from runs import HUNG, INSTRUMENT, ROOT, clean_environment, wait_for

SPANS = {
    "total_step_time": "rl.grpo.step",
    "data_processing": "rl.grpo.data_processing",
    "generation": "rl.grpo.generation",
    "reward_calculation": "rl.grpo.reward_calculation",
    "policy_and_reference_logprobs": "rl.grpo.policy_and_reference_logprobs",
    "advantage_calculation": "rl.grpo.advantage_calculation",
    "policy_training": "rl.grpo.policy_training",
}
FURTHEST_BYTES = 100_000
"""How far into its training an example may come, by the size of its journal: a busy machine comes as far, later."""

SIDE_LOG = """
import glob, itertools, os, signal

_file = os.open(os.environ["SIDE_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_write, _writes, _last = os.write, itertools.count(1), int(os.environ.get("KILL_AFTER", "0"))

def _counted(file, data):
    written = _write(file, data)
    if next(_writes) == _last:
        os.kill(os.getpid(), signal.SIGKILL)
    return written

os.write = _counted

def _say(word, label):
    size = sum(map(os.path.getsize, glob.glob("autoinstr-runs/*/*.jsonl")))
    os.write(_file, f"{word} {label} {size}\\n".encode())

class logged:
    def __init__(self, label, block):
        self.label, self.block = label, block

    def __enter__(self):
        entered = self.block.__enter__()
        _say("in", self.label)
        return entered

    def __exit__(self, *error):
        swallowed = self.block.__exit__(*error)
        _say("out", self.label)
        return swallowed
"""


@dataclass
class Killed:
    """One killed run: how far it had come, and what was wrong with its journal (nothing should be)."""

    finished: int
    open: int
    torn: bool
    problems: list[str]


def copy_example(folder: Path) -> Path:
    """A copy of the example whose training writes the side log; autoinstr knows nothing of it."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    stand_in = folder / "tests" / "fake_training"
    shutil.copytree(ROOT / "tests" / "fake_training", stand_in, ignore=shutil.ignore_patterns("__pycache__"))
    (stand_in / "side_log.py").write_text(SIDE_LOG)
    loop = stand_in / "nemo_rl" / "algorithms" / "grpo.py"
    text, count = re.subn(r'with (timer\.time\(("\w+")\)):', r"with _logged(\2, \1):", loop.read_text())
    assert count > 5, "the stand-in's timer blocks look different"
    first = text.index("import ", text.index("from __future__") + 30)
    first = text.rindex("\n", 0, first) + 1
    loop.write_text(text[:first] + "from side_log import logged as _logged\n" + text[first:])
    return folder / "examples" / "run_grpo.py"


def start(example: Path, cwd: Path, steps: int, **env: str) -> subprocess.Popen[bytes]:
    cwd.mkdir()
    return subprocess.Popen(
        [str(INSTRUMENT), sys.executable, str(example), "--steps", str(steps)],
        cwd=cwd,
        env=clean_environment(
            **{"AUTOINSTR_SPAN_GROUPS": "per_step", "FAKE_TRAINING_PACE": "0", "AUTOINSTR_RUN_ID": "killed", **env},
            SIDE_LOG=str(cwd / "side.log"),
        ),
        stdout=subprocess.DEVNULL,
        stderr=(cwd / "stderr").open("w"),
    )


def look(cwd: Path) -> Killed:
    """At what a run has left."""
    side = cwd / "side.log"
    said = side.read_text() if side.exists() else ""
    return examine(said, cwd / "autoinstr-runs" / "killed", (cwd / "stderr").read_text())


def kill_one(example: Path, cwd: Path, seed: int) -> Killed:
    """Run the example in `cwd`, kill it at a moment that `seed` draws, and look at what it left."""
    draw = random.Random(seed)
    process = start(example, cwd, 100_000, FAKE_TRAINING_PACE="0.02")
    # one in ten is killed at any moment of its start, the others once their journal has come so far
    if draw.random() < 0.9:
        size = draw.uniform(1, FURTHEST_BYTES)
        wait_for(lambda: journal_size(cwd) >= size or process.poll() is not None)
        time.sleep(draw.uniform(0, 0.05))
    else:
        time.sleep(draw.uniform(0, 1.5))
    process.kill()
    process.wait()
    return look(cwd)


def kill_after(example: Path, cwd: Path, writes: int) -> Killed:
    """The example kills itself once it has written so often since its training was imported."""
    status = start(example, cwd, 100_000, KILL_AFTER=str(writes)).wait(HUNG)
    killed = look(cwd)
    if status != -signal.SIGKILL:
        killed.problems.append(f"it ended with {status}")
    return killed


def every_state(example: Path, cwd: Path, steps: int = 3) -> list[Killed]:
    """What one run had on disk at each moment: after each record, and in the middle of each but the first.

    The first record is one page of the file, which is written whole or not at all.
    """
    status = start(example, cwd, steps).wait(HUNG)
    assert status == 0, (cwd / "stderr").read_text()
    (journal,) = cwd.glob("autoinstr-runs/killed/*.jsonl")
    whole = journal.read_bytes()
    side = [(line, int(line.split()[2])) for line in (cwd / "side.log").read_text().splitlines(keepends=True)]
    found = []
    begin = 0
    for record in whole.splitlines(keepends=True)[:-1]:  # the last one says that the process has ended
        end = begin + len(record)
        before = sum(size <= begin for _, size in side)
        after = sum(size <= end for _, size in side)
        # what the side log says of this very moment is written after the record
        states = [(end, count) for count in range(sum(size < end for _, size in side), after + 1)]
        if begin:
            states.insert(0, (begin + len(record) // 2, before))
        for size, count in states:
            journal.write_bytes(whole[:size])
            found.append(examine("".join(line for line, _ in side[:count]), journal.parent, ""))
        begin = end
    return found


def journal_size(cwd: Path) -> int:
    return sum(path.stat().st_size for path in cwd.glob("autoinstr-runs/*/*.jsonl"))


def examine(side: str, folder: Path, stderr: str) -> Killed:
    """Compare the journal with the side log. A kill may fall between a span's end and its line in the side log."""
    problems = [line for line in stderr.splitlines() if line.startswith("autoinstr: ")]
    left: Counter[str] = Counter()
    entered: list[str] = []
    for line in side.splitlines():
        word, label, _ = line.split()
        if label not in SPANS:
            continue
        if word == "in":
            entered.append(SPANS[label])
        else:
            left[SPANS[label]] += 1
            entered.remove(SPANS[label])
    if not any(path.stat().st_size for path in folder.glob("*.jsonl")):
        return Killed(0, 0, False, problems + (["no journal"] if entered or left else []))
    run = read_run(folder)
    torn = any(not path.read_bytes().endswith(b"\n") for path in folder.glob("*.jsonl"))
    if run.broken_lines > torn:
        problems.append(f"{run.broken_lines} broken lines, torn: {torn}")
    finished = Counter(span.name for span in run.spans)
    for name in SPANS.values():
        if not left[name] <= finished[name] <= left[name] + 1:
            problems.append(f"{name}: {left[name]} ended, {finished[name]} in the journal")
    still = [span.name for span in run.open]
    missing = Counter(entered) - Counter(still)
    # the one whose end was on record and whose line in the side log was not written any more
    if missing.total() > 1 or any(finished[name] == left[name] for name in missing):
        problems.append(f"open and not named: {dict(missing)}")
    (fate,) = fates(run)
    if fate.state != "killed":
        problems.append(f"the post-mortem says {fate.state}: {fate.why}")
    stack = [span.name for span, _ in fate.open]
    whole = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    if finished["rl.grpo.job"]:
        root = None
    elif any(b'"rl.grpo.job"' in line for line in whole):
        root = "rl.grpo.job"
    else:  # start-up has ended where the job begins, and a kill may fall between the two
        root = None if finished["rl.startup"] else "rl.startup"
    if run.spans and (stack[0] if stack else None) != root:
        problems.append(f"the stack is {stack}")
    return Killed(finished.total(), len(still), torn, problems)


def kill_many(kill: Callable[[Path, Path, int], Killed], with_: Iterable[int], at_once: int = 4) -> list[Killed]:
    with tempfile.TemporaryDirectory(prefix="autoinstr-kills-") as temporary:
        example = copy_example(Path(temporary))
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda i: kill(example, Path(temporary) / f"run-{i}", i), with_))


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    started = time.monotonic()
    first = time.time_ns()
    killed = kill_many(kill_one, range(first, first + wanted))
    for number, one in enumerate(killed):
        for problem in one.problems:
            print(f"run {number}: {problem}")
    print(
        f"{len(killed)} killed in {time.monotonic() - started:.0f} s: "
        f"{sum(k.finished for k in killed)} finished spans, "
        f"{sum(k.open for k in killed)} open ones, {sum(k.torn for k in killed)} torn lines, "
        f"{sum(bool(k.problems) for k in killed)} runs with problems"
    )
    sys.exit(any(one.problems for one in killed))

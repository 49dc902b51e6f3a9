"""Running the example, or any script, under `opentelemetry-instrument` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "run_grpo.py"
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"

HANG_CLOCK = {"AUTOINSTR_HANG_AFTER": "0.3", "PYTHONPATH": str(ROOT / "tests")}
"""For a job that imports `hang_clock`."""

HUNG = 300
"""Seconds after which a process counts as hung: no measure of speed, a busy machine needs a tenth of it."""

PATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": str(2 * HUNG)}
"""An exporter waits for an answer as long as it takes: one that gives up a batch which was taken sends it again. And
whoever waits for the exporter of a dead collector hangs; with the SDK's 10 s its end would come, if late."""

_INHERITED = ("AUTOINSTR_", "OTEL_", "NEMO_RL_OTEL_", "NEMO_LENS_", "SLURM_", "PYTHONPATH", "FAKE_TRAINING_")


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would steer a run, and with the interpreter's folder first.

    The stand-in's phases, which sleep for people to see them, are a tenth as long, and exporters are patient.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(_INHERITED)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    return {**env, "FAKE_TRAINING_PACE": "0.1", **PATIENT, **extra}


def run(
    *command: str | Path, cwd: Path, traced: bool = True, timeout: float = HUNG, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `python *command` in `cwd`, under `opentelemetry-instrument` when `traced`."""
    prefix = [str(INSTRUMENT)] if traced else []
    return subprocess.run(
        [*prefix, sys.executable, *map(str, command)],
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def launch(*command: str | Path, cwd: Path, **env: str) -> subprocess.Popen[str]:
    """The same, begun: traced, and with a pipe to each of its streams."""
    return subprocess.Popen(
        [str(INSTRUMENT), sys.executable, *map(str, command)],
        cwd=cwd,
        env=clean_environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_job(folder: Path, work: str, span_map: str, job: str, **env: str) -> tuple[subprocess.Popen[str], str]:
    """A traced process that runs `job`, with a module `work` and its map, and the first line that it prints.

    All groups of that map alone; the journal of run `r` is in `folder`.
    """
    (folder / "work.py").write_text(work)
    (folder / "work.yaml").write_text(span_map)
    process = subprocess.Popen(
        [str(INSTRUMENT), sys.executable, "-c", f"import work; {job}"],
        cwd=folder,
        env=clean_environment(
            AUTOINSTR_SPAN_MAPS=str(folder / "work.yaml"),
            AUTOINSTR_SPAN_GROUPS="all",
            AUTOINSTR_BUILTIN_MAPS="none",
            AUTOINSTR_RUN_DIR=str(folder),
            AUTOINSTR_RUN_ID="r",
            **env,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Until it is so; a process that is to bring it about must not end before."""
    until = time.monotonic() + HUNG
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}: {process.communicate()}")
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def make_late(folder: Path, process: subprocess.Popen[str]) -> None:
    """What is open in a process that has `hang_clock` hangs from here on; wait until the hang watch has looked."""
    (folder / "late").touch()
    looks = folder / "looks"
    wait_for(lambda: looks.exists() and looks.stat().st_size > 2, process)


def our_lines(process: subprocess.CompletedProcess[str]) -> list[str]:
    """What autoinstr said in that run."""
    return [line for line in process.stderr.splitlines() if line.startswith("autoinstr: ")]


def results(process: subprocess.CompletedProcess[str]) -> list[str]:
    """The example's own results, which tracing must not change."""
    return [line for line in process.stdout.splitlines() if "reward" in line or "random stream" in line]


def journal_lines(cwd: Path) -> list[dict[str, Any]]:
    """Every record of every journal below `cwd`."""
    return [
        json.loads(line)
        for file in sorted(cwd.glob("autoinstr-runs/*/*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def journal_spans(cwd: Path) -> list[dict[str, Any]]:
    """Every finished span in the journals below `cwd`, as OTLP JSON."""
    return [
        span
        for record in journal_lines(cwd)
        for resource in record.get("resourceSpans", [])
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def count_names(spans: list[Any]) -> Counter[str]:
    return Counter(span["name"] if isinstance(span, dict) else span.name for span in spans)

"""NeMo RL's own `init_ray` on real Ray: which cluster does `rl.setup.ray_init` say that the run is on?

    NEMO_RL_SOURCE=<a checkout> python -m pytest tests/real/test_nemo_rl_ray_init.py

in an environment that NeMo RL's modules can be imported in, on a machine on which no Ray runs: `init_ray` attaches to
whatever cluster it finds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runs import INSTRUMENT, clean_environment, journal_spans  # noqa: E402

SOURCE = os.environ.get("NEMO_RL_SOURCE")
pytestmark = pytest.mark.skipif(not SOURCE, reason="NOT RUN: NEMO_RL_SOURCE names no checkout of NeMo RL")

LAUNCHER = """
from nemo_rl.distributed.virtual_cluster import init_ray
init_ray()
print("ready", flush=True)
input()
"""


@pytest.fixture
def temporary() -> Iterator[str]:
    # the paths of Ray's sockets must stay under 107 characters
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


@contextmanager
def running(command: list[str], ready: str, cwd: Path, **variables: str) -> Iterator[None]:
    """A process that has printed `ready`. It is told to end by the end of its input, or by SIGTERM, and waited for."""
    environment = clean_environment(
        PYTHONPATH=str(SOURCE), RAY_AUTH_MODE="disabled", AUTOINSTR_SPAN_GROUPS="setup", **variables
    )
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    printed: list[str] = []
    try:
        for line in process.stdout:
            printed.append(line)
            if ready in line:
                break
        else:
            pytest.fail("".join(printed))
        yield
    finally:
        if command[0] != str(INSTRUMENT):
            process.terminate()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def launcher(cwd: Path, temporary: str, gpus: str) -> Any:
    """A launcher that has called `init_ray`; its journal is in `cwd`."""
    cwd.mkdir()
    return running(
        [str(INSTRUMENT), sys.executable, "-c", LAUNCHER],
        "ready",
        cwd,
        RAY_TMPDIR=temporary,
        CUDA_VISIBLE_DEVICES=gpus,
    )


def operators_cluster(cwd: Path, temporary: str) -> Any:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    return running([*command, "--include-dashboard=false", f"--temp-dir={temporary}"], "--block", cwd)


def said(cwd: Path) -> list[dict[str, Any]]:
    """The attributes of each finished `rl.setup.ray_init` of one process."""
    return [
        {a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", [])}
        for span in journal_spans(cwd)
        if span["name"] == "rl.setup.ray_init"
    ]


def test_one_that_it_starts_and_one_that_another_launcher_has_started(tmp_path: Path, temporary: str) -> None:
    with launcher(tmp_path / "first", temporary, "0"):
        with launcher(tmp_path / "second", temporary, "0"):
            pass
        with launcher(tmp_path / "third", temporary, "1"):  # other GPUs: not that one
            pass
    assert {name: said(tmp_path / name) for name in ("first", "second", "third")} == {
        "first": [{"rl.ray.cluster_source": "started_local"}],
        "second": [{"rl.ray.cluster_source": "reused_local"}],
        "third": [{"rl.ray.cluster_source": "started_local"}],
    }


def test_one_that_an_operator_has_started(tmp_path: Path, temporary: str) -> None:
    with operators_cluster(tmp_path, temporary), launcher(tmp_path / "run", temporary, "0"):
        pass
    assert said(tmp_path / "run") == [{"rl.ray.cluster_source": "attached_external"}]

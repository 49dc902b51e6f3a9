"""Real Ray with workers in an environment of their own that has Ray and no autoinstr: a bundle on the path.

    python -m pytest tests/real/test_ray_bundle.py

NeMo RL runs its actors so: one environment per kind, chosen by `py_executable`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("ray")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_ray import STEP, TRAINING, assert_whole, drive, plain_run  # noqa: E402

from autoinstr.cli import main  # noqa: E402


def environment(folder: Path, *without: str) -> Path:
    """The Python of an environment with all that this one has, but what begins with one of these words."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in map(Path, reversed(sys.path)):
        for entry in path.iterdir() if path.name == "site-packages" else ():
            if not entry.name.startswith((*without, "__pycache__")) and entry.suffix != ".pth":
                link = site / entry.name
                link.unlink(missing_ok=True)
                link.symlink_to(entry)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with Ray and without autoinstr, OpenTelemetry and wrapt."""
    folder = tmp_path_factory.mktemp("worker") / "environment"
    return environment(folder, "autoinstr", "_editable_impl_autoinstr", "opentelemetry", "wrapt")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "bundle"
    assert main(["bundle", str(folder)]) == 0
    return folder


def runtime_env(worker: Path) -> str:
    return json.dumps({"py_executable": str(worker)})


def test_a_worker_with_a_bundle_on_its_path_is_in_the_trace(tmp_path: Path, worker: Path, bundle: Path) -> None:
    run = drive("train", tmp_path, RUNTIME_ENV=runtime_env(worker), PYTHONPATH=f"{bundle}:{TRAINING}")

    assert run.result == plain_run().result
    assert run.said == []
    assert_whole(run)


def test_the_driver_may_have_the_bundle_alone_too(tmp_path: Path, bundle: Path) -> None:
    """OpenTelemetry is there, for Ray's own agents need it; autoinstr is not."""
    python = environment(tmp_path / "environment", "autoinstr", "_editable_impl_autoinstr", "wrapt")
    run = drive("train", tmp_path, traced=False, python=str(python), PYTHONPATH=f"{bundle}:{TRAINING}")
    assert_whole(run)


def test_without_the_bundle_it_works_as_before_and_the_driver_says_so(tmp_path: Path, worker: Path) -> None:
    run = drive("without", tmp_path, RUNTIME_ENV=runtime_env(worker))

    assert run.paths() == Counter({"loop.setup": 1, "loop.train": 1, STEP: 2, "phase": 2})
    assert len(run.said) == 4
    assert all("`autoinstr bundle` makes a folder that brings it there" in line for line in run.said)

"""Phoenix, the real one: a journal is shipped to it, and its REST API shows the run as one tree.

    python -m venv /tmp/phoenix && /tmp/phoenix/bin/pip install arize-phoenix
    PHOENIX_PYTHON=/tmp/phoenix/bin/python python -m pytest tests/real/test_phoenix.py

Phoenix has an environment of its own: it needs other versions of OpenTelemetry than training may have.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runs import EXAMPLE, HUNG, clean_environment, journal_spans, run, wait_for

PYTHON = os.environ.get("PHOENIX_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="NOT RUN: PHOENIX_PYTHON names no environment with arize-phoenix")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a Phoenix that runs: HTTP and gRPC."""
    folder = tmp_path_factory.mktemp("phoenix")
    for _ in range(5):  # somebody else may have taken a port by the time that Phoenix binds it
        http, grpc = free_port(), free_port()
        server = subprocess.Popen(
            [str(PYTHON), "-m", "phoenix.server.main", "serve"],
            env=clean_environment(
                PHOENIX_PORT=str(http),
                PHOENIX_GRPC_PORT=str(grpc),
                PHOENIX_HOST="127.0.0.1",
                PHOENIX_WORKING_DIR=str(folder),
                PHOENIX_TELEMETRY_ENABLED="false",
            ),
            stdout=(folder / "log").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        address = f"http://127.0.0.1:{http}"
        try:
            wait_for(lambda: server.poll() is not None or answers(f"{address}/healthz"))
        except AssertionError:
            server.kill()
            raise
        if server.poll() is None:
            break
    assert server.poll() is None, (folder / "log").read_text()[-3000:]
    try:
        yield address, f"http://127.0.0.1:{grpc}"
    finally:
        server.terminate()
        server.wait(HUNG)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).read()
    except OSError:
        return False
    return True


def spans_of(address: str, project: str) -> list[dict[str, Any]]:
    """Every span of a project, by Phoenix's REST API."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        more = f"&cursor={cursor}" if cursor else ""
        url = f"{address}/v1/projects/{project}/spans?limit=100{more}"
        page = json.load(urllib.request.urlopen(url, timeout=HUNG))
        found += page["data"]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return found


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_run_is_one_tree(tmp_path: Path, phoenix: tuple[str, str], protocol: str) -> None:
    project = f"run-{protocol[:4]}"
    env = {"OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}", "AUTOINSTR_SPAN_GROUPS": "per_step"}
    done = run(EXAMPLE, "--steps", "3", cwd=tmp_path, **env)
    assert done.returncode == 0, done.stderr
    address, grpc = phoenix
    endpoint = address if protocol != "grpc" else grpc
    for _ in range(2):  # the second sends nothing more
        shipped = run(
            "-m", "autoinstr", "ship", "--endpoint", endpoint, "--protocol", protocol, cwd=tmp_path, traced=False
        )
        assert shipped.returncode == 0, shipped.stderr
    written = journal_spans(tmp_path)
    wait_for(lambda: len(spans_of(address, project)) >= len(written))  # Phoenix inserts in the background
    there = spans_of(address, project)
    assert len(there) == len(written)
    assert len({span["context"]["trace_id"] for span in there}) == 1
    parents = {span["context"]["span_id"]: span["parent_id"] or None for span in there}
    assert parents == {span["spanId"]: span.get("parentSpanId") for span in written}
    names = {span["context"]["span_id"]: span["name"] for span in there}
    roots = sorted(names[span_id] for span_id, parent in parents.items() if parent is None)
    assert roots == ["rl.grpo.job", "rl.startup"], "start-up, and then the training"
    assert all(parent in parents for parent in parents.values() if parent is not None)
    steps = [span for span in there if span["name"] == "rl.grpo.step"]
    assert sorted(span["attributes"]["rl.iteration"] for span in steps) == [1, 2, 3]

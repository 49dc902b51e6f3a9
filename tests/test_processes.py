"""One run, many processes: each child's roots lie under the span it was started in, and a fork shares nothing."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver
from runs import journal_spans, run

from autoinstr.bridges.processes import environment
from autoinstr.journal.reader import read_run
from autoinstr.report.postmortem import fates
from autoinstr.spans.ids import trace_id_of

MAP = """
map: jobs
package: jobs
spans:
  jobs.parent:
    group: job
    function: jobs:parent
  jobs.child:
    group: step
    function: jobs:child
    attributes:
      pid: return
"""

JOBS = """
import os

def parent(do, *args):
    return do(*args)

def child(*args):
    return os.getpid()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "jobs.yaml").write_text(MAP)
    return tmp_path


def traced(folder: Path, source: str, **env: str) -> Any:
    (folder / "script.py").write_text(source)
    done = run(
        "script.py",
        cwd=folder,
        **{
            "AUTOINSTR_SPAN_MAPS": str(folder / "jobs.yaml"),
            "AUTOINSTR_SPAN_GROUPS": "all",
            "AUTOINSTR_BUILTIN_MAPS": "none",
            "AUTOINSTR_RUN_ID": "family",
            **env,
        },
    )
    assert done.returncode == 0, done.stderr
    return done


def assert_children_under_their_parent(folder: Path, children: int, files: int | None = None) -> None:
    """One trace, one `jobs.parent`, so many `jobs.child` below it, each from a process and a file of its own."""
    spans = journal_spans(folder)
    assert Counter(span["name"] for span in spans) == {"jobs.parent": 1, "jobs.child": children}
    assert {span["traceId"] for span in spans} == {f"{trace_id_of('family'):032x}"}
    assert len({span["spanId"] for span in spans}) == len(spans)
    (parent,) = [span for span in spans if span["name"] == "jobs.parent"]
    assert {span.get("parentSpanId") for span in spans if span is not parent} == {parent["spanId"]}
    found = read_run(folder / "autoinstr-runs" / "family")
    assert len(found.processes) == (children + 1 if files is None else files)
    for span in found.spans:
        if span.name == "jobs.child":
            assert span.attributes["pid"] == found.processes[span.process].pid
    assert found.open == []


MULTIPROCESSING = """
import multiprocessing, sys
import jobs

def start(method):
    context = multiprocessing.get_context(method)
    started = [context.Process(target=jobs.child) for _ in range(3)]
    for one in started: one.start()
    for one in started: one.join(); assert one.exitcode == 0, one.exitcode

if __name__ == "__main__":
    jobs.parent(start, sys.argv[1] if len(sys.argv) > 1 else METHOD)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(jobs: Path, method: str) -> None:
    done = traced(jobs, MULTIPROCESSING.replace("METHOD", repr(method)))
    assert done.stderr == ""
    assert_children_under_their_parent(jobs, children=3)
    found = read_run(jobs / "autoinstr-runs" / "family")
    assert [fate.state for fate in fates(found)] == ["ended"] * 4, "they end without atexit, and yet on record"


@pytest.mark.parametrize(
    ("method", "protocol"), [("fork", "grpc"), ("fork", "http/protobuf"), ("forkserver", "grpc"), ("spawn", "grpc")]
)
def test_what_a_child_has_queued_is_sent_when_it_ends(jobs: Path, method: str, protocol: str) -> None:
    with Receiver() as receiver:
        done = traced(
            jobs,
            MULTIPROCESSING.replace("METHOD", repr(method)).replace("def start", "jobs.child()\n\ndef start")
            if method == "fork"
            else MULTIPROCESSING.replace("METHOD", repr(method)),
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_BSP_SCHEDULE_DELAY="60000",
        )
        assert done.stderr == ""
        own = 1 if method == "fork" else 0  # the parent's queue was not empty when it forked
        assert Counter(span.name for span in receiver.spans()) == {"jobs.parent": 1, "jobs.child": 3 + own}
        assert len({span.span_id for span in receiver.spans()}) == 4 + own
        pids = {a.value.int_value for r in all_resources(receiver) for a in r.attributes if a.key == "process.pid"}
        assert len(pids) == 4, "each child's spans carry its own pid"


def all_resources(receiver: Receiver) -> list[Any]:
    return [resource.resource for request in receiver.requests for resource in request.resource_spans]


def test_os_fork_and_a_child_that_unwinds_the_parents_span(jobs: Path) -> None:
    source = (
        "import os, sys, jobs\n"
        "def fork():\n"
        "    pid = os.fork()\n"
        "    jobs.child()\n"
        "    return pid\n"
        "pid = jobs.parent(fork)\n"  # the child leaves the parent's span as well
        "if pid: os.waitpid(pid, 0)\n"
    )
    with Receiver() as receiver:
        traced(jobs, source, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint, AUTOINSTR_JOURNAL="on")
        assert Counter(span.name for span in receiver.spans()) == {"jobs.parent": 1, "jobs.child": 2}
    assert_children_under_their_parent(jobs, children=2, files=2)


CHILD = """
import jobs
jobs.child()
"""


@pytest.mark.parametrize("env", ["None", "dict(os.environ)", "os.environ.copy() | {'MORE': '1'}"])
def test_subprocess_gets_its_parent_by_the_environment(jobs: Path, env: str) -> None:
    (jobs / "child.py").write_text(CHILD)
    source = (
        "import os, subprocess, sys, jobs\n"
        f"def start(): subprocess.run([sys.executable, 'child.py'], env={env}, check=True)\n"
        "jobs.parent(start)\n"
        "assert 'TRACEPARENT' not in os.environ\n"
    )
    done = traced(jobs, source)
    assert done.stderr == ""
    assert_children_under_their_parent(jobs, children=1)


def test_asyncio_subprocess_and_a_grandchild(jobs: Path) -> None:
    (jobs / "child.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'grandchild.py'], check=True)\n"
    )
    (jobs / "grandchild.py").write_text(CHILD)
    source = (
        "import asyncio, sys, jobs\n"
        "async def start():\n"
        "    process = await asyncio.create_subprocess_exec(sys.executable, 'child.py')\n"
        "    assert await process.wait() == 0\n"
        "jobs.parent(lambda: asyncio.run(start()))\n"
    )
    traced(jobs, source)
    assert_children_under_their_parent(jobs, children=1, files=2)


def test_a_thread_of_a_child_has_the_same_parent(jobs: Path) -> None:
    (jobs / "child.py").write_text(
        "import threading, jobs\nt = threading.Thread(target=jobs.child)\nt.start()\nt.join()\n"
    )
    source = (
        "import subprocess, sys, jobs\njobs.parent(lambda: subprocess.run([sys.executable, 'child.py'], check=True))\n"
    )
    traced(jobs, source)
    assert_children_under_their_parent(jobs, children=1)


def test_a_child_outside_the_run_gets_nothing(jobs: Path) -> None:
    source = (
        "import subprocess, jobs\n"
        "def start(env): return subprocess.run(['/usr/bin/env'], env=env, capture_output=True, text=True).stdout\n"
        "assert jobs.parent(start, {'A': 'b'}) == 'A=b\\n'\n"
        "assert 'TRACEPARENT=00-' in jobs.parent(start, {'AUTOINSTR_RUN_ID': 'family'})\n"
        "assert 'TRACEPARENT=00-' in jobs.parent(start, {b'AUTOINSTR_RUN_ID': b'family'})\n"
        "own = {'AUTOINSTR_RUN_ID': 'family', 'TRACEPARENT': '00-' + 'ab' * 16 + '-' + 'cd' * 8 + '-01'}\n"
        "assert own['TRACEPARENT'] in jobs.parent(start, own)\n"
        "assert 'TRACEPARENT' not in start(None), 'outside any span'\n"
    )
    traced(jobs, source)


def test_a_parent_of_another_trace_is_left_alone(jobs: Path) -> None:
    traced(jobs, CHILD, TRACEPARENT=f"00-{'ab' * 16}-{'cd' * 8}-01")
    (span,) = journal_spans(jobs)
    assert "parentSpanId" not in span


def test_a_parent_of_the_runs_own_trace_is_taken(jobs: Path) -> None:
    traced(jobs, CHILD, TRACEPARENT=f"00-{trace_id_of('family'):032x}-{'cd' * 8}-01")
    (span,) = journal_spans(jobs)
    assert span["parentSpanId"] == "cd" * 8


def test_the_environment_is_what_c_code_made_it() -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    libc.setenv(b"AUTOINSTR_TEST_FROM_C", b"there", 1)
    try:
        assert "AUTOINSTR_TEST_FROM_C" not in os.environ
        assert environment()[b"AUTOINSTR_TEST_FROM_C"] == b"there"
        assert environment()[b"PATH"] == os.environb[b"PATH"]
    finally:
        libc.unsetenv(b"AUTOINSTR_TEST_FROM_C")


def test_two_ranks_as_torchrun_starts_them(jobs: Path) -> None:
    (jobs / "rank.py").write_text(CHILD)
    source = (
        "import os, subprocess, sys, jobs\n"
        "def launch():\n"
        "    ranks = [subprocess.Popen([sys.executable, '-u', 'rank.py'],\n"
        "        env={**os.environ, 'RANK': str(r), 'LOCAL_RANK': str(r), 'WORLD_SIZE': '2'}) for r in range(2)]\n"
        "    assert [r.wait() for r in ranks] == [0, 0]\n"
        "jobs.parent(launch)\n"
    )
    traced(jobs, source)
    assert_children_under_their_parent(jobs, children=2)
    found = read_run(jobs / "autoinstr-runs" / "family")
    assert sorted(p.rank for p in found.processes if p.rank is not None) == [0, 1]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="NOT RUN: torch is not installed here")
def test_torchrun_with_gloo_and_a_data_loader(jobs: Path) -> None:
    (jobs / "rank.py").write_text(
        "import os, torch, torch.distributed as dist, jobs\n"
        "class Numbers(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, n): return jobs.child()\n"
        "def work():\n"
        "    dist.init_process_group('gloo')\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    assert len(set(torch.cat(list(torch.utils.data.DataLoader(Numbers(), num_workers=2))).tolist())) == 2\n"
        "    dist.destroy_process_group()\n"
        "jobs.parent(work)\n"
    )
    source = (
        "import sys\nfrom torch.distributed.run import main\nmain(['--standalone', '--nproc-per-node=2', 'rank.py'])\n"
    )
    traced(jobs, source)
    spans = journal_spans(jobs)
    assert Counter(span["name"] for span in spans) == {"jobs.parent": 2, "jobs.child": 8}
    parents = {span["spanId"] for span in spans if span["name"] == "jobs.parent"}
    assert {span["parentSpanId"] for span in spans if span["name"] == "jobs.child"} == parents


def test_a_pool_of_workers_that_is_terminated_dies_as_before(jobs: Path) -> None:
    """`Pool.terminate` sends SIGTERM: with an exporter its workers flush, and die of it."""
    source = (
        "import multiprocessing, sys, time\nimport jobs\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(4) as pool:\n"
        "        assert len(pool.map(jobs.child, range(100), chunksize=1)) == 100\n"
        "        workers = list(pool._pool)\n"
        "        began = time.monotonic()\n"
        "    print(time.monotonic() - began, [w.exitcode for w in workers])\n"
    )
    with Receiver() as receiver:
        done = traced(
            jobs,
            source,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint,
            OTEL_BSP_SCHEDULE_DELAY="60000",
        )
        assert "[-15, -15, -15, -15]" in done.stdout
        assert len(receiver.spans()) == 100, (done.stdout, done.stderr)
        assert len({span.span_id for span in receiver.spans()}) == 100


def test_nothing_is_left_after_uninstrument(jobs: Path) -> None:
    source = (
        "import multiprocessing.process as process, multiprocessing.spawn as spawn, subprocess\n"
        "from autoinstr.instrumentor import AutoinstrInstrumentor\n"
        "def patched():\n"
        "    now = (subprocess.Popen.__init__, process.BaseProcess._bootstrap)\n"
        "    now += (spawn.prepare, spawn.get_preparation_data)\n"
        "    return [hasattr(function, '__wrapped__') for function in now]\n"
        "assert patched() == [True] * 4\n"
        "AutoinstrInstrumentor().uninstrument()\n"
        "assert patched() == [False] * 4\n"
    )
    traced(jobs, source)

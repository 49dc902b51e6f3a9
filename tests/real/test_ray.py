"""Real Ray on a CPU: one trace over driver, actors and tasks, in clusters of our own and in ones that run already.

    python -m pytest tests/real/test_ray.py

in an environment with `ray` (2.49 or newer) and this package. Every test runs `ray_training/drive.py` in a process
of its own, on a cluster of its own. What is under test is the tree of spans that the journals of all processes give.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from runs import INSTRUMENT, clean_environment, journal_lines, journal_spans, wait_for  # noqa: E402

from autoinstr.bridges import ray_census  # noqa: E402
from autoinstr.maps import catalog  # noqa: E402
from autoinstr.patch import arguments, targets  # noqa: E402

TRAINING = HERE / "ray_training"
HIDDEN = TRAINING / "hidden"
SLOW = 600
"""Seconds until a run counts as hung."""


class Run:
    """What one scenario printed, said and recorded."""

    def __init__(self, process: subprocess.CompletedProcess[str], cwd: Path) -> None:
        lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
        assert process.returncode == 0, process.stderr[-3000:]
        assert lines, process.stdout + process.stderr
        self.result = json.loads(lines[-1].removeprefix("RESULT "))
        self.said = [line for line in process.stderr.splitlines() if line.startswith("autoinstr: ")]
        self.output = process.stdout + process.stderr
        self.spans = journal_spans(cwd)
        self.lines = journal_lines(cwd)
        self.journals = list(cwd.glob("autoinstr-runs/*/*.jsonl"))
        self.runs = {path.parent for path in self.journals}
        self.by_id = {span["spanId"]: span for span in self.spans}

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def parent(self, span: dict[str, Any]) -> dict[str, Any] | None:
        return self.by_id.get(span.get("parentSpanId", ""))

    def path(self, span: dict[str, Any] | None) -> str:
        """`root > … > span`, by names."""
        names = []
        while span is not None:
            names.append(span["name"])
            span = self.parent(span)
        return " > ".join(reversed(names))

    def paths(self) -> Counter[str]:
        return Counter(self.path(span) for span in self.spans)

    def below(self, phase: str) -> list[list[str]]:
        """For each call of a phase of this name, the names of all spans below it, sorted."""
        found = []
        for top in self.named("phase"):
            if attributes(top).get("phase") == phase:
                found.append(sorted(s["name"] for s in self.spans if s is not top and self._is_below(s, top)))
        return found

    def _is_below(self, span: dict[str, Any] | None, top: dict[str, Any]) -> bool:
        while span is not None and span is not top:
            span = self.parent(span)
        return span is top


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", [])}


def environment(temporary: str, **extra: str) -> dict[str, str]:
    ours = {
        "PYTHONPATH": str(TRAINING),
        "RAY_TMPDIR": temporary,
        "RAY_worker_niceness": "0",  # Ray's is 15, which starves them on a busy machine
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        # a busy machine is no dead one
        "RAY_worker_register_timeout_seconds": str(SLOW),
        "RAY_raylet_start_wait_time_s": str(SLOW),
        "RAY_agent_register_timeout_ms": str(1000 * SLOW),
        "AUTOINSTR_SPAN_MAPS": str(TRAINING / "toyrl.yaml"),
        "AUTOINSTR_SPAN_GROUPS": "toy",
    }
    return clean_environment(**{**ours, **extra})


def drive(
    scenario: str,
    cwd: Path,
    traced: bool = True,
    address: str | None = None,
    python: str = sys.executable,
    **extra: str,
) -> Run:
    # the paths of Ray's sockets must stay under 107 characters
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        process = subprocess.run(
            [
                *([str(INSTRUMENT)] if traced else []),
                python,
                str(TRAINING / "drive.py"),
                scenario,
                *([address] if address else []),
            ],
            cwd=cwd,
            env=environment(temporary, **extra),
            capture_output=True,
            text=True,
            timeout=SLOW,
        )
    return Run(process, cwd)


def free_port() -> int:
    """Ray's client server takes none of its own. If somebody else has it by then, the cluster is started anew."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="class")
def cluster() -> Iterator[str]:
    """The address of a cluster that `ray start` has started, without us.

    It lives as short as can be: a Ray program of somebody else's on this machine may attach to whatever it finds.
    """
    for last in (False, False, True):  # see `start` in drive.py
        with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as temporary:
            log = Path(temporary) / "start.log"
            head = start_head(temporary, log)
            try:
                wait_for(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
                if head.poll() is None:
                    yield (Path(temporary) / "ray" / "ray_current_cluster").read_text().strip()
                    return
                assert not last, log.read_text()
            finally:
                head.terminate()
                head.wait(SLOW)


def start_head(temporary: str, log: Path) -> subprocess.Popen[str]:
    env = {k: v for k, v in environment(temporary).items() if not k.startswith(("AUTOINSTR_", "PYTHONPATH"))}
    with log.open("w") as output:
        return subprocess.Popen(
            [
                str(Path(sys.executable).parent / "ray"),
                "start",
                "--head",
                "--block",
                "--port=0",
                f"--ray-client-server-port={free_port()}",
                "--dashboard-agent-listen-port=0",
                "--min-worker-port=0",
                "--max-worker-port=0",
                "--num-cpus=4",
                "--include-dashboard=false",
                "--disable-usage-stats",
            ],
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


STEP = "loop.train > loop.step"
WHOLE_TREE = Counter(
    {
        "loop.setup": 1,
        "loop.setup > policy.init": 2,
        "loop.train": 1,
        STEP: 3,
        f"{STEP} > collector.collect": 3,
        f"{STEP} > collector.collect > generation.generate": 3,
        f"{STEP} > collector.collect > generation.generate > generation.complete": 12,
        f"{STEP} > collector.collect > buffer.add": 3,
        f"{STEP} > buffer.sample": 3,
        f"{STEP} > policy.train": 6,
        f"{STEP} > policy.train > policy.forward": 6,
        f"{STEP} > generation.update": 3,
    }
)


@functools.cache
def plain_run() -> Run:
    """The training without us."""
    with tempfile.TemporaryDirectory() as cwd:
        return drive("train", Path(cwd), traced=False)


@pytest.fixture(scope="module")
def plain() -> Run:
    return plain_run()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The training with us, on a cluster of its own."""
    return drive("train", tmp_path_factory.mktemp("trained"))


def assert_whole(run: Run) -> None:
    assert run.paths() == WHOLE_TREE
    assert len({span["traceId"] for span in run.spans}) == 1
    # the driver, two policies, generation, the buffer and the collector: a file each, in one run's folder
    assert (len(run.runs), len(run.journals)) == (1, 6)
    assert run.said == []


def test_a_cluster_of_the_drivers_own(trained: Run, plain: Run) -> None:
    assert trained.result == plain.result  # losses, weights, and the random stream after them
    assert_whole(trained)
    assert plain.spans == []


def test_every_process_has_what_the_driver_learned_and_rays_ids(trained: Run) -> None:
    found = {}
    for line in trained.lines:
        for of_resource in line.get("resourceSpans", []):
            about = attributes(of_resource["resource"])
            for span in of_resource["scopeSpans"][0]["spans"]:
                found[span["name"], about["process.pid"]] = about
    assert {about["toy.model"] for about in found.values()} == {"toy/model"}
    assert len({about["ray.job.id"] for about in found.values()}) == 1
    assert len({about["ray.node.id"] for about in found.values()}) == 1
    processes = {about["process.pid"]: about for about in found.values()}
    assert len(processes) == 6
    assert len({about["ray.worker.id"] for about in processes.values()}) == 6
    assert sorted("ray.actor.id" in about for about in processes.values()) == [False, *[True] * 5]


def test_nothing_is_lost_when_actors_are_killed_and_the_driver_ends(tmp_path: Path) -> None:
    assert_nothing_lost(drive("ends", tmp_path))


def assert_nothing_lost(run: Run) -> None:
    assert run.paths() == Counter(
        {
            path: count if path.startswith("loop.setup") or path == "loop.train" else count * 2 // 3
            for path, count in WHOLE_TREE.items()
        }
    )
    assert len({span["traceId"] for span in run.spans}) == 1


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return drive("kinds", tmp_path_factory.mktemp("kinds"))


KINDS: dict[str, list[list[str]]] = {
    "async": [["generation.complete", "generation.generate"]],
    # three calls of one actor at once, from three spans
    "call 0": [["generation.complete", "generation.generate"], ["kinds.score", "kinds.threaded"]],
    "call 1": [["generation.complete", "generation.generate"], ["kinds.score", "kinds.threaded"]],
    "call 2": [["generation.complete", "generation.generate"], ["kinds.score", "kinds.threaded"]],
    "async generator": [["generation.complete", "generation.complete", "generation.stream"]],
    "concurrency group": [["kinds.score"]],
    "other group": [["kinds.score"]],
    "generator": [["kinds.score", "kinds.score", "kinds.stream"]],
    "static": [["kinds.score"]],
    "task": [["kinds.score"]],
    "task with a reference": [["kinds.score"]],
    "task with keywords": [["kinds.score"]],
    "generator task": [["kinds.score", "kinds.score"]],
    "retried task": [["kinds.score", "kinds.score", "kinds.score"]],  # it scores, fails, and scores twice
    "nested task": [["kinds.score"]],
    "restarting init": [["kinds.score", "kinds.score"]],  # the restart is the same call
    "restarted": [["kinds.score"]],
    "failing": [["kinds.fail"]],
    "cancelled": [["generation.generate"]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_spans_lie_below_the_call(kinds: Run, kind: str) -> None:
    assert kinds.below(kind) == KINDS[kind]


def test_a_task_without_arguments_has_no_parent_and_is_in_the_trace(kinds: Run) -> None:
    assert kinds.below("task without arguments") == [[]]
    assert [kinds.path(s) for s in kinds.named("kinds.score")].count("kinds.score") == 1
    assert len({span["traceId"] for span in kinds.spans}) == 1


def test_bare_threads_of_an_actor_follow_the_drivers_job_and_take_it_on(kinds: Run) -> None:
    assert {path: count for path, count in kinds.paths().items() if path.startswith("job")} == {
        "job": 1,
        "job > kinds.batch": 2,
        "job > kinds.batch > kinds.score": 2,
        "job > kinds.batch > kinds.threaded": 2,
        "job > kinds.batch > kinds.threaded > kinds.score": 2,
    }


def test_every_kind_of_call_gives_what_it_gives_without_us(tmp_path: Path, kinds: Run) -> None:
    run = drive("kinds", tmp_path, traced=False)

    assert kinds.result == run.result
    assert run.result["arguments"] == [[1], {"a": 2}]  # no argument of ours among them
    assert run.result["error"] == ["RayTaskError(ValueError)", True, "ValueError"]
    assert [text.endswith("ValueError: no") for text in run.result["errors"]] == [True] * 3
    assert run.result["errors of generators"] == ["ValueError: no"] * 2
    assert run.result["blamed"] == ["kinds.py", "worker.py"]
    assert kinds.said == []


def test_an_exception_and_a_cancellation_are_on_the_span(kinds: Run) -> None:
    (failed,), cancelled = kinds.named("kinds.fail"), kinds.named("generation.generate")[-1]

    assert failed["status"]["message"] == "ValueError: no"
    assert "CancelledError" in cancelled["status"]["message"]


SITE = "bridges/ray_site"
RUNTIME_ENV = json.dumps({"env_vars": {"PYTHONPATH": f"{HIDDEN.parent}/sites", "AUTOINSTR_USER_ID": "job"}})


def assert_merged(run: Run) -> None:
    own, job = run.result["own"], run.result["plain"]
    assert all(here for _, here, _ in (*own.values(), *job.values()))  # we are in both
    assert own["PYTHONPATH"][0].split(os.pathsep)[0].endswith(SITE)
    assert own["PYTHONPATH"][0].endswith("/nowhere/a")
    assert job["PYTHONPATH"][0].split(os.pathsep)[0].endswith(SITE)
    assert job["PYTHONPATH"][0].endswith("/sites")
    assert (own["AUTOINSTR_USER_ID"][0], job["AUTOINSTR_USER_ID"][0]) == ("theirs", "job")
    assert own["AUTOINSTR_RUN_ID"][0] == job["AUTOINSTR_RUN_ID"][0] == run.runs.pop().name
    assert run.result["unchanged"]
    assert run.below("static") == [["kinds.score"]]


def test_the_users_runtime_env_is_merged(tmp_path: Path) -> None:
    assert_merged(drive("environment", tmp_path, RUNTIME_ENV=RUNTIME_ENV, AUTOINSTR_USER_ID="driver"))


def test_the_users_sitecustomize_still_runs(tmp_path: Path) -> None:
    site = tmp_path / "theirs"
    site.mkdir()
    (site / "sitecustomize.py").write_text((HIDDEN / "sitecustomize.py").read_text())
    run = drive("environment", tmp_path, RUNTIME_ENV=json.dumps({"env_vars": {"PYTHONPATH": str(site)}}))

    assert run.result["plain"]["THEIRS"] == ["ran", True, 1]


WITHOUT_US = json.dumps({"env_vars": {"PYTHONPATH": str(HIDDEN)}})


def assert_works_as_before(run: Run, plain: Run) -> None:
    assert run.result["losses"] == plain.result["losses"][:2]
    assert (run.result["stream"], run.result["nested"]) == ([1], 1)
    assert run.paths() == Counter({"loop.setup": 1, "loop.train": 1, STEP: 2, "phase": 2})
    classes = ("Collector", "GenerationWorker", "PolicyWorker", "ReplayBuffer")
    assert sorted(run.said) == [
        f"autoinstr: the Ray actor {name} is without autoinstr (not installed in its environment, or off there): it "
        "works as before, and has no spans; `autoinstr bundle` makes a folder that brings it there"
        for name in classes
    ]
    assert "sitecustomize" not in run.output


def test_a_worker_without_us_works_as_before(tmp_path: Path, plain: Run) -> None:
    assert_works_as_before(drive("without", tmp_path, RUNTIME_ENV=WITHOUT_US), plain)


class TestAttached:
    """The same in a cluster that runs already."""

    def test_the_tree_and_the_results(self, tmp_path: Path, plain: Run, cluster: str) -> None:
        run = drive("train", tmp_path, address=cluster)

        assert run.result == plain.result
        assert_whole(run)

    def test_nothing_is_lost_when_actors_are_killed_and_the_driver_ends(self, tmp_path: Path, cluster: str) -> None:
        assert_nothing_lost(drive("ends", tmp_path, address=cluster))

    def test_the_users_runtime_env_is_merged(self, tmp_path: Path, cluster: str) -> None:
        run = drive("environment", tmp_path, address=cluster, RUNTIME_ENV=RUNTIME_ENV, AUTOINSTR_USER_ID="driver")

        assert_merged(run)

    def test_a_worker_without_us_works_as_before(self, tmp_path: Path, plain: Run, cluster: str) -> None:
        assert_works_as_before(drive("without", tmp_path, address=cluster, RUNTIME_ENV=WITHOUT_US), plain)


def test_what_the_shipped_maps_name_of_ray_is_there_and_takes_the_arguments() -> None:
    found = catalog.Catalog(lambda mistake: pytest.fail(str(mistake)))
    found.add_builtin("all")
    named = []
    for _, span_map in found.maps_for():
        for entry in span_map.spans:
            for target in entry.targets():
                if target.module.partition(".")[0] == "ray":
                    named.append(str(target))
                    place = targets.find(importlib.import_module(target.module), target.qualname)
                    assert not list(arguments.not_taken_by(place.raw, entry, target, entry.join.kind))
    assert named == ["ray:cluster_resources", "ray:init"]


def test_with_rays_own_tracing_its_spans_and_ours_are_one_trace(tmp_path: Path, plain: Run) -> None:
    run = drive("train", tmp_path, TRACING_HOOK="toyrl.hook:setup")

    assert run.result == plain.result
    assert len({span["traceId"] for span in run.spans}) == 1
    (remote,) = {run.path(span) for span in run.named("policy.train")}
    assert remote.startswith("loop.train > loop.step > PolicyWorker.train ray.remote")
    assert {run.path(span) for span in run.named("loop.setup")} == {"loop.setup"}


def test_a_driver_on_ray_client_says_that_its_workers_have_no_spans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray.util import client_connect

    from autoinstr.bridges.ray import RayBridge

    monkeypatch.setattr(client_connect, "connect", lambda *args, **kwargs: (args, kwargs))
    before = client_connect.connect
    bridge = RayBridge()
    bridge._part(ray, "", ray_census.install)
    assert client_connect.connect("h:1", namespace="n") == (("h:1",), {"namespace": "n"})
    bridge.remove()

    assert client_connect.connect is before
    assert "this driver reaches Ray by its client (ray://)" in capsys.readouterr().err

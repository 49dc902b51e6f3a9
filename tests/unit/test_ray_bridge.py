"""What the Ray bridge does that needs no Ray: environments, headers, and classes that hold copies of methods."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from autoinstr.bridges import ray_carrier, ray_context, ray_environment
from autoinstr.bridges.ray_environment import SITE
from autoinstr.maps import catalog, groups, loader
from autoinstr.patch.patcher import Patcher
from autoinstr.spans.opening import ActiveScope, Tracers, scope_of, within_scope


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PYTHONPATH has led to autoinstr, which would have to be handed on."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


# -- headers ------------------------------------------------------------------------------------------------


def sent_from(inside: context.Context) -> dict[str, str] | None:
    token = context.attach(inside)
    try:
        return ray_carrier.outgoing()
    finally:
        context.detach(token)


def test_headers_carry_the_span_its_state_baggage_and_scope() -> None:
    span = SpanContext(2**127 + 1, 5, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("a", "b")]))
    inside = baggage.set_baggage("key", "value", trace.set_span_in_context(NonRecordingSpan(span)))
    headers = sent_from(within_scope(inside, ActiveScope("overhead", {"rollout": "evaluate"})))

    assert headers is not None
    assert headers["traceparent"] == f"00-8{'0' * 30}1-{'0' * 15}5-01"
    arrived = ray_carrier.incoming(headers)
    assert arrived is not None
    remote = trace.get_current_span(arrived).get_span_context()
    assert (remote.trace_id, remote.span_id, remote.is_remote) == (span.trace_id, span.span_id, True)
    assert dict(remote.trace_state) == {"a": "b"}
    assert baggage.get_all(arrived) == {"key": "value"}
    scope = scope_of(arrived)
    assert scope is not None
    assert (scope.bucket, scope.groups) == ("overhead", {"rollout": "evaluate"})


def test_outside_of_any_span_nothing_is_sent() -> None:
    assert sent_from(context.Context()) is None


def test_a_scope_travels_without_a_span() -> None:
    """A rollout of the single controller with per_prompt off: its gym's spans are per_prompt all the same."""
    headers = sent_from(within_scope(context.Context(), ActiveScope(None, {"rollout": "per_prompt"})))
    assert headers is not None
    arrived = ray_carrier.incoming(headers)
    assert arrived is not None
    assert not trace.get_current_span(arrived).get_span_context().is_valid
    scope = scope_of(arrived)
    assert scope is not None
    assert scope.groups == {"rollout": "per_prompt"}


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        7,
        "00",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-more",
        f"00-{'x' * 32}-{'1' * 16}-01",
    ],
)
def test_headers_that_are_none_are_ignored(traceparent: Any) -> None:
    assert ray_carrier.incoming({"traceparent": traceparent}) is None


# -- the worker's side of a call ------------------------------------------------------------------------------


def fails() -> None:
    raise ValueError("no")


def generator() -> Iterator[int]:
    yield 1
    fails()


async def coroutine() -> None:
    fails()


async def async_generator() -> AsyncIterator[int]:
    yield 1
    fails()


async def collect(items: AsyncIterator[int]) -> list[int]:
    return [item async for item in items]


@pytest.mark.parametrize(
    ("function", "consume"),
    [
        (fails, lambda returned: returned),
        (generator, list),
        (coroutine, asyncio.run),
        (async_generator, lambda items: asyncio.run(collect(items))),
    ],
)
def test_an_error_shows_frames_of_ours_only_as_ray_shows_its_own(
    function: Callable[[], Any], consume: Callable[[Any], Any]
) -> None:
    """Ray makes a text of the traceback. It leaves out its own frames by the name of their file, carets excepted."""
    with pytest.raises(ValueError, match="no") as caught:
        call = ray_context._receiving(function, lambda: False)
        consume(call(_ray_trace_ctx={"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}))

    frames = [f for f in traceback.extract_tb(caught.tb) if f.name in ("receive", "_coroutine", "_generator")]
    ours = [f for f in traceback.extract_tb(caught.tb) if "autoinstr for" in f.filename]
    assert ours
    assert [f for f in frames if f not in ours] == []
    assert all("ray/_private/" in f.filename and not f.line for f in ours)


def test_a_warning_blames_the_caller() -> None:
    receive = ray_context._receiving(lambda: warnings.warn("old", DeprecationWarning, stacklevel=2), lambda: False)
    with pytest.warns(DeprecationWarning, match="old") as caught:
        receive()
    assert [os.path.basename(warning.filename) for warning in caught] == ["test_ray_bridge.py"]


# -- environments -------------------------------------------------------------------------------------------

OURS = {"AUTOINSTR_RUN_ID": "r", "OTEL_SERVICE_NAME": "s", "NEMO_RL_OTEL_ENABLED": "1", "NEMO_LENS_RUN_ID": "l"}


@pytest.mark.parametrize(
    ("runtime_env", "env_vars"),
    [
        (None, {**OURS, "PYTHONPATH": f"{SITE}:${{PYTHONPATH}}"}),
        ({"env_vars": {"A": "1"}}, {**OURS, "A": "1", "PYTHONPATH": f"{SITE}:${{PYTHONPATH}}"}),
        (
            {"env_vars": {"PYTHONPATH": "/a:/b", "OTEL_SERVICE_NAME": "mine"}},
            {**OURS, "OTEL_SERVICE_NAME": "mine", "PYTHONPATH": f"{SITE}:/a:/b"},
        ),
    ],
)
def test_a_job_on_a_cluster_that_runs_already(runtime_env: Any, env_vars: dict[str, str]) -> None:
    before = repr(runtime_env)
    merged = ray_environment.for_job(runtime_env, {**OURS, "HOME": "/root"}, started_here=False)

    assert merged == {**(runtime_env or {}), "env_vars": env_vars}
    assert repr(runtime_env) == before


def test_a_job_on_a_cluster_of_its_own_inherits() -> None:
    assert ray_environment.for_job(None, OURS, started_here=True) is None
    assert ray_environment.for_job({"env_vars": {"A": "1"}}, OURS, started_here=True) is None
    theirs = {"env_vars": {"PYTHONPATH": "/a"}}
    assert ray_environment.for_job(theirs, OURS, started_here=True) == {"env_vars": {"PYTHONPATH": f"{SITE}:/a"}}


def test_an_actors_environment_keeps_its_class_and_its_own_path_behind_ours() -> None:
    class RuntimeEnv(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            raise AssertionError("checked again")

    theirs = RuntimeEnv(env_vars={"PYTHONPATH": "/a", "B": "2"}, pip=["x"])
    merged = ray_environment.for_actor(theirs)

    assert type(merged) is RuntimeEnv
    assert merged == {"env_vars": {"PYTHONPATH": f"{SITE}:/a", "B": "2"}, "pip": ["x"]}
    assert theirs["env_vars"] == {"PYTHONPATH": "/a", "B": "2"}
    assert ray_environment.for_actor(merged) is merged
    without = RuntimeEnv(env_vars={"B": "2"})
    assert ray_environment.for_actor(without) is without


def test_a_journal_in_a_folder_that_ray_deletes_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ray job submit --working-dir .` starts the driver there."""
    package = tmp_path / "working_dir_files" / "_ray_pkg_1"
    package.mkdir(parents=True)
    monkeypatch.chdir(package)
    monkeypatch.delenv("AUTOINSTR_RUN_DIR", raising=False)
    ray_environment.say_if_deleted(str(tmp_path))
    monkeypatch.setenv("AUTOINSTR_RUN_DIR", str(tmp_path.parent / "runs"))
    ray_environment.say_if_deleted(str(tmp_path))

    assert capsys.readouterr().err == (
        f"autoinstr: the journal is in {package}/autoinstr-runs, in the job's working_dir, which Ray deletes; "
        "AUTOINSTR_RUN_DIR in the job's env_vars names a folder that stays\n"
    )


def test_opentelemetrys_own_loader_makes_way() -> None:
    loader = "/x/site-packages/opentelemetry/instrumentation/auto_instrumentation"
    assert ray_environment.with_site(f"{loader}/:/a:{SITE}") == f"{SITE}:/a"


# -- the sitecustomize of workers ---------------------------------------------------------------------------


def started(tmp_path: Path, script: str, *path: Path, **env: str) -> list[str]:
    """What a script at `script` prints that is started as Ray starts its processes."""
    file = tmp_path / script
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("import os, sys; print('autoinstr.instrumentor' in sys.modules, os.environ.get('THEIRS'))")
    site = os.pathsep.join([SITE, *map(str, path)])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOINSTR_", "OTEL_", "PYTHONPATH"))}
    output = subprocess.run(
        [sys.executable, str(file)],
        env={**clean, "PYTHONPATH": site, **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sitecustomize" not in output.stderr
    return output.stdout.split()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = 'ran'")
    return folder


def test_a_worker_loads_us_and_the_users_own(tmp_path: Path, theirs: Path) -> None:
    assert started(tmp_path, "ray/_private/workers/default_worker.py", theirs) == ["True", "ran"]


@pytest.mark.parametrize("script", ["ray/_private/workers/setup_worker.py", "ray/dashboard/agent.py"])
def test_rays_own_processes_do_not_load_us(tmp_path: Path, theirs: Path, script: str) -> None:
    assert started(tmp_path, script, theirs) == ["False", "ran"]


def test_where_we_are_not_installed_it_does_what_the_users_own_does(tmp_path: Path, theirs: Path) -> None:
    (theirs / "autoinstr").mkdir()
    (theirs / "autoinstr" / "__init__.py").write_text("raise ImportError")
    assert started(tmp_path, "ray/_private/workers/default_worker.py", theirs) == ["False", "ran"]


def test_a_python_that_is_too_old_passes_it_by() -> None:
    """A worker may call programs of the machine, which inherit its path: /usr/bin/python3 is 3.9 on many."""
    as_in_3_9 = f"import runpy, sys; del sys.orig_argv; runpy.run_path({str(Path(SITE, 'sitecustomize.py'))!r})"
    done = subprocess.run([sys.executable, "-I", "-c", as_in_3_9], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_empty_path_of_the_worker_puts_no_folder_in_front(tmp_path: Path) -> None:
    (tmp_path / "wrapt.py").write_text("raise SystemExit('the current folder came first')")
    script = "ray/_private/workers/default_worker.py"
    assert started(tmp_path, script, PYTHONPATH=SITE + os.pathsep) == ["True", "None"]


# -- classes that Ray hands over ----------------------------------------------------------------------------

MAP = """
map: toy
package: ray_toy
spans:
  toy.train: {group: step, function: "ray_toy.policy:Impl.train"}
  toy.add: {group: step, function: "ray_toy.policy:Worker.add"}
  toy.every: {group: step, function: "ray_toy.policy:Impl.every", subclasses: true}
  toy.timer: {group: step, between: {begin: "ray_toy.policy:Impl.start", end: "ray_toy.policy:Impl.stop"}}
"""


class Impl:
    def train(self) -> str:
        return "trained"

    def every(self) -> str:
        return "impl"

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Worker(Impl):
    def add(self) -> str:
        return self.train()

    def every(self) -> str:
        return "worker"


def as_ray_makes_it(cls: type) -> type:
    """What `@ray.remote` ships: a subclass with a wrapper of its own for every method."""

    def copied(method: Any) -> Any:
        @functools.wraps(method)
        def _resume_span(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
            return method(self, *args, **kwargs)

        return _resume_span

    names = ("train", "every", "start", "stop", "add")
    copies = {name: copied(getattr(cls, name)) for name in names if hasattr(cls, name)}
    return type(
        cls.__name__, (cls,), {**copies, "__ray_actor_class__": cls, "__qualname__": "_modify_class.<locals>.Class"}
    )


def by_value(*classes: type) -> list[type]:
    """Fresh copies, as a worker unpickles them, of a module that it never imports."""
    made: dict[type, type] = {}
    for cls in classes:
        bases = tuple(made.get(base, base) for base in cls.__bases__)
        namespace = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        made[cls] = type(
            cls.__name__, bases, {**namespace, "__module__": "ray_toy.policy", "__qualname__": cls.__name__}
        )
    return list(made.values())


@pytest.fixture
def patcher() -> Iterator[tuple[Patcher, InMemorySpanExporter]]:
    found = catalog.Catalog(lambda mistake: pytest.fail(str(mistake)))
    found.add_builtin("none")
    loaded = loader.load_map(MAP, "<text>", found.table)
    assert not loaded.mistakes
    assert loaded.map is not None
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = Patcher(found.table, groups.select("all", found.table), Tracers(lambda: provider))
    made.add(catalog.layered([(3, loaded.map)]))
    yield made, exporter
    made.undo()


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def test_a_class_by_value_and_its_copies_are_patched_once(patcher: tuple[Patcher, InMemorySpanExporter]) -> None:
    made, exporter = patcher
    impl, worker = by_value(Impl, Worker)
    actor = as_ray_makes_it(worker)
    made.patch_class(actor)
    made.patch_class(actor)
    instance = actor()

    assert instance.add() == "trained"
    assert instance.every() == "worker"
    assert names(exporter) == ["toy.train", "toy.add", "toy.every"]
    exporter.clear()
    instance.start()
    instance.stop()
    assert names(exporter) == ["toy.timer"]
    exporter.clear()
    assert impl().train() == "trained"  # a call through `super()` is one too
    assert names(exporter) == ["toy.train"]


def test_an_override_that_calls_no_super_is_no_call_of_the_target(
    patcher: tuple[Patcher, InMemorySpanExporter],
) -> None:
    made, exporter = patcher

    class Other(Impl):
        def train(self) -> str:
            return "otherwise"

    actor = as_ray_makes_it(by_value(Impl, Other)[1])
    made.patch_class(actor)

    assert actor().train() == "otherwise"
    assert names(exporter) == []


def test_a_half_pair_is_left_alone(patcher: tuple[Patcher, InMemorySpanExporter]) -> None:
    made, _ = patcher

    class Half:
        def start(self) -> None: ...

    half = type("Impl", (), {**vars(Half), "__module__": "ray_toy.policy", "__qualname__": "Impl"})
    before = half.start
    made.patch_class(half)
    assert half.start is before


def test_in_the_driver_a_decorated_class_stays_as_it_is(
    patcher: tuple[Patcher, InMemorySpanExporter], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its methods run in workers; its stand-in in the driver may be pickled."""
    made, _ = patcher
    impl, worker = by_value(Impl, Worker)
    module = types.ModuleType("ray_toy.policy")
    stand_in = worker()
    stand_in.__ray_metadata__ = object()
    module.Impl, module.Worker = impl, stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray_toy.policy", module)
    made.patch_module(module, "ray_toy.policy")

    assert list(vars(stand_in)) == ["__ray_metadata__"]
    (record,) = [r for r in made.ledger.records if r.span == "toy.add"]
    assert (record.state, record.why) == (
        "pending",
        "ray_toy.policy.Worker is a Ray actor class, which is patched in its workers",
    )
    assert capsys.readouterr().err == ""

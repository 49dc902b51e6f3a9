"""What a process says of itself and its run: from the environment, from maps, and what is learned late."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from autoinstr import resource
from autoinstr.bridges import processes, ray_carrier
from autoinstr.maps import loader
from autoinstr.maps.groups import GroupTable
from autoinstr.settings import Settings
from autoinstr.testing import record

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "_earlier", [])
    monkeypatch.setattr(resource, "_completions", {})
    monkeypatch.setattr(resource, "_of_the_run", {})
    monkeypatch.setattr(resource, "_told", None)


# -- the environment ------------------------------------------------------------------------------------


def told(**env: str) -> dict[str, Any]:
    found = resource.attributes(Settings.from_environ({"AUTOINSTR_RUN_ID": "r", **env}), env)
    return {k: v for k, v in found.items() if k not in ("host.name", "process.pid", "nemo.run.id")}


def test_nothing_is_said_of_what_the_environment_does_not_tell() -> None:
    assert told() == {}


def test_rank_and_world_size_in_both_spellings() -> None:
    assert told(RANK="3", WORLD_SIZE="8") == {"nv.dl.rank": 3, "dl.rank": 3, "nv.dl.world_size": 8, "dl.world_size": 8}


def test_slurm() -> None:
    assert told(
        SLURM_JOB_ID="17",
        SLURM_JOB_NAME="grpo",
        SLURM_JOB_NODELIST="n[1-2]",
        SLURM_NNODES="2",
        SLURM_NTASKS="16",
        SLURM_JOB_PARTITION="batch",
        SLURM_CLUSTER_NAME="c",
    ) == {
        "slurm.job.id": "17",
        "slurm.job.name": "grpo",
        "slurm.nodelist": "n[1-2]",
        "slurm.nnodes": "2",
        "slurm.ntasks": "16",
        "slurm.partition": "batch",
        "slurm.cluster.name": "c",
    }


def test_torchrun() -> None:
    found = told(
        TORCHELASTIC_RUN_ID="t",
        TORCHELASTIC_RESTART_COUNT="1",
        LOCAL_RANK="2",
        GROUP_RANK="0",
        RANK="2",
        WORLD_SIZE="4",
    )
    assert {k: v for k, v in found.items() if k.startswith("torchrun.")} == {
        "torchrun.run.id": "t",
        "torchrun.restart_count": "1",
        "torchrun.local_rank": "2",
        "torchrun.group_rank": "0",
    }


def test_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "_KUBERNETES_NAMESPACE", tmp_path / "namespace")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-0"}
    assert told(**pod) == {"k8s.pod.name": "trainer-0"}
    (tmp_path / "namespace").write_text("team\n")
    assert told(**pod, POD_NAME="trainer-0.x", POD_UID="u", NODE_NAME="node-3") == {
        "k8s.pod.name": "trainer-0.x",
        "k8s.pod.uid": "u",
        "k8s.node.name": "node-3",
        "k8s.namespace.name": "team",
    }
    assert told(HOSTNAME="here", POD_NAME="x") == {}, "no pod"


# -- a span's resource ----------------------------------------------------------------------------------

MAP = """
map: r
package: {m}
resource: {{my.stage: "'RL'", my.group: env.MY_GROUP}}
spans:
  setup:
    group: setup
    function: '{m}:setup'
    resource:
      rl.model: args.config.policy.model_name
      rl.algorithm: "'grpo'"
      tp:
        - args.config.policy.megatron_cfg[?enabled].tensor_model_parallel_size
        - args.config.policy.dtensor_cfg[?enabled].tensor_parallel_size
"""
POLICY = {
    "model_name": "org/model",
    "megatron_cfg": {"enabled": False, "tensor_model_parallel_size": 8},
    "dtensor_cfg": {"enabled": True, "tensor_parallel_size": 2},
}


@dataclass
class Config:
    policy: Any


class Items:
    """Answers to items only."""

    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]


CONFIGS = {
    "dict": {"policy": POLICY},
    "dataclass": Config(POLICY),
    "objects": SimpleNamespace(
        policy=SimpleNamespace(
            model_name="org/model",
            megatron_cfg=SimpleNamespace(enabled=False),
            dtensor_cfg=SimpleNamespace(enabled=True, tensor_parallel_size=2),
        )
    ),
    "items": Items(policy=POLICY),
}


@pytest.mark.parametrize("kind", [*CONFIGS, "pydantic", "omegaconf"])
def test_the_configuration_is_read_as_the_span_begins(make: Make, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS.get(kind)
    if kind == "pydantic":
        pydantic = pytest.importorskip("pydantic")
        config = pydantic.create_model("Master", policy=(dict, ...))(policy=POLICY)
    elif kind == "omegaconf":
        config = pytest.importorskip("omegaconf").OmegaConf.create({"policy": POLICY, "name": "${policy.model_name}"})
    monkeypatch.setenv("MY_GROUP", "policy")
    module = make("def setup(config): return config")
    with record(text=MAP.format(m=module.__name__)) as spans:
        assert module.setup(config) is config
    assert spans.tree() == "setup", "no attribute of the span's"
    assert spans.resource == {
        "my.stage": "RL",
        "my.group": "policy",
        "rl.model": "org/model",
        "rl.algorithm": "grpo",
        "tp": 2,
    }


@pytest.mark.parametrize("config", [None, {}, {"policy": None}, {"policy": {"megatron_cfg": {"enabled": 1}}}, object()])
def test_what_is_not_there_is_left_out(make: Make, config: Any) -> None:
    module = make("def setup(config): return config")
    with record(text=MAP.format(m=module.__name__)) as spans:
        assert module.setup(config) is config
    assert spans.resource == {"my.stage": "RL", "rl.algorithm": "grpo"}
    assert spans.notices == []


def test_a_group_that_is_off_reads_nothing(make: Make) -> None:
    module = make("def setup(config): return config")
    original = module.setup
    with record(text=MAP.format(m=module.__name__), groups="step") as spans:
        assert module.setup is original
        module.setup({"policy": POLICY})
    assert spans.resource == {"my.stage": "RL"}


def mistakes(body: str) -> list[str]:
    loaded = loader.load_map(f"map: r\npackage: p\n{body}", "r.yaml", GroupTable({}, {}))
    return [str(m) for m in loaded.mistakes]


def test_mistakes() -> None:
    assert mistakes("resource: {rl.model: args.x}\n") == [
        "r.yaml:3:11: a map's resource reads env and constants, not 'args' (for 'rl.model'); the map is left out"
    ]
    text = "groups: {g: {}}\nspans:\n  s: {group: g, function: 'p:f', resource: {rl.model: return.x}}\n"
    assert mistakes(text) == [
        "r.yaml:5:44: a span's resource reads env, args, self, caller and constants, not 'return' (for 'rl.model'); "
        "the span 's' is left out"
    ]
    assert mistakes("resource: {a: 'env.A[?x]'}\n") == []
    assert "can't read '[?]'" in mistakes("resource: {a: 'env.A[?]'}\n")[0]


# -- what is learned late -------------------------------------------------------------------------------


def provider(**attributes: Any) -> tuple[TracerProvider, InMemorySpanExporter]:
    made = TracerProvider(resource=Resource(attributes), shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made, exporter


def of(span: Any) -> dict[str, Any]:
    return dict(span.resource.attributes)


def test_spans_made_later_have_it_and_earlier_ones_get_it_on_their_way_out() -> None:
    spans, exporter = provider(a=1, **{"service.name": "unknown_service:python"})
    tracer = spans.get_tracer("t")
    tracer.start_span("before").end()
    still_open = tracer.start_span("open")
    resource.learn_service_name(spans, "nemo-rl")
    resource.learn({"rl.model": "m"}, spans)
    tracer.start_span("after").end()
    spans.get_tracer("another").start_span("another").end()
    still_open.end()
    before, after, another, was_open = exporter.get_finished_spans()
    whole = {"a": 1, "service.name": "nemo-rl", "rl.model": "m"}
    assert [of(after), of(another)] == [whole, whole]
    assert of(before) == {"a": 1, "service.name": "unknown_service:python"}
    for span in (before, was_open):
        resource.complete(span)
        assert of(span) == whole


def test_what_several_threads_learn_at_once_is_all_there() -> None:
    spans, _ = provider()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(number: int) -> None:
        for value in range(50):
            resource.learn({f"thread.{number}": value}, spans, of_the_run=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    all_of_it = {f"thread.{number}": 49 for number in range(4)}
    assert {k: v for k, v in spans.resource.attributes.items() if k.startswith("thread.")} == all_of_it
    assert json.loads(resource.to_hand_down() or "") == all_of_it


def test_a_span_that_ends_while_something_is_learned_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread, at the worst moments: the first of all is learned, and more while a resource is completed."""
    spans, _ = provider()
    first = spans.resource
    completed: list[dict[str, Any]] = []

    def another_span_ends() -> None:
        completed.append(dict(resource.completed(first).attributes))

    class Earlier(list[Any]):
        def append(self, one: Any) -> None:
            super().append(one)
            another_span_ends()

    class Newest(Resource):
        def merge(self, other: Resource) -> Resource:
            resource.learn({"rl.algorithm": "grpo"}, spans)
            return super().merge(other)

    monkeypatch.setattr(resource, "_newest", None)
    monkeypatch.setattr(resource, "_earlier", Earlier())
    resource.learn({"rl.model": "m"}, spans)
    assert completed == [{"rl.model": "m"}]

    monkeypatch.setattr(resource, "_earlier", list(resource._earlier))
    monkeypatch.setattr(resource, "_newest", Newest(spans.resource.attributes))
    monkeypatch.setattr(resource, "_completions", {})
    another_span_ends()
    another_span_ends()
    assert completed[-1] == {"rl.model": "m", "rl.algorithm": "grpo"}


def test_a_second_training_does_not_rename_the_first_ones_spans() -> None:
    spans, exporter = provider()
    resource.learn({"rl.model": "first"}, spans)
    spans.get_tracer("t").start_span("of the first").end()
    resource.learn({"rl.model": "second", "tp": 2}, spans)
    (span,) = exporter.get_finished_spans()
    resource.complete(span)
    assert of(span) == {"rl.model": "first", "tp": 2}
    assert dict(spans.resource.attributes) == {"rl.model": "second", "tp": 2}


def test_what_the_user_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "rl.model=mine,x=y")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-service")
    spans, _ = provider(**{"rl.model": "mine", "service.name": "my-service"})
    resource.learn_service_name(spans, "nemo-rl")
    resource.learn({"rl.model": "theirs", "nemo.precision": "bfloat16"}, spans)
    assert dict(spans.resource.attributes) == {
        "rl.model": "mine",
        "service.name": "my-service",
        "nemo.precision": "bfloat16",
    }


def test_a_provider_of_another_kind_is_left_alone() -> None:
    resource.learn({"rl.model": "m"}, object())
    assert resource.completed("anything") == "anything"


def test_it_goes_on_to_children_and_over_ray_and_the_environment_stays_as_it_is() -> None:
    spans, _ = provider()
    with spans.get_tracer("t").start_as_current_span("setup"):
        assert ray_carrier.RUN_HEADER not in (ray_carrier.outgoing() or {})
        resource.learn({"ray.worker.id": "w"}, spans)
        assert resource.HANDED_DOWN not in processes.carrier(), "of this process, not of the run"
        resource.learn({"rl.model": "m"}, spans, of_the_run=True)
        child = processes.carrier()
        call = ray_carrier.outgoing() or {}
        seen = subprocess.run(
            [sys.executable, "-c", f"import os; print(os.environ.get({resource.HANDED_DOWN!r}))"],
            capture_output=True,
            text=True,
        )
    assert seen.stdout == "None\n"
    assert json.loads(child[resource.HANDED_DOWN]) == json.loads(call[ray_carrier.RUN_HEADER]) == {"rl.model": "m"}
    assert told(AUTOINSTR_RUN_ATTRIBUTES=child[resource.HANDED_DOWN]) == {"rl.model": "m"}
    assert told(AUTOINSTR_RUN_ATTRIBUTES="no JSON") == told(AUTOINSTR_RUN_ATTRIBUTES="[1]") == {}


def test_what_is_heard_is_learned_and_told_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spans, _ = provider()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: spans)
    context = ray_carrier.incoming(
        {"traceparent": f"00-{1:032x}-{2:016x}-01", ray_carrier.RUN_HEADER: '{"rl.model": "m"}'}
    )
    assert context is not None
    assert dict(spans.resource.attributes) == {"rl.model": "m"}
    assert resource.to_hand_down() == '{"rl.model": "m"}'
    resource.hear("no JSON")
    assert dict(spans.resource.attributes) == {"rl.model": "m"}

"""vLLM by its own names: spans of its calls, and its own request spans below them. On a stand-in: see fake_vllm/."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from otlp_receiver import Receiver
from runs import journal_spans, our_lines, run

from autoinstr.check.facts import from_json
from autoinstr.cli import main
from autoinstr.maps.active import read_active
from autoinstr.testing import record

HERE = Path(__file__).resolve().parent
FAKE = HERE / "fake_vllm"
SNAPSHOT = HERE / "snapshots" / "vllm-v0.33.0.json"


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FAKE)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


# -- layer 1: the calls ----------------------------------------------------------------------------------


def test_generate_and_chat() -> None:
    with record(builtin="vllm", groups="per_step") as spans:
        from vllm import LLM, SamplingParams

        llm = LLM("toy", seed=1)
        llm.generate(["ab", "abc"], SamplingParams(n=2, max_tokens=8))
        llm.chat([{"role": "user", "content": "hello"}], SamplingParams(max_tokens=3, temperature=0.5))
    assert (
        spans.tree()
        == """
    vllm.generate [productive] gen_ai.operation.name='text_completion' gen_ai.provider.name='vllm' gen_ai.request.choice.count=2 gen_ai.request.max_tokens=8 gen_ai.request.model='toy' gen_ai.request.temperature=1.0 gen_ai.request.top_p=1.0 gen_ai.usage.input_tokens=5 gen_ai.usage.output_tokens=32 vllm.requests=2
    vllm.chat [productive] gen_ai.operation.name='chat' gen_ai.provider.name='vllm' gen_ai.request.choice.count=1 gen_ai.request.max_tokens=3 gen_ai.request.model='toy' gen_ai.request.temperature=0.5 gen_ai.request.top_p=1.0 gen_ai.usage.input_tokens=5 gen_ai.usage.output_tokens=3 vllm.requests=1
    """  # noqa: E501
    )
    assert spans.notices == []


async def stream(engine: object, prompt: str) -> list[int]:
    from vllm import SamplingParams

    found: list[int] = []
    async for output in engine.generate(prompt, SamplingParams(max_tokens=4), f"request-{prompt}"):  # type: ignore[attr-defined]
        found = output.outputs[0].token_ids
    return found


def test_generate_async_is_a_span_per_request_in_a_group_of_its_own() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    async def both() -> list[list[int]]:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs("toy"))
        return list(await asyncio.gather(stream(engine, "a"), stream(engine, "b")))

    plain = asyncio.run(both())
    with record(builtin="vllm", groups="per_step") as spans:
        assert asyncio.run(both()) == plain
        assert spans.spans == []
    with record(builtin="vllm", groups="per_prompt") as spans:
        assert asyncio.run(both()) == plain
    assert (
        spans.tree(attributes=False)
        == """
    vllm.generate_async
    vllm.generate_async
    """
    )


# -- layer 2: vLLM's own spans ---------------------------------------------------------------------------

SCRIPT = """
import asyncio, json, os, sys
import vllm, train
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

async def stream(engine, prompt):
    async for output in engine.generate(prompt, vllm.SamplingParams(max_tokens=4), f"async-{prompt}"):
        last = output
    return last.outputs[0].token_ids

async def both(engine):
    return await asyncio.gather(stream(engine, "a"), stream(engine, "b"))

def step(llm, engine):
    sync = [o.outputs[0].token_ids for o in llm.generate(["ab", "abc"])]
    return sync, asyncio.run(both(engine))

MINE
llm, engine = vllm.LLM("toy", **mine), AsyncLLM.from_engine_args(AsyncEngineArgs("toy", **mine))
print(json.dumps(train.step(step, llm, engine)))
print("endpoints", llm.llm_engine.observability_config.otlp_traces_endpoint, "warned", engine.warned)
"""
TRAIN = "def step(do, *args):\n    return do(*args)\n"
MAP = "map: train\npackage: train\nspans:\n  train.step: {group: step, function: train:step}\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "train.yaml").write_text(MAP)
    (tmp_path / "script.py").write_text(SCRIPT.replace("MINE", "mine = json.loads(os.environ.get('MINE', '{}'))"))
    return tmp_path


def traced(folder: Path, **env: str) -> tuple[list[str], list[str]]:
    """What the script printed, and what autoinstr said."""
    settings = {
        "AUTOINSTR_SPAN_MAPS": str(folder / "train.yaml"),
        "AUTOINSTR_SPAN_GROUPS": "per_step,per_prompt",
        "PYTHONPATH": str(FAKE),
    }
    done = run("script.py", cwd=folder, **{**settings, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), our_lines(done)


def plain(folder: Path) -> list[str]:
    return run("script.py", cwd=folder, traced=False, PYTHONPATH=str(FAKE)).stdout.splitlines()


TREE = Counter(
    {
        "train.step": 1,
        "train.step > vllm.generate": 1,
        "train.step > vllm.generate > llm_request": 2,
        "train.step > vllm.generate_async": 2,
        "train.step > vllm.generate_async > llm_request": 2,
    }
)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    "switch", ["AUTOINSTR_VLLM_NATIVE_TRACING", "NEMO_RL_OTEL_VLLM_NATIVE_TRACING", "NEMO_LENS_VLLM_NATIVE_TRACING"]
)
def test_vllms_request_spans_lie_in_the_step(script: Path, protocol: str, switch: str) -> None:
    if protocol == "grpc" and not switch.startswith("AUTOINSTR"):
        pytest.skip("one protocol is enough for the other names of the switch")
    with Receiver() as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, switch: "1"}
        printed, said = traced(script, **variables)
        spans = {span.span_id: span for span in receiver.spans()}

        def path(span: object) -> str:
            above = spans.get(span.parent_span_id)  # type: ignore[attr-defined]
            return (f"{path(above)} > " if above is not None else "") + span.name  # type: ignore[attr-defined]

        assert Counter(map(path, spans.values())) == TREE
        assert len(receiver.spans()) == len(spans), "vLLM's own exporter to the same endpoint sends none twice"
    told = endpoint if protocol == "grpc" else f"{endpoint}/v1/traces"
    assert printed == [plain(script)[0], f"endpoints {told} warned False"], "the tokens are the same"
    assert said == ["autoinstr: vllm.tracing sets up OpenTelemetry too: its spans and ours go together where ours go"]


def test_off_as_long_as_nobody_asks(script: Path) -> None:
    with Receiver() as receiver:
        printed, said = traced(script, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint)
        names = Counter(span.name for span in receiver.spans())
    assert (printed, said) == (plain(script), [])
    assert "llm_request" not in names


def test_without_an_endpoint_it_stays_off_and_this_is_said(script: Path) -> None:
    printed, said = traced(script, AUTOINSTR_VLLM_NATIVE_TRACING="1")
    assert printed == plain(script)
    assert said == [
        f"autoinstr: vllm.engine.arg_utils:{cls}.__init__: no OTLP endpoint of traces is set, so "
        "otlp_traces_endpoint is left as it is"
        for cls in ("EngineArgs", "AsyncEngineArgs")
    ]
    assert Counter(span["name"] for span in journal_spans(script)) == {
        "train.step": 1,
        "vllm.generate": 1,
        "vllm.generate_async": 2,
    }


def test_an_endpoint_of_the_users_own_stays(script: Path) -> None:
    with Receiver() as receiver:
        mine = receiver.grpc_endpoint
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": mine, "AUTOINSTR_VLLM_NATIVE_TRACING": "1"}
        printed, _ = traced(script, MINE=json.dumps({"otlp_traces_endpoint": f"{mine}/"}), **variables)
    assert printed[1] == f"endpoints {mine}/ warned False"


def test_an_old_vllm_gets_a_line_and_no_harm(script: Path, tmp_path: Path) -> None:
    old = tmp_path / "old" / "vllm"
    for source in FAKE.rglob("*.py"):
        target = old / source.relative_to(FAKE / "vllm")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        if source.name == "arg_utils.py":
            text = text.replace(
                "    seed: int = 0\n    otlp_traces_endpoint: str | None = None\n", "    seed: int = 0\n"
            )
        target.write_text(text.replace("engine_args.otlp_traces_endpoint", "None"))
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"}
    printed, said = traced(
        script,
        AUTOINSTR_VLLM_NATIVE_TRACING="1",
        PYTHONPATH=str(old.parent),
        AUTOINSTR_METRICS_ENABLED="0",
        **variables,
    )
    assert printed == plain(script)
    assert [line.partition("vllm.yaml:")[2].partition(" ")[2] for line in said] == [
        f"vllm.engine.arg_utils:{cls}.__init__: it takes no argument 'otlp_traces_endpoint'; "
        "otlp_traces_endpoint: left as the program has it"
        for cls in ("EngineArgs", "AsyncEngineArgs")
    ]


# -- the names are vLLM's --------------------------------------------------------------------------------


def test_the_map_fits_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--package", "vllm", "--snapshot", str(SNAPSHOT)]) == 0, capsys.readouterr().out


def test_the_arguments_that_the_map_gives_are_vllms() -> None:
    facts = from_json(SNAPSHOT.read_text())
    from autoinstr.maps.catalog import Catalog

    catalog = Catalog(lambda mistake: pytest.fail(str(mistake)))
    catalog.add_builtin("vllm")
    (vllm,) = catalog.maps_for("vllm")
    for entry in vllm[1].arguments:
        owner, _, name = entry.target.qualname.rpartition(".")
        if name == "__init__":  # of a dataclass, whose fields are the arguments; the second has its base's
            assert "otlp_traces_endpoint" in facts.keys
            assert facts.find(entry.target.module, owner) is not None
        else:
            parameters = facts.parameters(entry.target.module, entry.target.qualname)
            assert parameters is not None
            assert {argument for argument, _ in entry.set} <= set(parameters)


def test_the_stand_in_has_vllms_parameters() -> None:
    import inspect
    from importlib import import_module

    facts = from_json(SNAPSHOT.read_text())
    active = read_active((), "vllm", "all")
    targets = [target for span in active.spans if span.package == "vllm" for target in span.entry.targets()]
    assert {target.qualname for target in targets} == {"LLM.generate", "LLM.chat", "AsyncLLM.generate"}
    methods = [(t.module, t.qualname) for t in targets]
    methods += [("vllm.v1.engine.llm_engine", "LLMEngine.add_request")]
    methods += [("vllm.v1.engine.async_llm", "AsyncLLM.add_request")]
    for module, qualname in methods:
        owner, _, name = qualname.partition(".")
        here = inspect.signature(getattr(getattr(import_module(module), owner), name)).parameters
        assert sorted(here) == sorted(p for p in facts.parameters(module, qualname) or () if p != "*"), qualname

"""Code inside a `torch.compile` region is left alone: no graph break, the same result, and no span."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any

import pytest
from toy_packages import Write, spans_map

from autoinstr.testing import record

torch = pytest.importorskip("torch")

SOURCE = """
import contextlib, torch

@contextlib.contextmanager
def timer(label):
    yield
class Region:
    def __enter__(self): return self
    def __exit__(self, *exc): return None
def begin(): pass
def end(): pass
def layer(x): return torch.sin(x) * 2

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def helper(self, x): return self.linear(x).relu()
    def forward(self, x):
        begin()
        y = self.helper(x) + layer(x)
        end()
        return y

class Timed(Model):
    def forward(self, x):
        with timer("here"):
            y = self.helper(x)
        with Region():
            return layer(y)

def step(model, x): return model(x).mean()
"""

_names = itertools.count()


def load(write: Write, more: str = "") -> tuple[Any, str]:
    """The module, and a map of it. A new name for each: dynamo remembers modules by name."""
    name = f"toy{next(_names)}"
    write(**{name: SOURCE + more})
    return importlib.import_module(name), MAP.replace("toy.work", name).replace("package: toy", f"package: {name}")


MAP = spans_map(
    "toy.layer: {function: toy.work:layer}",
    "toy.helper: {function: toy.work:Model.helper, attributes: {kind: args.x | type}}",
    "toy.forward: {function: toy.work:Model.forward, subclasses: true}",
    "toy.step: {function: toy.work:step}",
    "toy.pair: {between: {begin: toy.work:begin, end: toy.work:end}}",
    "toy.timer: {block: toy.work:timer(label=here)}",
    "toy.region: {block: toy.work:Region}",
)


def graph_breaks() -> int:
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def outcome(function: Any, arguments: Any, backend: str, fullgraph: bool) -> tuple[Any, int]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    compiled(*arguments)
    return compiled(*arguments), graph_breaks()


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("what", ["layer", "model", "step", "timed"])
def test_a_compiled_region_is_left_alone(what: str, backend: str, fullgraph: bool, write: Write) -> None:
    import torch._dynamo.utils

    work, maps = load(write)
    torch.manual_seed(1)
    model, x = work.Model(), torch.randn(2, 4)
    timed = work.Timed()
    # a module-level function is looked up when it is used, as code that compiles it does
    cases = {
        "layer": (lambda: work.layer, (x,)),
        "model": (lambda: model, (x,)),
        "step": (lambda: work.step, (model, x)),
        "timed": (lambda: timed, (x,)),
    }
    get, arguments = cases[what]
    expected, breaks = outcome(get(), arguments, backend, fullgraph)
    with record(text=maps) as spans:
        result, breaks_with_us = outcome(get(), arguments, backend, fullgraph)
        assert spans.spans == []
        eager = get()(*arguments)
    assert torch.equal(result, expected)
    assert (breaks_with_us, breaks) == (0, 0)
    assert torch.allclose(eager, expected, atol=1e-5)
    assert spans.spans, "outside compiled regions there are spans"
    assert spans.notices == []


def test_what_was_compiled_before_it_is_patched_has_its_span(write: Write) -> None:
    work, maps = load(write, "layer = torch.compile(layer, backend='eager', fullgraph=True)\n")
    with record(text=maps) as spans:
        work.layer(torch.ones(2))
    assert spans.tree() == "toy.layer"


def test_gradients_and_the_random_stream_are_the_same(write: Write) -> None:
    work, maps = load(write)

    def train() -> tuple[Any, Any]:
        torch._dynamo.reset()
        torch.manual_seed(7)
        model = work.Model()
        step = torch.compile(lambda x: work.step(model, x), backend="inductor", fullgraph=True)
        for _ in range(2):
            step(torch.randn(3, 4)).backward()
        return model.linear.weight.grad, torch.get_rng_state()

    plain = train()
    with record(text=maps):
        traced = train()
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))


SCRIPTED = """
def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2.0
def scripted(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + 1
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scripted(self.linear(x))
"""


def test_torch_script_compiles_what_is_beneath(write: Write) -> None:
    work, _ = load(write, SCRIPTED)
    maps = spans_map(
        *(
            f"toy.{n}: {{function: {work.__name__}:{target}}}"
            for n, target in enumerate(("helper", "scripted", "Net.forward"))
        ),
    ).replace("package: toy", f"package: {work.__name__}")
    torch.manual_seed(0)
    net, x = work.Net(), torch.ones(1, 2)
    plain = net(x)
    with record(text=maps) as spans:
        assert torch.equal(net(x), plain)
        assert spans.tree() == "toy.2\n  toy.1\n    toy.0"
        for found in (torch.jit.script(work.Net()), torch.jit.script(work.scripted), torch.jit.script(work.helper)):
            assert "relu" in str(found.inlined_graph)
        script = torch.jit.script(net)
        assert torch.equal(script(x), plain)
    assert spans.notices == []
    assert torch._jit_internal.get_closure.__module__ == "torch._jit_internal"
    assert not hasattr(torch._jit_internal.get_closure, "__wrapped__"), "as it was"


def test_torch_is_never_imported_by_us() -> None:
    import subprocess

    script = (
        "import sys; from autoinstr.testing import record\n"
        f"with record(text={MAP!r}): assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)

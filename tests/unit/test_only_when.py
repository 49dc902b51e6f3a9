"""`only_when`: calls chosen by a value, at every join point; and what is known of a call when it is over."""

from __future__ import annotations

import asyncio
import concurrent.futures
from types import SimpleNamespace

import pytest
from made_modules import Make, span_map

from autoinstr.testing import record

SOURCE = '''
import asyncio
from contextlib import contextmanager

class Worker:
    """Trains by one of two algorithms; which, only its configuration knows."""
    def __init__(self, config):
        self.config = config

    def generate(self, samples, per_prompt):
        return samples

    async def generate_async(self, samples, per_prompt):
        return samples

    @contextmanager
    def time(self, label):
        yield

    def start(self, label):
        pass

    def stop(self, label):
        pass

    def batches(self):
        yield from range(2)

def fetch(raises=None):
    if raises is not None:
        raise raises
    return b"12345"

async def fetch_async(raises=None):
    return fetch(raises)

def stream(raises=None):
    yield 1
    fetch(raises)

async def stream_async(raises=None):
    yield 1
    fetch(raises)
'''


def ppo() -> SimpleNamespace:
    return SimpleNamespace(ppo=SimpleNamespace(epochs=4), mode="train")


def grpo() -> SimpleNamespace:
    return SimpleNamespace(grpo=SimpleNamespace(), mode="eval")


def test_two_spans_on_one_method_by_what_its_object_knows(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.ppo.generation:
          group: rollout
          function: ["{m}:Worker.generate", "{m}:Worker.generate_async"]
          only_when: {self.config.ppo | type: "*"}
          attributes:
            my.prompts: args.samples | div(args.per_prompt)
        my.grpo.generation:
          group: rollout
          function: ["{m}:Worker.generate", "{m}:Worker.generate_async"]
          only_when: {self.config.ppo: null}
        """,
    )
    with record(text=text) as spans:
        module.Worker(ppo()).generate(12, per_prompt=4)
        module.Worker(grpo()).generate(12, 4)
        asyncio.run(module.Worker(ppo()).generate_async(10, 4))
    assert (
        spans.tree()
        == """
        my.ppo.generation my.prompts=3
        my.grpo.generation
        my.ppo.generation my.prompts=2.5
        """
    )


def test_a_block_a_pair_and_a_loop_by_value(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.train.step:
          {group: step, block: "{m}:Worker.time(label=step)", only_when: {self.config.mode: train}}
        my.eval.step:
          {group: step, block: "{m}:Worker.time(label=step)", only_when: {caller.mode: [eval, test]}}
        my.wait:
          group: efficiency
          between: {begin: "{m}:Worker.start", end: "{m}:Worker.stop"}
          only_when: {self.config.mode: eval}
        my.batch:
          {group: data_processing, each: "{m}:Worker.batches", only_when: {self.config.mode: "tr*"}}
        """,
    )
    with record(text=text) as spans:
        for config in (ppo(), grpo()):
            worker = module.Worker(config)
            mode = worker.config.mode
            with worker.time("step"):
                assert mode
            worker.start("x")
            worker.stop("x")
            for _ in worker.batches():
                pass
    assert (
        spans.tree()
        == """
        my.train.step
        my.batch [overhead]
        my.batch [overhead]
        my.eval.step
        my.wait [idle]
        """
    )


def test_a_condition_that_cannot_be_read_is_no_match_and_no_error(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(module, 'my.it: {group: step, function: "{m}:Worker.generate", only_when: {self.config.x.y: 1}}')

    class Hostile:
        def __getattr__(self, name: str) -> object:
            raise SystemExit(3)

    with record(text=text) as spans:
        assert module.Worker(Hostile()).generate(1, 1) == 1
        assert module.Worker(None).generate(1, 1) == 1
    assert spans.tree() == ""


OUTCOMES = """
my.fetch:
  group: data_plane
  function: ["{m}:fetch", "{m}:fetch_async", "{m}:stream", "{m}:stream_async"]
  attributes:
    my.status: outcome
    my.bytes: return | nbytes
"""


class Slow(TimeoutError):
    pass


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ValueError(), "my.status='error' !ValueError"),
        (TimeoutError(), "my.status='timeout' !TimeoutError"),
        (Slow(), "my.status='timeout' !Slow"),
        (concurrent.futures.TimeoutError(), "my.status='timeout' !TimeoutError"),
        (asyncio.CancelledError(), "my.status='cancelled' !CancelledError"),
        (KeyboardInterrupt(), "my.status='cancelled' !KeyboardInterrupt"),
    ],
    ids=lambda value: type(value).__qualname__ if isinstance(value, BaseException) else "",
)
def test_the_outcome_of_a_call(make: Make, raised: BaseException, status: str) -> None:
    module = make(SOURCE)
    with record(text=span_map(module, OUTCOMES)) as spans:
        assert module.fetch() == b"12345"
        with pytest.raises(type(raised)):
            module.fetch(raised)
    assert spans.tree() == f"my.fetch [overhead] my.bytes=5 my.status='ok'\nmy.fetch [overhead] {status}"


def test_the_outcome_of_what_runs_in_steps(make: Make) -> None:
    module = make(SOURCE)

    async def drain(raises: Exception | None = None) -> None:
        async for _ in module.stream_async(raises):
            pass

    with record(text=span_map(module, OUTCOMES.replace('["{m}:fetch", ', "["))) as spans:
        asyncio.run(module.fetch_async())
        list(module.stream())
        asyncio.run(drain())
        for failing in (
            lambda: asyncio.run(module.fetch_async(TimeoutError())),
            lambda: list(module.stream(TimeoutError())),
            lambda: asyncio.run(drain(TimeoutError())),
        ):
            with pytest.raises(TimeoutError):
                failing()
    assert (
        spans.tree()
        == """
        my.fetch [overhead] my.bytes=5 my.status='ok'
        my.fetch [overhead] my.status='ok'
        my.fetch [overhead] my.status='ok'
        my.fetch [overhead] my.status='timeout' !TimeoutError
        my.fetch [overhead] my.status='timeout' !TimeoutError
        my.fetch [overhead] my.status='timeout' !TimeoutError
        """
    )

"""Code that is instrumented itself, under a map that names the same blocks: each block has one span, and it is theirs.

The toy has a timer, whose blocks the map names, and telemetry of its own beside it, which is off while `tracer` is
None. Theirs carry the attribute `by`.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import Tracer
from opentelemetry.trace import SpanKind

from autoinstr.testing import Recording, record

Make = Callable[..., Any]

SOURCE = """
import contextlib
import functools

from opentelemetry import context, trace

tracer = None

@contextlib.contextmanager
def timer(label):
    yield

@contextlib.contextmanager
def managed(name, **attributes):
    if tracer is None:
        yield None
        return
    span = tracer.start_span(name)
    span.set_attributes({"by": "theirs", **attributes})
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield span
    except Exception as error:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
        raise
    finally:
        context.detach(token)
        span.end()

def traced(name):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with managed(name):
                return function(*args, **kwargs)
        return wrapper
    return decorate

@traced("toy.job")
def train(work=lambda: None):
    for iteration in (1, 2):
        with timer("step"), managed("toy.step", iteration=iteration):
            with timer("reward"), managed("toy.old_reward"):
                pass
            with timer("advantage"):
                work()

def evaluate():
    with managed("toy.evaluate"), timer("evaluate"):
        generate()

def generate(): pass
async def sample(): generate()
def batch():
    with managed("toy.old_batch"):
        asyncio_run(sample())
"""
MAP = """
map: toy
package: {m}
spans:
  toy.job: {{group: job, function: '{m}:train'}}
  toy.step: {{group: step, block: '{m}:timer(label=step)', attributes: {{node: "'n1'"}}}}
  toy.reward: {{group: reward, block: '{m}:timer(label=reward)', also: toy.old_reward}}
  toy.advantage: {{group: advantage, block: '{m}:timer(label=advantage)'}}
  toy.evaluate: {{group: evaluate, block: '{m}:timer(label=evaluate)', scope: {{bucket: overhead}},
                  attributes: {{node: "'n1'", by: "'ours'"}}}}
  toy.poll: {{group: efficiency, block: '{m}:timer(label=poll)', coalesce: {{match: caller.step, count: polls}}}}
  toy.generate: {{group: generation, function: '{m}:generate'}}
  toy.batch: {{group: rollout, function: '{m}:sample', also: [toy.old_batch, toy.older_batch]}}
"""


def beside(make: Make, groups: str = "all") -> tuple[Any, Any]:
    module = make(SOURCE)
    module.asyncio_run = asyncio.run
    return module, record(text=MAP.format(m=module.__name__), groups=groups)


def turn_on(module: Any, spans: Recording) -> None:
    module.tracer = spans.provider.get_tracer("in_tree", "1.0")


def scopes(spans: Recording) -> dict[str, str]:
    return {s.name: s.instrumentation_scope.name for s in spans.spans if s.instrumentation_scope}


def test_where_their_telemetry_is_on_each_block_has_one_span_and_ours_fill_the_gaps(make: Make) -> None:
    module, recording = beside(make)
    with recording as spans:
        turn_on(module, spans)
        module.train()
    assert spans.tree() == (
        "toy.job by='theirs'\n"
        "  toy.step by='theirs' iteration=1 node='n1'\n"
        "    toy.old_reward [productive] by='theirs'\n"
        "    toy.advantage [overhead]\n"
        "  toy.step by='theirs' iteration=2 node='n1'\n"
        "    toy.old_reward [productive] by='theirs'\n"
        "    toy.advantage [overhead]"
    )
    assert len({s.context.trace_id for s in spans.spans}) == 1
    # to a backend it is theirs, scope and all; the group is there for our own reports
    assert scopes(spans) == {
        "toy.job": "in_tree",
        "toy.step": "in_tree",
        "toy.old_reward": "in_tree",
        "toy.advantage": "autoinstr",
    }
    assert {n.group for n in spans.tree().roots[0].children} == {"step"}


def test_where_it_is_off_ours_do_it_all(make: Make) -> None:
    module, recording = beside(make)
    with recording as spans:
        module.train()
    assert spans.tree() == (
        "toy.job\n"
        "  toy.step node='n1'\n"
        "    toy.reward [productive]\n"
        "    toy.advantage [overhead]\n"
        "  toy.step node='n1'\n"
        "    toy.reward [productive]\n"
        "    toy.advantage [overhead]"
    )


def test_it_is_decided_span_by_span_a_group_that_is_off_on_one_side_is_the_others_alone(make: Make) -> None:
    module, recording = beside(make, groups="job,advantage")
    with recording as spans:
        turn_on(module, spans)
        module.train()
    step = "  toy.step by='theirs' iteration={}\n    toy.old_reward by='theirs'\n    toy.advantage [overhead]"
    assert spans.tree() == "toy.job by='theirs'\n" + step.format(1) + "\n" + step.format(2)


def test_theirs_around_ours_is_lent_what_it_lacks_and_our_scope_still_holds_inside(make: Make) -> None:
    module, recording = beside(make)
    with recording as spans:
        turn_on(module, spans)
        module.evaluate()
        module.batch()
    assert spans.tree() == (
        "toy.evaluate by='theirs' node='n1'\n"
        "  toy.generate [overhead]\n"
        "toy.old_batch by='theirs'\n"
        "  toy.generate [productive]"
    )


def test_blocks_that_the_map_makes_one_span_of_are_one_although_the_code_opens_one_each(make: Make) -> None:
    module, recording = beside(make)

    def wait(step: int = 5) -> None:
        for poll in (1, 2, 3):
            with module.timer("poll"), module.managed("toy.poll", poll=poll):
                assert step == 5

    with recording as spans:
        turn_on(module, spans)
        module.train(wait)
    waits = spans.named("toy.poll")
    assert [dict(s.attributes or {}) for s in waits] == [
        {"rl.bucket": "idle", "by": "theirs", "poll": 3, "polls": 3},
        {"rl.bucket": "idle", "by": "theirs", "poll": 3, "polls": 3},
    ]
    assert {s.instrumentation_scope.name for s in waits if s.instrumentation_scope} == {"in_tree"}


def test_an_exception_is_on_the_one_span_once_and_reaches_the_caller(make: Make) -> None:
    def fail() -> None:
        raise ValueError("no")

    module, recording = beside(make)
    with recording as spans:
        turn_on(module, spans)
        with pytest.raises(ValueError, match="no"):
            module.train(fail)
    assert spans.tree() == (
        "toy.job by='theirs' !ValueError\n"
        "  toy.step by='theirs' iteration=1 node='n1' !ValueError\n"
        "    toy.old_reward [productive] by='theirs'\n"
        "    toy.advantage [overhead] !ValueError"
    )
    assert {s.name: len(s.events) for s in spans.spans if s.events} == {"toy.advantage": 1, "toy.step": 1, "toy.job": 1}


def test_a_span_of_the_same_name_that_is_not_directly_inside_is_another_one(make: Make) -> None:
    module, recording = beside(make)
    with recording as spans:
        turn_on(module, spans)

        def nested() -> None:
            with module.managed("other"), module.managed("toy.advantage"):
                pass

        module.train(nested)
    assert str(spans.tree()).splitlines()[3:6] == [
        "    toy.advantage [overhead]",
        "      other by='theirs'",
        "        toy.advantage by='theirs'",
    ]


def test_a_span_that_is_handed_over_answers_like_any_other(make: Make) -> None:
    module, recording = beside(make)
    with recording as spans:
        turn_on(module, spans)

        def work() -> None:
            with module.managed("toy.advantage") as span:
                assert span.is_recording()
                assert span.name == "toy.advantage"
                span.add_event("half way")
                span.end()  # it does not end for us
                span.set_attribute("after", 1)

        module.train(work)
    ended = spans.named("toy.advantage")
    assert [e.name for e in ended[0].events] == ["half way"]
    assert ended[0].attributes == {"rl.bucket": "overhead", "by": "theirs", "after": 1}


def test_the_sdk_is_as_it_was_when_the_patches_are_undone(make: Make) -> None:
    before = Tracer.start_span
    module, recording = beside(make)
    with recording as spans:
        assert Tracer.start_span is not before
        module.train()
    assert Tracer.start_span is before
    assert len(spans.spans) == 7


def test_spans_that_follow_each_other_are_not_one_the_first_is_ours(make: Make) -> None:
    module, recording = beside(make, groups="advantage")
    with recording as spans:
        turn_on(module, spans)

        def work() -> None:
            for part in (1, 2, 3):
                with module.managed("toy.advantage", part=part):
                    pass

        with module.timer("advantage"):
            work()
    assert spans.tree() == (
        "toy.advantage [overhead] by='theirs' part=1\n"
        "  toy.advantage by='theirs' part=2\n"
        "  toy.advantage by='theirs' part=3"
    )


def test_a_function_that_calls_itself_has_a_span_of_its_own_for_each_call(make: Make) -> None:
    module, recording = beside(make, groups="advantage")

    def deeper(depth: int) -> None:
        with module.managed("toy.advantage", depth=depth):
            if depth < 3:
                deeper(depth + 1)

    with recording as spans:
        turn_on(module, spans)
        with module.timer("advantage"):
            deeper(1)
    assert spans.tree() == (
        "toy.advantage [overhead] by='theirs' depth=1\n"
        "  toy.advantage by='theirs' depth=2\n"
        "    toy.advantage by='theirs' depth=3"
    )


def test_threads_and_tasks_inside_one_of_ours_keep_their_own(make: Make) -> None:
    module, recording = beside(make, groups="advantage")

    def work(number: int) -> None:
        with module.managed("toy.advantage", number=number):
            pass

    async def task(number: int) -> None:
        work(number)

    async def tasks() -> None:
        await asyncio.gather(*map(task, (3, 4)))

    with recording as spans:
        turn_on(module, spans)
        with module.timer("advantage"):
            for number in (1, 2):
                thread = threading.Thread(target=contextvars.copy_context().run, args=(work, number))
                thread.start()
                thread.join()
            asyncio.run(tasks())
    assert spans.tree() == (
        "toy.advantage [overhead]\n"
        "  toy.advantage by='theirs' number=1\n"
        "  toy.advantage by='theirs' number=2\n"
        "  toy.advantage by='theirs' number=3\n"
        "  toy.advantage by='theirs' number=4"
    )


def test_a_span_of_another_kind_or_with_a_start_of_its_own_is_another(make: Make) -> None:
    module, recording = beside(make, groups="advantage")
    with recording as spans:
        turn_on(module, spans)
        with module.timer("advantage"):
            module.tracer.start_span("toy.advantage", None, SpanKind.CLIENT).end()
            module.tracer.start_span("toy.advantage", start_time=1_000).end(5_000)
    assert [(s.kind, s.start_time, s.end_time) for s in spans.spans[1:2]] == [(SpanKind.INTERNAL, 1_000, 5_000)]
    assert spans.tree() == "toy.advantage [overhead]\n  toy.advantage\n  toy.advantage"


def test_a_span_of_theirs_that_outlives_ours_ends_with_theirs_and_one_that_gives_its_end_has_that(make: Make) -> None:
    module, recording = beside(make, groups="advantage")
    with recording as spans:
        turn_on(module, spans)
        with module.timer("advantage"):
            longer = module.tracer.start_span("toy.advantage")
        assert spans.spans == []
        longer.set_attribute("late", True)
        longer.end()
        assert not longer.is_recording()
        longer.end()
        with module.timer("advantage"):
            given = module.tracer.start_span("toy.advantage")
            given.end(given.start_time + 1_000)
    assert spans.tree() == "toy.advantage [overhead] late=True\ntoy.advantage [overhead]"
    first, second = spans.spans
    assert second.end_time == (second.start_time or 0) + 1_000
    assert (first.end_time or 0) > (first.start_time or 0)


DRIVEN = """
import asyncio

tracer = None

def items():
    yield 1
    with tracer.start_as_current_span("toy.items"): yield 2

async def wait():
    await asyncio.sleep(0)
    with tracer.start_as_current_span("toy.wait"): await asyncio.sleep(0)

async def arrive():
    yield 1
    with tracer.start_as_current_span("toy.arrive"): yield 2

async def main():
    await asyncio.gather(wait(), wait())
    return [item async for item in arrive()]
"""


def test_a_span_in_the_body_of_a_coroutine_or_generator_is_the_one_of_the_map(make: Make) -> None:
    module = make(DRIVEN)
    lines = "".join(
        f"  toy.{name}: {{group: step, function: '{module.__name__}:{name}'}}\n" for name in ("items", "wait", "arrive")
    )
    with record(text=f"map: toy\npackage: {module.__name__}\nspans:\n{lines}", groups="all") as spans:
        turn_on(module, spans)
        assert list(module.items()) == [1, 2]
        assert asyncio.run(module.main()) == [1, 2]
    assert spans.tree() == "toy.items\ntoy.wait\ntoy.wait\ntoy.arrive"
    assert set(scopes(spans).values()) == {"in_tree"}

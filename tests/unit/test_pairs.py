"""`between` spans: one function begins them, another ends them, in any order, or never."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from made_modules import Make, span_map
from opentelemetry import trace

from autoinstr.spans import opening
from autoinstr.testing import record

SOURCE = """
import asyncio

class Timer:
    def start(self, label): return f"start {label}"
    def stop(self, label):
        if label == "broken":
            raise ValueError("broken")
        return f"stop {label}"

def begin(step=0): return step
def end(step=0): return step
async def abegin(): await asyncio.sleep(0)
async def aend(): await asyncio.sleep(0)

def job(do): return do()
"""
TIMER = "it: {group: step, between: {begin: '{m}:Timer.start', end: '{m}:Timer.stop', match: args.label}}"
LABELS = """
a: {group: step, between: {begin: '{m}:Timer.start(label=a)', end: '{m}:Timer.stop(label=a)'}}
b: {group: step, between: {begin: '{m}:Timer.start(label=b)', end: '{m}:Timer.stop(label=b)'}}
"""
STEP = "step: {group: step, between: {begin: '{m}:begin', end: '{m}:end'}, attributes: {n: args.step}}"
JOB = "job: {group: job, function: '{m}:job'}"


@pytest.fixture
def module(make: Make) -> Any:
    return make(SOURCE)


def _recording(module: Any, *spans: str) -> Any:
    return record(text=span_map(module, "\n".join(s.strip("\n") for s in spans)))


def _nothing_is_current() -> bool:
    return not trace.get_current_span().get_span_context().is_valid


def test_start_and_stop_of_one_object_and_label(module: Any) -> None:
    timer = module.Timer()
    with _recording(module, LABELS) as spans:
        assert timer.start("a") == "start a"
        timer.start("b")
        timer.start("c")
        assert timer.stop("b") == "stop b"
        timer.stop("c")
        timer.stop("a")
        assert _nothing_is_current()
    assert spans.tree() == "a\n  b"


def test_two_objects_do_not_end_each_other(module: Any) -> None:
    one, two = module.Timer(), module.Timer()
    with _recording(module, LABELS) as spans:
        one.start("a")
        two.stop("a")
        two.start("a")
        one.stop("a")
        assert spans.tree() == "a"
        two.stop("a")
        assert _nothing_is_current()
    assert spans.tree() == "a\n  a"


def test_begin_and_end_of_two_functions(module: Any) -> None:
    with _recording(module, STEP) as spans:
        for n in range(3):
            module.begin(n)
            assert module.end() == 0
    assert spans.tree() == "step n=0\nstep n=1\nstep n=2"


def test_match_tells_pairs_apart(module: Any) -> None:
    match = STEP.replace("end: '{m}:end'", "end: '{m}:end', match: args.step")
    with _recording(module, match) as spans:
        module.begin(1), module.begin(step=2)
        module.end(1), module.end(2), module.end(3)
        assert _nothing_is_current()
    assert spans.tree() == "step n=1\n  step n=2"


def test_until_ends_before_and_end_ends_after(make: Make) -> None:
    module = make("def begin(): pass\ndef inner(): pass\ndef end(): inner()\n")
    inner = "inner: {group: job, function: '{m}:inner'}"
    until = "it: {group: step, between: {begin: '{m}:begin', until: '{m}:end'}}"
    for text, expected in ((until, "it\ninner"), (until.replace("until", "end"), "it\n  inner")):
        with _recording(module, text, inner) as spans:
            module.begin(), module.end()
        assert spans.tree() == expected


def test_end_and_until_beside_each_other_end_at_whichever_comes_first(make: Make) -> None:
    module = make("def begin(): pass\ndef inner(): pass\ndef setup(): inner()\ndef train(): inner()\n")
    both = "it: {group: step, between: {begin: '{m}:begin', end: '{m}:setup', until: '{m}:train'}}"
    with _recording(module, both, "inner: {group: job, function: '{m}:inner'}") as spans:
        module.begin(), module.setup(), module.train()
        module.begin(), module.train(), module.setup()
    assert spans.tree() == "it\n  inner\ninner\nit\ninner\ninner"


def test_once_begins_once(module: Any) -> None:
    with _recording(module, STEP.replace("end: '{m}:end'", "end: '{m}:end', once: true")) as spans:
        for n in range(3):
            module.begin(n), module.begin(n), module.end()
    assert spans.tree() == "step n=0"


def test_an_end_without_a_begin_is_nothing(module: Any) -> None:
    with _recording(module, STEP, JOB) as spans:
        module.end()
        module.job(module.end)
        module.begin(1), module.end(), module.end()
    assert spans.tree() == "job\nstep n=1"


def test_an_end_that_raises_ends_all_the_same(module: Any) -> None:
    with _recording(module, TIMER) as spans:
        module.Timer().start("broken")
        with pytest.raises(ValueError, match="broken"):
            module.Timer().stop("broken")
        assert _nothing_is_current()
    assert spans.tree() == "it"


def test_a_begin_that_never_ends_is_ended_by_the_span_above_it(module: Any) -> None:
    with _recording(module, STEP, JOB) as spans:
        module.job(module.begin)
        assert _nothing_is_current()
        module.end()
    assert spans.tree() == "job\n  step autoinstr.lost_end='parent' n=0"


def test_a_begin_that_never_ends_is_ended_at_exit(module: Any) -> None:
    with _recording(module, STEP) as spans:
        module.begin(5)
        opening.leave_at_exit()
        assert _nothing_is_current()
        module.end()
    assert spans.tree() == "step autoinstr.lost_end='exit' n=5"


def test_a_second_begin_ends_the_first(module: Any) -> None:
    with _recording(module, STEP) as spans:
        module.begin(1), module.begin(2), module.end()
        assert _nothing_is_current()
    assert spans.tree() == "step autoinstr.lost_end='begin' n=1\nstep n=2"


def test_ends_out_of_order(module: Any) -> None:
    timer = module.Timer()
    with _recording(module, LABELS, JOB) as spans:
        timer.start("a"), timer.start("b")
        timer.stop("a")
        module.job(lambda: None)  # still inside b
        timer.stop("b")
        assert _nothing_is_current()
        module.job(lambda: None)
    assert spans.tree() == "a\n  b\n    job\njob"


def test_overlapping_without_end_keeps_nothing(module: Any) -> None:
    """A prefetcher's begin comes before the last one's end, for days: what is over must not pile up."""

    def chain() -> int:
        return sum(isinstance(o, opening.Opened) for o in gc.get_objects())

    timer = module.Timer()
    with _recording(module, LABELS):
        timer.start("a")
        for i in range(300):
            timer.start("b"), timer.stop("a"), timer.start("a"), timer.stop("b")
            if i == 10:
                gc.collect()
                before = chain()
        gc.collect()
        assert chain() <= before + 2
        timer.stop("a")
        assert _nothing_is_current()


def test_threads_and_tasks_take_turns_and_end_their_own(module: Any) -> None:
    barrier = threading.Barrier(4)

    def thread(n: int) -> None:
        def run() -> None:
            module.begin(n)
            barrier.wait()
            module.end()
            barrier.wait()
            assert trace.get_current_span().is_recording()

        module.job(run)

    async def task(n: int) -> None:
        module.begin(n)
        for _ in range(n % 3):
            await asyncio.sleep(0)
        module.end()
        assert _nothing_is_current()

    async def tasks() -> None:
        await asyncio.gather(*map(task, range(4)))

    with _recording(module, STEP, JOB) as spans:
        threads = [threading.Thread(target=thread, args=(n,)) for n in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        lines = str(spans.tree()).splitlines()
        assert lines[::2] == ["job"] * 4
        assert sorted(lines[1::2]) == [f"  step n={n}" for n in range(4)]
        spans.clear()
        asyncio.run(tasks())
        assert spans.tree() == "step n=0\nstep n=1\nstep n=2\nstep n=3"


def test_begun_in_one_thread_and_ended_in_another(module: Any) -> None:
    with _recording(module, STEP) as spans:
        module.begin(1)
        other = threading.Thread(target=module.end)
        other.start()
        other.join()
        assert spans.tree() == "step n=1"
        module.begin(2)
        module.end()
    assert spans.tree() == "step n=1\nstep n=2"


def test_coroutine_functions_stay_so(module: Any) -> None:
    import inspect

    text = "it: {group: step, between: {begin: '{m}:abegin', end: '{m}:aend'}}"

    async def run() -> None:
        await module.abegin()
        await asyncio.sleep(0)
        assert trace.get_current_span().is_recording()
        await module.aend()
        assert _nothing_is_current()

    with _recording(module, text) as spans:
        assert inspect.iscoroutinefunction(module.abegin)
        assert inspect.iscoroutinefunction(module.aend)
        asyncio.run(run())
    assert spans.tree() == "it"


def test_generator_functions_stay_so(make: Make) -> None:
    import inspect

    module = make(
        """
        def begin():
            got = yield 1
            return got
        async def end():
            yield 2
        """
    )

    async def end() -> list[int]:
        return [x async for x in module.end()]

    with _recording(module, "it: {group: step, between: {begin: '{m}:begin', end: '{m}:end'}}") as spans:
        assert inspect.isgeneratorfunction(module.begin)
        assert inspect.isasyncgenfunction(module.end)
        g = module.begin()
        assert next(g) == 1
        with pytest.raises(StopIteration, match="sent"):
            g.send("sent")
        assert asyncio.run(end()) == [2]
        assert _nothing_is_current() or not trace.get_current_span().is_recording()
    assert spans.tree() == "it"


def test_a_finalizer_may_begin_and_end_at_any_time(module: Any) -> None:
    """The collector runs finalizers in the middle of anything, our own code too: no lock may wait for itself."""
    timer = module.Timer()

    class Cyclic:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            timer.start("x"), timer.stop("x")

    threshold = gc.get_threshold()
    with _recording(module, TIMER) as spans:
        gc.set_threshold(1)
        try:
            for i in range(300):
                Cyclic()
                timer.start(str(i)), timer.stop(str(i))
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert _nothing_is_current()
    assert len(spans.spans) == 600
    assert all(s.status.is_ok and "autoinstr.lost_end" not in (s.attributes or {}) for s in spans.spans)


def test_what_interrupts_the_provider_in_the_same_thread_does_not_wait_for_itself(module: Any) -> None:
    """The SDK's `get_tracer` holds a lock; a finalizer or signal handler that opens a span meanwhile must not hang."""
    from autoinstr.spans.opening import SpanPlan, Tracers, close

    inner: list[Any] = []

    class Provider:
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            inner.append(SpanPlan("inner", "job", tracers).open())  # as an interrupt would
            return trace.NoOpTracer()

    from opentelemetry import trace

    tracers = Tracers(lambda: Provider())  # type: ignore[arg-type,return-value]
    opened = SpanPlan("outer", "job", tracers).open()
    assert inner == [None]
    assert opened is not None
    close(opened)

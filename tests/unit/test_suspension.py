"""Coroutines and generators: what goes in and comes out is unchanged, and suspended they leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import types
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from made_modules import Make, span_map
from opentelemetry import trace

from autoinstr.testing import Recording, SpanTree, record

SOURCE = """
import asyncio

log = []

def numbers():
    got = []
    try:
        for i in range(3):
            try:
                got.append((yield i))
            except LookupError as error:
                got.append(error)
    finally:
        log.append("over")
    return got

def swallows():
    try:
        yield 1
    except BaseException as error:
        log.append(type(error))
        return "swallowed"

def answers_the_exit():
    try:
        yield 1
    except GeneratorExit:
        yield 2

def fails():
    yield 1
    raise ValueError("mine")

async def anumbers():
    try:
        for i in range(3):
            try:
                log.append((yield i))
            except LookupError as error:
                log.append(error)
    finally:
        await asyncio.sleep(0)
        log.append("over")

async def aswallows():
    try:
        yield 1
    except BaseException as error:
        log.append(type(error))

class Pause:
    def __await__(self):
        return (yield "pause")

async def pauses(n=2):
    got = []
    for _ in range(n):
        got.append(await Pause())
    return got

async def inner(x):
    await asyncio.sleep(0)
    raise x

async def outer(x):
    await inner(x)

def raises(x):
    raise x

def above(x):
    raises(x)
"""
NAMES = "numbers swallows answers_the_exit fails anumbers aswallows pauses inner outer raises above".split()


@pytest.fixture
def module(make: Make) -> types.ModuleType:
    return make(SOURCE)


def _map(module: types.ModuleType) -> str:
    return span_map(module, "\n".join(f"{n}: {{group: job, function: '{{m}}:{n}'}}" for n in NAMES))


def _exceptions(spans: Recording) -> dict[str, list[str]]:
    """Span name → the types of the exceptions that it has recorded."""
    return {
        s.name: [str(e.attributes["exception.type"]) for e in s.events if e.attributes and e.name == "exception"]
        for s in spans.spans
    }


def _current() -> Any:
    return trace.get_current_span().get_span_context().span_id


# -- generators -------------------------------------------------------------------------------------------


def test_what_is_sent_and_thrown_arrives_and_what_is_returned_comes_out(module: Any) -> None:
    error = LookupError("mine")
    with record(text=_map(module)) as spans:
        g = module.numbers()
        assert next(g) == 0
        assert g.send("sent") == 1
        assert g.throw(error) == 2
        with pytest.raises(StopIteration) as stop:
            g.send(StopIteration("a value"))
    assert stop.value.value[:2] == ["sent", error]
    assert isinstance(stop.value.value[2], StopIteration)
    assert spans.tree() == "numbers"


def _talk(g: Any, *steps: tuple[str, Any]) -> list[Any]:
    """What a generator answers to each step: what it yields, returns or raises."""
    answers: list[Any] = []
    for method, value in steps:
        try:
            answers.append(getattr(g, method)(*([] if value is None and method != "send" else [value])))
        except BaseException as error:
            answers.append((type(error), str(error)))
    return answers


@pytest.mark.parametrize("name", ["numbers", "swallows", "answers_the_exit", "fails"])
@pytest.mark.parametrize(
    "steps",
    [
        [("close", None)],
        [("throw", KeyError("k"))],
        [("send", "too early")],
        [("send", None), ("close", None), ("close", None), ("send", None)],
        [("send", None), ("throw", GeneratorExit()), ("send", None)],
        [("send", None), ("throw", KeyboardInterrupt("k")), ("send", None)],
        [("send", None), ("throw", SystemExit(3)), ("send", None)],
        [("send", None), ("throw", StopIteration("s")), ("send", None)],
        [("send", None), ("throw", ValueError), ("send", None)],
        [("send", None)] * 6,
    ],
    ids=lambda steps: " ".join(f"{m}({'' if v is None else type(v).__name__})" for m, v in steps),
)
def test_a_generator_answers_as_without_us(name: str, steps: Any, module: Any) -> None:
    expected = _talk(getattr(module, name)(), *steps), list(module.log)
    module.log.clear()
    with record(text=_map(module)) as spans:
        before = _current()
        assert (_talk(getattr(module, name)(), *steps), module.log) == expected
        assert _current() == before
    assert len(spans.spans) == (0 if steps[0][0] in ("close", "throw") or steps[0][1] else 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GeneratorExit(), None),
        (KeyboardInterrupt("k"), "KeyboardInterrupt: k"),
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(0), None),
        (ValueError("v"), "ValueError: v"),
        (StopIteration("s"), "RuntimeError: generator raised StopIteration"),
    ],
    ids=repr,
)
def test_status_and_event_of_what_is_thrown_into_a_generator(error: Any, status: str | None, module: Any) -> None:
    with record(text=_map(module)) as spans:
        g = module.numbers()
        next(g)
        with pytest.raises(BaseException):
            g.throw(error)
    (span,) = spans.spans
    assert (None if span.status.is_ok else span.status.description) == status
    assert [e.name for e in span.events] == ["exception"]


def test_a_loop_left_by_break_ends_the_span_at_once(module: Any) -> None:
    with record(text=_map(module)) as spans:
        for _ in module.numbers():
            break
        assert spans.tree() == "numbers"
        assert module.log == ["over"]


def test_never_started_is_no_span_and_no_run(module: Any) -> None:
    with record(text=_map(module)) as spans:
        g = module.numbers()
        g.close()
        del g
        module.numbers()
        gc.collect()
        with pytest.warns(RuntimeWarning, match=r"coroutine 'pauses' was never awaited"):
            module.pauses()
    assert spans.tree() == ""
    assert module.log == []


def test_a_collected_generator_ends_its_span_and_disturbs_no_other(module: Any) -> None:
    with record(text=_map(module)) as spans:
        g = module.numbers()
        next(g)
        cycle = [g]
        cycle.append(cycle)
        del g, cycle
        other = module.pauses(1)
        assert other.send(None) == "pause"
        gc.collect()
        assert [s.name for s in spans.spans] == ["numbers"]
        assert module.log == ["over"]
        with pytest.raises(StopIteration) as stop:
            other.send("x")
        assert stop.value.value == ["x"]
    assert spans.tree() == "numbers\npauses"


def test_nothing_that_passes_through_is_kept_alive(make: Make) -> None:
    """A batch that the loop lets go of is freed before the next one is made."""
    module = make(
        """
        import asyncio, weakref
        class Batch: pass
        def batches(first):
            del first
            for _ in range(2):
                got = yield Batch()
                del got
        async def abatches(first):
            del first
            for _ in range(2):
                got = yield Batch()
                del got
        async def takes(first):
            del first
            await asyncio.sleep(0)
        """
    )
    names = "\n".join(f"{n}: {{group: job, function: '{{m}}:{n}'}}" for n in ("batches", "abatches", "takes"))
    with record(text=span_map(module, names)):
        first, sent, error = module.Batch(), module.Batch(), KeyError()
        alive = [weakref.ref(first), weakref.ref(sent)]
        g = module.batches(first)
        del first
        batch = next(g)
        assert alive[0]() is None
        alive.append(weakref.ref(batch))
        del batch
        assert alive[2]() is None
        batch = g.send(sent)
        del sent
        assert alive[1]() is None
        del batch, error

        async def run() -> None:
            first = module.Batch()
            ref = weakref.ref(first)
            ag = module.abatches(first)
            del first
            batch = await ag.__anext__()
            assert ref() is None
            ref = weakref.ref(batch)
            del batch
            assert ref() is None
            await ag.aclose()
            first = module.Batch()
            ref = weakref.ref(first)
            task = asyncio.create_task(module.takes(first))
            del first
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert ref() is None
            await task

        asyncio.run(run())


def test_an_exception_leaves_no_cycle_behind(module: Any) -> None:
    class Mine(Exception):
        pass

    gc.collect()
    gc.disable()
    try:
        with record(text=_map(module)):
            error = Mine()
            ref = weakref.ref(error)
            g = module.numbers()
            next(g)
            try:
                g.throw(error)
            except Mine:
                pass
            del error, g
            assert ref() is None
    finally:
        gc.enable()


# -- suspended --------------------------------------------------------------------------------------------


def test_a_suspended_generator_is_not_current_in_its_caller(make: Make) -> None:
    module = make(
        """
        from opentelemetry import trace
        def g():
            for _ in range(3):
                yield trace.get_current_span().get_span_context().span_id
        async def c(pause):
            seen = []
            for _ in range(3):
                seen.append(trace.get_current_span().get_span_context().span_id)
                await pause()
            return seen
        class pause:
            def __await__(self):
                yield
        """
    )
    text = span_map(module, "g: {group: job, function: '{m}:g'}\nc: {group: job, function: '{m}:c'}")
    with record(text=text) as spans, spans.provider.get_tracer("user").start_as_current_span("user"):
        mine = _current()
        a, b = module.g(), module.g()
        seen = []
        for _ in range(3):  # two, taking turns
            seen.append((next(a), next(b)))
            assert _current() == mine
        assert len(set(seen)) == 1
        assert len({mine, *seen[0]}) == 3
        c = module.c(module.pause)
        for _ in range(3):
            c.send(None)
            assert _current() == mine
        with pytest.raises(StopIteration) as stop:
            c.send(None)
        assert len(set(stop.value.value)) == 1
        a.close(), b.close()
    assert spans.tree() == "user\n  g\n  g\n  c"


def test_a_span_of_the_users_own_inside_a_coroutine_spans_its_awaits(make: Make, caplog: Any) -> None:
    module = make(
        """
        import asyncio
        async def step(): await asyncio.sleep(0)
        async def work(tracer):
            with tracer.start_as_current_span("user"):
                await step()
                await asyncio.sleep(0)
                await step()
            await step()
        def items(tracer):
            with tracer.start_as_current_span("user"):
                yield 1
                yield 2
            yield 3
        """
    )
    text = span_map(module, "\n".join(f"{n}: {{group: job, function: '{{m}}:{n}'}}" for n in ("step", "work", "items")))

    async def both(tracer: Any) -> None:
        await asyncio.gather(module.work(tracer), module.work(tracer))

    with record(text=text) as spans:
        tracer = spans.provider.get_tracer("user")
        asyncio.run(both(tracer))
        assert spans.tree() == 2 * "work\n  user\n    step\n    step\n  step\n"
        spans.clear()
        for a, b in zip(module.items(tracer), module.items(tracer)):
            assert a == b
            assert _current() == 0
        assert spans.tree() == "items\n  user\nitems\n  user"
    assert "detach" not in caplog.text


# -- coroutines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("v"), asyncio.CancelledError(), KeyboardInterrupt("k"), SystemExit(3)], ids=repr
)
def test_only_the_innermost_span_records_the_exception(error: BaseException, module: Any) -> None:
    with record(text=_map(module)) as spans:
        coroutine = module.outer(error)
        coroutine.send(None)
        with pytest.raises(type(error)) as caught:
            coroutine.send(None)
        assert caught.value is error
        with pytest.raises(type(error)) as caught:
            module.above(error)
        assert caught.value is error
    name, qualified = type(error).__name__, type(error).__qualname__
    if type(error).__module__ != "builtins":
        qualified = f"{type(error).__module__}.{qualified}"
    assert spans.tree() == f"outer !{name}\n  inner !{name}\nabove !{name}\n  raises !{name}"
    assert _exceptions(spans) == {"inner": [qualified], "outer": [], "raises": [qualified], "above": []}


def test_cancelling_a_task(module: Any) -> None:
    async def run() -> None:
        task = asyncio.create_task(module.outer(asyncio.sleep))  # raises TypeError, if it gets that far
        waiting = asyncio.create_task(_wait(module))
        await asyncio.sleep(0)
        task.cancel()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with record(text=_map(module)) as spans:
        asyncio.run(run())
    assert spans.tree() == "outer !CancelledError\n  inner !CancelledError"


async def _wait(module: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("value", [None, 1, (1, 2), StopIteration("x"), ValueError("returned")], ids=repr)
def test_any_value_can_be_returned(value: Any, make: Make) -> None:
    module = make(
        """
        async def c(x): return x
        def g(x):
            return x
            yield
        """
    )
    text = span_map(module, "c: {group: job, function: '{m}:c'}\ng: {group: job, function: '{m}:g'}")

    def delegates() -> Any:
        return (yield from module.g(value))

    with record(text=text) as spans:
        assert asyncio.run(module.c(value)) is value
        with pytest.raises(StopIteration) as stop:
            next(delegates())
        assert stop.value.value is value
    assert spans.tree() == "c\ng"


# -- async generators -------------------------------------------------------------------------------------


async def _atalk(g: Any, *steps: tuple[str, Any]) -> list[Any]:
    answers: list[Any] = []
    for method, value in steps:
        try:
            answers.append(await getattr(g, method)(*([value] if value is not None or method == "asend" else [])))
        except BaseException as error:
            answers.append((type(error), str(error)))
    return answers


@pytest.mark.parametrize("name", ["anumbers", "aswallows"])
@pytest.mark.parametrize(
    "steps",
    [
        [("aclose", None)],
        [("asend", None), ("aclose", None), ("asend", None)],
        [("asend", None), ("asend", "sent"), ("athrow", LookupError("l")), ("asend", None), ("asend", None)],
        [("asend", None), ("athrow", GeneratorExit()), ("asend", None)],
        [("asend", None), ("athrow", asyncio.CancelledError("c")), ("asend", None)],
        [("asend", None), ("athrow", StopAsyncIteration("s")), ("asend", None)],
        [("asend", None), ("athrow", ValueError("v")), ("aclose", None)],
        [("__anext__", None)] * 5,
    ],
    ids=lambda steps: " ".join(f"{m}({'' if v is None else type(v).__name__})" for m, v in steps),
)
def test_an_async_generator_answers_as_without_us(name: str, steps: Any, module: Any) -> None:
    expected = asyncio.run(_atalk(getattr(module, name)(), *steps)), [str(x) for x in module.log]
    module.log.clear()
    with record(text=_map(module)) as spans:
        answers = asyncio.run(_atalk(getattr(module, name)(), *steps))
    assert (answers, [str(x) for x in module.log]) == expected
    assert len(spans.spans) == (0 if steps[0][0] == "aclose" else 1)


def test_the_loop_closes_an_async_generator_once(module: Any) -> None:
    """It knows of ours, and not of the user's own inside: both closed at once would get in each other's way."""
    problems: list[Any] = []
    kept: list[Any] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        for _ in range(5):
            g = module.anumbers()
            await g.__anext__()
            kept.append(g)
        g = module.anumbers()
        await g.__anext__()
        del g  # this one is closed by its finalizer, in a task of its own
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert module.log == ["over"]

    with record(text=_map(module)) as spans:
        asyncio.run(run())
        assert module.log == ["over"] * 6
    assert problems == []
    assert spans.tree() == "\n".join(["anumbers"] * 6)


# -- many at once -----------------------------------------------------------------------------------------

MANY = """
import asyncio, random, time

async def job(i):
    await asyncio.sleep(0)
    total = await step(i, 0)
    async for x in items(i):
        total += await step(i, x)
    return total

async def step(i, x):
    await asyncio.sleep(random.random() / 1000)
    return leaf(i, x)

async def items(i):
    for x in (1, 2):
        await asyncio.sleep(0)
        yield x

def leaf(i, x):
    return i + x

def thread_job(i):
    total = thread_step(i, 0)
    for x in thread_items(i):
        total += thread_step(i, x)
    return total

def thread_step(i, x):
    time.sleep(random.random() / 10000)
    return leaf(i, x)

def thread_items(i):
    yield 1
    yield 2
"""
TREE = """
job i=I
  step i=I
    leaf i=I
  items i=I
  step i=I
    leaf i=I
  step i=I
    leaf i=I
"""


@pytest.mark.parametrize("where", ["tasks", "threads"])
def test_a_thousand_at_once_are_a_thousand_right_trees(where: str, make: Make, caplog: Any) -> None:
    module = make(MANY)
    prefix = "thread_" if where == "threads" else ""
    names = [("leaf", "leaf")] + [(n, prefix + n) for n in ("job", "step", "items")]
    text = span_map(
        module, "\n".join(f"{n}: {{group: job, function: '{{m}}:{f}', attributes: {{i: args.i}}}}" for n, f in names)
    )
    state = random.getstate()

    async def tasks() -> list[int]:
        return await asyncio.gather(*(module.job(i) for i in range(1000)))

    with caplog.at_level(logging.DEBUG), record(text=text) as spans:
        if where == "tasks":
            results = asyncio.run(tasks())
        else:
            with ThreadPoolExecutor(1000) as pool:
                results = list(pool.map(module.thread_job, range(1000)))
        assert _current() == 0
    random.setstate(state)
    assert results == [3 * i + 3 for i in range(1000)]
    roots = spans.tree().roots
    assert len(roots) == 1000
    shapes = Counter(str(SpanTree([root])).replace(f"i={root.attributes['i']}", "i=I") for root in roots)
    assert shapes == {TREE.strip(): 1000}
    assert "detach" not in caplog.text


def test_a_task_that_outlives_its_span_stays_below_it(make: Make) -> None:
    module = make(
        """
        import asyncio
        from contextlib import contextmanager
        @contextmanager
        def time(label): yield
        def leaf(): pass
        async def later():
            await asyncio.sleep(0)
            leaf(), leaf()
        async def start():
            with time("step"):
                task = asyncio.create_task(later())
            return task
        """
    )
    text = """
        start: {group: job, function: '{m}:start'}
        leaf: {group: job, function: '{m}:leaf'}
        step: {group: step, block: '{m}:time(label=step)'}
    """

    async def run() -> None:
        await (await module.start())

    with record(text=span_map(module, text)) as spans:
        asyncio.run(run())
    assert spans.tree() == "start\n  step\n    leaf\n    leaf"


# -- what a decorator makes of a generator or coroutine function --------------------------------------------

DECORATED = """
import functools, types

def primed(function):
    @functools.wraps(function)
    def begins(*args):
        made = function(*args)
        next(made)
        return made
    return begins

def kept(function):
    made = []
    @functools.wraps(function)
    def gives(*args):
        if not made:
            made.append(function(*args))
        return made[0]
    return gives

def passed_on(function):
    @functools.wraps(function)
    def passes(*args):
        return function(*args)
    return passes

@primed
def averages():
    total = 0
    while True:
        total += (yield total)

@kept
def batches():
    yield from range(6)

@types.coroutine
def pause(x):
    return (yield x)

class Pauses:
    @types.coroutine
    def pause(self, x):
        return (yield x)

class Inherits(Pauses):
    pass

@passed_on
@types.coroutine
def passed_on_pause(x):
    return (yield x)

@passed_on
async def job():
    return 1

@passed_on
def items():
    yield 1
"""


@pytest.fixture
def decorated(make: Make) -> Iterator[tuple[types.ModuleType, Recording]]:
    module = make(DECORATED)
    names = "averages batches pause Inherits.pause passed_on_pause job items".split()
    entries = "\n".join(f"{name}: {{group: job, function: '{{m}}:{name}'}}" for name in names)
    with record(text=span_map(module, entries)) as spans:
        yield module, spans


def test_a_generator_that_its_decorator_has_begun_goes_on_from_there(decorated: Any) -> None:
    module, spans = decorated
    running = module.averages()
    assert (running.send(2), running.send(3)) == (2, 5)
    assert spans.tree() == "averages"


def test_a_generator_that_somebody_keeps_is_not_closed_by_one_loop(decorated: Any) -> None:
    module, _ = decorated
    got = []
    for last in (2, 5):
        for item in module.batches():
            got.append(item)
            if item == last:
                break
    assert got == [0, 1, 2, 3, 4, 5]


def test_an_awaitable_generator_can_be_awaited(decorated: Any) -> None:
    module, spans = decorated

    async def waits() -> Any:
        return await module.pause(1), await module.Inherits().pause(2), await module.passed_on_pause(3)

    job = waits()
    assert [job.send(None), job.send("a"), job.send("b")] == [1, 2, 3]
    with pytest.raises(StopIteration) as done:
        job.send("c")
    assert done.value.value == ("a", "b", "c")
    assert spans.tree() == "pause\nInherits.pause\npassed_on_pause"


def test_what_is_never_begun_is_said_as_without_us_and_its_span_ends(
    decorated: Any, recwarn: pytest.WarningsRecorder
) -> None:
    module, spans = decorated
    module.job()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == ["coroutine 'job' was never awaited"]
    recwarn.clear()
    module.job().close()
    module.items().close()
    gc.collect()
    assert not recwarn.list
    assert spans.tree() == "job\njob\nitems"

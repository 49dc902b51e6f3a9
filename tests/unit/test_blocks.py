"""`block` spans: `with` blocks picked by their label and by who opens them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from made_modules import Make, span_map
from opentelemetry import trace

from autoinstr.testing import record

SOURCE = '''
import contextlib
from contextlib import asynccontextmanager, contextmanager

log = []

class Timer:
    @contextmanager
    def time(self, label, should_log=True):
        """Times."""
        log.append(f"start {label}")
        try:
            yield label
        finally:
            log.append(f"stop {label}")

    @asynccontextmanager
    async def atime(self, label="step"):
        log.append(f"start {label}")
        try:
            yield label
        finally:
            log.append(f"stop {label}")

    def measured(self, label):
        with self.time(label):
            return label

@contextmanager
def swallow(label):
    try:
        yield
    except ValueError as error:
        log.append(error)

@contextmanager
def breaks(label):
    if label == "enter":
        raise KeyError("on enter")
    yield
    raise KeyError("on exit")

class Region:
    """A class that is a context manager itself."""
    def __init__(self, label, swallows=False):
        self.label = label
        self.swallows = swallows
    def __enter__(self):
        log.append(f"enter {self.label}")
        return self
    def __exit__(self, typ, value, traceback):
        log.append(f"exit {self.label}")
        return self.swallows

class ARegion:
    def __init__(self, label):
        self.label = label
    async def __aenter__(self):
        return self
    async def __aexit__(self, *exc):
        return None

class Lock:
    """Shared and reentrant, sized and hashable, usable as a decorator."""
    def __init__(self):
        self.depth = 0
    def __enter__(self):
        self.depth += 1
        return self
    def __exit__(self, *exc):
        self.depth -= 1
    def __len__(self):
        return 7
    def __getitem__(self, i):
        return i
    def grab(self):
        return self

the_lock = Lock()

def lock(label="x"):
    return the_lock

class Both(contextlib.ContextDecorator):
    def __enter__(self):
        log.append("enter")
        return 1
    def __exit__(self, *exc):
        log.append("exit")

def both(label):
    return Both()

async def pooled(label):
    return ARegion(label)

def nothing(label):
    return None
'''


@pytest.fixture
def module(make: Make) -> Any:
    return make(SOURCE)


def _recording(module: Any, spans: str) -> Any:
    return record(text=span_map(module, spans))


STEP = "step: {group: step, block: '{m}:Timer.time(label=step)'}"


def test_the_label_may_come_by_position_keyword_and_default(module: Any) -> None:
    text = STEP + "\nastep: {group: step, block: '{m}:Timer.atime(label=step)'}"
    timer = module.Timer()

    async def run() -> None:
        async with timer.atime() as a, timer.atime("step") as b, timer.atime("other"):
            assert (a, b) == ("step", "step")

    with _recording(module, text) as spans:
        with timer.time("step") as got, timer.time("other"):
            assert got == "step"
        with timer.time(label="step", should_log=False):
            pass
        asyncio.run(run())
    assert spans.tree() == "step\nstep\nastep\n  astep"


def test_labels_by_pattern_and_several_by_bar(module: Any) -> None:
    text = """
        rollout: {group: rollout, block: '{m}:Timer.time(label=*/run_rollouts)', attributes: {label: args.label}}
        either: {group: step, block: '{m}:Timer.time(label=a|b)'}
    """
    timer = module.Timer()
    with _recording(module, text) as spans:
        for label in ("a", f"{'train'}/run_rollouts", "run_rollouts", "b", "c", "val/run_rollouts"):
            with timer.time(label):
                pass
    assert (
        spans.tree()
        == """
either
rollout label='train/run_rollouts'
either
rollout label='val/run_rollouts'
"""
    )


def test_labels_that_are_no_plain_text(module: Any) -> None:
    import enum

    class Phase(str, enum.Enum):
        STEP = "step"

    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise SystemExit("eq")

        def __hash__(self) -> int:
            raise SystemExit("hash")

        @property
        def __class__(self) -> Any:
            raise SystemExit("class")

    text = STEP + "\none: {group: step, block: '{m}:lock(label=1)'}\ntrue: {group: step, block: '{m}:lock(label=True)'}"
    timer = module.Timer()
    with _recording(module, text) as spans:
        for label in (Phase.STEP, ["step"], None, {"step"}, 1, True, b"step", float("nan")):
            with timer.time(label), module.lock(label):
                pass
        with module.lock(Hostile()):
            pass
    assert spans.tree() == "step\none\ntrue"
    assert module.the_lock.depth == 0


@pytest.mark.parametrize("opener", ["app.loop", "app.loop.deep.er", "app.loops", "lib.timers"])
def test_inside_takes_the_module_that_opens_the_block_and_those_below(opener: str, make: Make) -> None:
    timers = make(
        """
        from contextlib import contextmanager
        class Timer:
            @contextmanager
            def time(self, label):
                yield
            def twice(self, label):  # the timer's own module is not who opens it
                with self.time(label):
                    with self.time("other"):
                        pass
        class ThreadSafeTimer(Timer):
            @contextmanager
            def time(self, label):
                with super().time(label):
                    yield
        """,
        "lib.timers",
    )
    user = make(
        """
        from lib.timers import ThreadSafeTimer, Timer
        def run():
            with Timer().time("step"):
                pass
            with ThreadSafeTimer().time("step"):
                pass
            Timer().twice("step")
        """,
        opener + "x" if opener == "lib.timers" else opener,
    )
    text = span_map("lib", "step: {group: step, block: 'lib.timers:Timer.time(label=step)', inside: app.loop}")
    with record(text=text) as spans:
        user.run()
    assert timers.__name__ == "lib.timers"
    assert spans.tree() == ("step\nstep\nstep" if opener in ("app.loop", "app.loop.deep.er") else "")


def test_an_exception_in_the_block(module: Any) -> None:
    error = ValueError("mine")
    text = (
        STEP
        + """
swallow: {group: step, block: '{m}:swallow(label=*)'}
region: {group: step, block: '{m}:Region(label=*)'}
"""
    )
    with _recording(module, text) as spans:
        with pytest.raises(ValueError) as caught:
            with module.Timer().time("step"):
                raise error
        assert caught.value is error
        with module.swallow("x"):
            raise error
        with module.Region("x", swallows=True):
            raise error
        with pytest.raises(ValueError):
            with module.Region("x"):
                raise error
    assert spans.tree() == "step !ValueError\nswallow\nregion\nregion !ValueError"
    assert [len(s.events) for s in spans.spans] == [1, 0, 0, 1]
    assert module.log[2] is error


@pytest.mark.parametrize("when", ["enter", "exit"])
def test_an_exception_of_the_manager(when: str, module: Any) -> None:
    with _recording(module, "it: {group: step, block: '{m}:breaks(label=*)'}") as spans:
        with pytest.raises(KeyError, match=f"on {when}"):
            with module.breaks(when):
                pass
        assert not trace.get_current_span().is_recording()
    assert spans.tree() == "it !KeyError"


def test_leaving_by_break_continue_and_return(module: Any) -> None:
    def run(timer: Any) -> str:
        for i in range(3):
            with timer.time("step"):
                if i == 0:
                    continue
                if i == 1:
                    break
        with timer.time("step"):
            return "returned"

    with _recording(module, STEP) as spans:
        assert run(module.Timer()) == "returned"
    assert spans.tree() == "step\nstep\nstep"
    assert module.log == ["start step", "stop step"] * 3


def test_one_label_open_twice(module: Any) -> None:
    with _recording(module, STEP) as spans, module.Timer().time("step"), module.Timer().time("step"):
        pass
    assert spans.tree() == "step\n  step"


def test_exit_stacks(module: Any) -> None:
    text = (
        STEP
        + """
astep: {group: step, block: '{m}:Timer.atime(label=step)'}
lock: {group: step, block: '{m}:lock(label=x)'}
region: {group: step, block: '{m}:ARegion(label=x)'}
"""
    )
    timer = module.Timer()

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(timer.atime())
            stack.enter_context(timer.time("step"))
            await stack.enter_async_context(module.ARegion("x"))

    with _recording(module, text) as spans:
        with contextlib.ExitStack() as stack:
            assert stack.enter_context(timer.time("step")) == "step"
            assert stack.enter_context(module.lock()) is module.the_lock
            kept = stack.pop_all()
        kept.close()
        asyncio.run(run())
        with pytest.raises((TypeError, AttributeError)):  # it is no async one, and must not seem so
            asyncio.run(contextlib.AsyncExitStack().enter_async_context(module.lock()))
    assert spans.tree() == "step\n  lock\nastep\n  step\n    region"


def test_what_is_no_context_manager_goes_through_and_is_told_once(make: Make, capsys: Any) -> None:
    module = make("def train(x): return {'loss': x}")
    with record(text=span_map(module, "step: {group: step, block: '{m}:train'}")) as spans:
        assert module.train(1) == {"loss": 1}
        assert module.train(2) == {"loss": 2}
    assert spans.tree() == ""
    assert capsys.readouterr().err.splitlines() == [
        "autoinstr: block: what the function of step returns is a dict and no context manager, and has no span; "
        "with 'function' each call has one"
    ]


def test_used_as_a_decorator_every_call_is_a_block(module: Any) -> None:
    text = STEP + "\nboth: {group: step, block: '{m}:both(label=x)'}"
    with _recording(module, text) as spans:

        @module.Timer().time("step")
        def f(x: int) -> int:
            return x + 1

        @module.both("x")
        def g(x: int) -> int:
            return x + 1

        assert [f(1), f(2), g(3)] == [2, 3, 4]
        assert (f.__name__, g.__name__) == ("f", "g")
    assert spans.tree() == "step\nstep\nboth"
    assert module.log[-2:] == ["enter", "exit"]


def test_a_class_as_target_reads_the_label_from_the_instance(module: Any) -> None:
    text = """
        a: {group: step, block: '{m}:Region(label=a)', attributes: {swallows: self.swallows}}
        any: {group: step, block: '{m}:ARegion(label=*)', attributes: {label: args.label}}
    """

    async def run() -> None:
        async with module.ARegion("x") as region:
            assert type(region) is module.ARegion

    with _recording(module, text) as spans:
        with module.Region("a") as a, module.Region("b") as b, a:
            assert (type(a), type(b)) == (module.Region, module.Region)
        asyncio.run(run())
    assert spans.tree() == "a swallows=False\n  a swallows=False\nany label='x'"
    assert module.log == ["enter a", "enter b", "enter a", "exit a", "exit b", "exit a"]


def test_a_manager_that_several_threads_and_tasks_share(module: Any) -> None:
    """Each of them leaves the block that it has entered itself."""
    text = """
        lock: {group: step, block: '{m}:lock(label=x)'}
        region: {group: step, block: '{m}:Region(label=x)'}
    """
    shared, region = module.lock(), module.Region("x")
    barrier = threading.Barrier(8)

    def thread(tracer: Any, lock: Any) -> None:
        with tracer.start_as_current_span("user"):
            barrier.wait()
            with lock, region, lock:
                barrier.wait()
            barrier.wait()

    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def task(tracer: Any, lock: Any, i: int) -> None:
        with tracer.start_as_current_span("user"):
            with lock:
                await turns(i % 3)
                with region:
                    await turns(i % 2)
                    with lock:
                        await turns(1)

    with _recording(module, text) as spans:
        tracer, lock = spans.provider.get_tracer("user"), module.lock()
        threads = [threading.Thread(target=thread, args=(tracer, lock)) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]

        async def run() -> None:
            await asyncio.gather(*(task(tracer, lock, i) for i in range(20)))

        threaded = spans.tree()
        spans.clear()
        asyncio.run(run())
        tasked = spans.tree()
        assert not trace.get_current_span().is_recording()
    one = "user\n  lock\n    region"
    nested = one + "\n      lock"
    assert threaded == "\n".join([nested] * 8)
    assert tasked == "\n".join([nested] * 20)
    assert shared is module.the_lock


def test_a_block_never_left_is_ended_by_the_span_above_it(module: Any) -> None:
    text = STEP + "\njob: {group: job, function: '{m}:Timer.measured'}"
    with _recording(module, text) as spans:
        timer = module.Timer()
        module.Timer.time(timer, "other").__enter__()

        def measured(label: str) -> str:
            kept.append(timer.time("step"))
            kept[-1].__enter__()
            return label

        kept: list[Any] = []
        with module.Timer().time("step"):
            measured("x")
            inner = trace.get_current_span()
        assert inner.is_recording() is False
        assert not trace.get_current_span().is_recording()
        kept[0].__exit__(None, None, None)
    assert spans.tree() == "step\n  step autoinstr.lost_end='parent'"


def test_blocks_left_out_of_order(module: Any) -> None:
    with _recording(module, STEP + "\nb: {group: step, block: '{m}:Timer.time(label=b)'}") as spans:
        timer = module.Timer()
        a, b = timer.time("step"), timer.time("b")
        a.__enter__(), b.__enter__()
        a.__exit__(None, None, None)
        assert not trace.get_current_span().is_recording()
        b.__exit__(None, None, None)
        with timer.time("step"):
            pass
    assert spans.tree() == "step\n  b autoinstr.lost_end='parent'\nstep"


def test_blocks_in_nested_generators(module: Any, caplog: Any) -> None:
    def inner(timer: Any) -> Any:
        with timer.time("b"):
            yield 1
            yield 2

    def outer(timer: Any) -> Any:
        with timer.time("step"):
            yield from inner(timer)

    with _recording(module, STEP + "\nb: {group: step, block: '{m}:Timer.time(label=b)'}") as spans:
        assert list(outer(module.Timer())) == [1, 2]
        for _ in outer(module.Timer()):
            break
        assert not trace.get_current_span().is_recording()
    assert spans.tree() == "step\n  b\nstep\n  b"
    assert "detach" not in caplog.text


def test_what_contextmanager_makes_stays_the_object_that_it_was(module: Any) -> None:
    plain = module.Timer().time("step")
    with _recording(module, STEP) as spans:
        manager = module.Timer().time("step")
        assert isinstance(manager, contextlib._GeneratorContextManager)
        assert isinstance(manager, contextlib.AbstractContextManager)
        assert (type(manager).__name__, type(manager).__module__) == (type(plain).__name__, type(plain).__module__)
        assert manager.__doc__ == plain.__doc__
        assert vars(manager).keys() - vars(plain).keys() == {"_autoinstr_entered"}
        with manager:
            pass
    assert spans.tree() == "step"


def test_what_may_be_shared_is_stood_in_for(module: Any) -> None:
    import copy
    import pickle

    with _recording(module, "lock: {group: step, block: '{m}:lock(label=x)'}") as spans:
        stand_in = module.lock()
        assert isinstance(stand_in, module.Lock)
        assert stand_in.__class__ is module.Lock
        assert (len(stand_in), stand_in[3], bool(stand_in), stand_in.grab()) == (7, 3, True, module.the_lock)
        assert not callable(stand_in)
        assert not hasattr(stand_in, "__aenter__")
        assert (hash(stand_in), repr(stand_in)) == (hash(module.the_lock), repr(module.the_lock))
        assert stand_in == module.the_lock
        stand_in.mine = 1
        assert vars(module.the_lock) == vars(stand_in) == {"depth": 0, "mine": 1}
        del stand_in.mine
        assert type(pickle.loads(pickle.dumps(stand_in))) is module.Lock
        assert type(copy.deepcopy(stand_in)) is module.Lock
        with stand_in as a, stand_in as b:
            assert a is b is module.the_lock
            assert module.the_lock.depth == 2
    assert spans.tree() == "lock\n  lock"


def test_factories_of_other_kinds(module: Any) -> None:
    import inspect

    text = "pooled: {group: step, block: '{m}:pooled(label=x)'}\nnothing: {group: step, block: '{m}:nothing(label=x)'}"

    async def run() -> None:
        async with await module.pooled("x") as region:
            assert type(region) is module.ARegion

    with _recording(module, text) as spans:
        assert inspect.iscoroutinefunction(module.pooled)
        asyncio.run(run())
        assert module.nothing("x") is None
    assert spans.tree() == "pooled"


def test_a_generator_is_no_factory(make: Make) -> None:
    module = make("def time(label):\n    yield label\n")
    with _recording(module, "it: {group: step, block: '{m}:time(label=x)'}") as spans:
        assert spans.ledger.records[0].state == "refused"
        assert "@contextmanager missing?" in spans.ledger.records[0].why
        assert list(module.time("x")) == ["x"]


def test_subclasses_that_call_their_base_open_one_span(make: Make) -> None:
    module = make(
        """
        from contextlib import contextmanager
        class Timer:
            @contextmanager
            def time(self, label):
                yield
        class Other(Timer):
            @contextmanager
            def time(self, label):
                with super().time(label):
                    yield
        """
    )
    text = "step: {group: step, block: '{m}:Timer.time(label=step)', subclasses: true}"
    with _recording(module, text) as spans, module.Other().time("step"), module.Timer().time("step"):
        pass
    assert spans.tree() == "step\n  step"

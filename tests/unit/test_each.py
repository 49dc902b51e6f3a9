"""`each` spans: one for every item that a loop pulls, as long as the loop's body has it."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import Any

import pytest
from made_modules import Make, span_map
from opentelemetry import trace

from autoinstr.testing import record

SOURCE = '''
import functools

log = []

def body(x): return x * 2

def generated(n):
    try:
        for i in range(n):
            got = yield i
            if got is not None:
                log.append(got)
        return "done"
    except GeneratorExit:
        log.append("left")
        raise

def listed(n): return list(range(n))

def iterated(n): return iter(range(n))

class Counting:
    def __init__(self, n):
        self.n, self.i = n, -1
    def __iter__(self): return self
    def __next__(self):
        self.i += 1
        if self.i == self.n:
            raise StopIteration
        if self.i == 99:
            raise ValueError("worker died")
        return self.i
    def __len__(self): return self.n

def counting(n): return Counting(n)

async def agenerated(n):
    try:
        for i in range(n):
            yield i
    finally:
        log.append("over")

class ACounting(Counting):
    def __aiter__(self): return self
    async def __anext__(self):
        try:
            return Counting.__next__(self)
        except StopIteration:
            raise StopAsyncIteration

def acounting(n): return ACounting(n)

async def awaited(n): return iter(range(n))

def decorate(f):
    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapped

decorated = decorate(generated)

class Loader:
    """As a DataLoader: sized, iterated more than once, and no iterator."""
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self):
        yield from range(self.n)

def loader(n): return Loader(n)

def listed(n): return list(range(n))
'''
BODY = "\nbody: {group: job, function: '{m}:body'}"
ONE = "item\n  body"


@pytest.fixture
def module(make: Make) -> Any:
    return make(SOURCE)


def _recording(module: Any, target: str, more: str = "") -> Any:
    return record(text=span_map(module, f"item: {{group: step, each: '{{m}}:{target}'{more}}}" + BODY))


def _nothing_is_current() -> bool:
    return not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("target", ["generated", "iterated", "counting", "decorated"])
def test_every_item_is_a_span_over_the_loops_body(target: str, module: Any) -> None:
    with _recording(module, target, ", attributes: {n: args.n}") as spans:
        assert [module.body(x) for x in getattr(module, target)(2)] == [0, 2]
        assert list(getattr(module, target)(0)) == []
        assert _nothing_is_current()
    assert spans.tree() == "item n=2\n  body\nitem n=2\n  body"


@pytest.mark.parametrize("target", ["agenerated", "acounting"])
def test_so_it_is_with_async_for(target: str, module: Any) -> None:
    async def run() -> list[int]:
        return [module.body(x) async for x in getattr(module, target)(2)]

    with _recording(module, target) as spans:
        assert asyncio.run(run()) == [0, 2]
    assert spans.tree() == f"{ONE}\n{ONE}"


def test_a_coroutine_function_may_return_the_iterator(module: Any) -> None:
    with _recording(module, "awaited") as spans:
        assert inspect.iscoroutinefunction(module.awaited)
        assert [module.body(x) for x in asyncio.run(module.awaited(1))] == [0]
    assert spans.tree() == ONE


@pytest.mark.parametrize("target", ["generated", "iterated", "counting", "decorated"])
def test_leaving_by_break_or_exception_ends_the_span(target: str, module: Any) -> None:
    def fails() -> None:
        for x in getattr(module, target)(3):
            raise ValueError(x)

    with _recording(module, target) as spans:
        for x in getattr(module, target)(3):
            module.body(x)
            break
        assert spans.tree() == ONE
        with pytest.raises(ValueError):
            fails()
        assert spans.tree() == f"{ONE}\nitem"
        module.body(1)
        assert _nothing_is_current()
    assert spans.tree() == f"{ONE}\nitem\nbody"


def test_an_iterator_that_raises(module: Any) -> None:
    with _recording(module, "counting") as spans:
        items = module.counting(200)
        with pytest.raises(ValueError, match="worker died"):
            for _ in items:
                pass
        assert next(items) == 100
        del items
        assert _nothing_is_current()
    assert len(spans.spans) == 100
    assert all(s.status.is_ok for s in spans.spans)


def test_nested_loops(module: Any) -> None:
    with _recording(module, "generated") as spans:
        for _ in module.generated(2):
            for y in module.generated(1):
                module.body(y)
        assert _nothing_is_current()
    assert spans.tree() == 2 * "item\n  item\n    body\n"


def test_two_loops_that_take_turns(module: Any) -> None:
    with _recording(module, "generated") as spans:
        assert list(zip(module.generated(2), module.generated(2))) == [(0, 0), (1, 1)]
        assert _nothing_is_current()
    assert len(spans.spans) == 4
    assert all(s.status.is_ok for s in spans.spans)


def test_a_generator_stays_one(module: Any) -> None:
    with _recording(module, "generated"):
        assert inspect.isgeneratorfunction(module.generated)
        g = module.generated(3)
        assert inspect.isgenerator(g)
        assert (next(g), g.send("sent")) == (0, 1)
        with pytest.raises(KeyError):
            g.throw(KeyError("k"))
        assert module.log == ["sent"]
        g = module.generated(1)
        next(g)
        g.close()
        assert module.log == ["sent", "left"]

        def delegates() -> Any:
            return (yield from module.generated(0))

        with pytest.raises(StopIteration, match="done"):
            next(delegates())


KEPT = """
class Data:
    def __init__(self):
        self.kept = (i for i in range(6))
    def batches(self):
        return self.kept

def averages():
    def made():
        total = 0
        while True:
            total += (yield total)
    begun = made()
    next(begun)
    return begun
"""


def test_a_generator_that_is_kept_for_the_next_loop_goes_on_in_it(make: Make) -> None:
    module = make(KEPT)
    text = "item: {group: job, each: '{m}:Data.batches'}\nsum: {group: job, each: '{m}:averages'}"
    with record(text=span_map(module, text)) as spans:
        data, got = module.Data(), []
        for last in (2, 5):
            for item in data.batches():
                got.append(item)
                if item == last:
                    break
        assert got == [0, 1, 2, 3, 4, 5]
        assert inspect.isgenerator(data.batches())
        assert [*data.batches()] == []
        running = module.averages()
        assert (running.send(2), running.send(3)) == (2, 5)
        running.close()
        with pytest.raises(StopIteration):
            next(running)
    assert spans.tree() == "item\n" * 6 + "sum\nsum"


def test_another_iterator_seems_to_be_what_it_was(module: Any) -> None:
    with _recording(module, "counting") as spans:
        items = module.counting(3)
        assert isinstance(items, module.Counting)
        assert (len(items), items.i, iter(items) is items) == (3, -1, True)
        assert next(items) == 0
        assert pickle.loads(pickle.dumps(items)).i == 0
        assert [*items] == [1, 2]
    assert spans.tree() == "item\nitem\nitem"


def test_a_list_goes_through_and_what_to_name_instead_is_said(module: Any, capsys: Any) -> None:
    with _recording(module, "listed") as spans:
        assert module.listed(2) == [0, 1]
    assert spans.tree() == ""
    assert capsys.readouterr().err.splitlines() == [
        f"autoinstr: each: {module.__name__}:listed returns a list, which is no iterator, and has no spans; "
        "name a generator that gives the items, or with 'function' what the loop calls for each"
    ]


def test_an_iterable_goes_through_and_its_iter_is_the_target(module: Any, capsys: Any) -> None:
    with _recording(module, "loader") as spans:
        loader = module.loader(2)
        assert type(loader) is module.Loader
        assert [*loader] == [0, 1]
        assert type(module.loader(1)) is module.Loader
    assert spans.tree() == ""
    said = capsys.readouterr().err
    assert (
        said.count(f"returns a Loader, which is no iterator, and has no spans; name {module.__name__}:Loader.__iter__")
        == 1
    )

    with _recording(module, "Loader.__iter__", ", attributes: {n: self.n}") as spans:
        loader = module.loader(2)
        for _ in range(2):  # epochs
            assert [module.body(x) for x in loader] == [0, 2]
        assert len(loader) == 2
    assert spans.tree() == 4 * "item n=2\n  body\n"


def test_inside_and_caller_are_those_of_the_loop(module: Any) -> None:
    def loop(target: str) -> None:
        step = 0
        for _ in getattr(module, target)(2):
            step += 1

    for target in ("generated", "counting"):
        more = f", attributes: {{step: caller.step}}, inside: {__name__}"
        with _recording(module, target, more) as spans:
            loop(target)
            list(module.iterated(2))
        assert spans.tree() == "item step=0\nitem step=1"


def test_async_generator_left_early(module: Any) -> None:
    problems: list[Any] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        async for _ in module.agenerated(3):
            break
        await asyncio.sleep(0)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # its finalizer's, which closes it
        g = module.agenerated(3)
        await g.__anext__()
        await g.aclose()
        kept.append(module.agenerated(3))
        await kept[0].__anext__()

    kept: list[Any] = []
    with _recording(module, "agenerated") as spans:
        asyncio.run(run())
    assert spans.tree() == "item\nitem\nitem"
    assert module.log == ["over"] * 3
    assert problems == []

"""Undoing puts the very object back, for every kind of callable, and whoever else wraps there goes on working."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import inspect
import pickle
from typing import Any

import pytest
import wrapt
from toy_packages import Write, spans_map, states

from autoinstr.testing import record

KINDS = """
import contextlib, functools

def function(x=1): return x
async def coroutine(x=1): return x
def generator(x=1):
    yield x
async def agenerator(x=1):
    yield x
@functools.lru_cache(maxsize=None)
def cached(x=1): return x
partial = functools.partial(function, 1)
@functools.singledispatch
def dispatched(x=1): return x
@dispatched.register
def _(x: str): return "text"
@contextlib.contextmanager
def block(x=1):
    yield x

class Callable:
    def __call__(self, x=1): return x
called = Callable()
bound = Callable().__call__
builtin = len

class Base:
    def inherited(self, x=1): return x
    async def inherited_coroutine(self, x=1): return x
    @classmethod
    def inherited_class_method(cls, x=1): return (cls.__name__, x)
    @staticmethod
    def inherited_static(x=1): return x
    @property
    def inherited_property(self): return 1

class Owner(Base):
    def __init__(self, x=1): self.x = x
    def method(self, x=1): return x
    @classmethod
    def class_method(cls, x=1): return x
    @staticmethod
    def static(x=1): return x
    @property
    def prop(self): return 1
    @functools.cached_property
    def cached_prop(self): return 1
    @functools.lru_cache(maxsize=None)
    def cached_method(self, x=1): return x
    partial_method = functools.partialmethod(method, 1)
    handler = Callable()
    class Inner:
        def deep(self): return 1

class Manager:
    def __enter__(self): return 1
    def __exit__(self, *exc): return None
"""

TARGETS = (
    "function coroutine generator agenerator cached partial dispatched called bound builtin Owner.__init__ "
    "Owner.method Owner.class_method Owner.static Owner.prop Owner.cached_prop Owner.cached_method "
    "Owner.partial_method Owner.handler Owner.Inner.deep Owner.inherited Owner.inherited_coroutine "
    "Owner.inherited_class_method Owner.inherited_static Owner.inherited_property"
).split()


def load(name: str) -> Any:
    return importlib.import_module(name)


def namespaces(module: Any) -> dict[str, dict[str, Any]]:
    """Every namespace of the module, and the class of every object in it."""
    found = {"": dict(vars(module))}
    waiting = [value for value in vars(module).values() if isinstance(value, type)]
    while waiting:
        cls = waiting.pop()
        found[cls.__qualname__] = dict(vars(cls))
        waiting += [value for value in vars(cls).values() if isinstance(value, type)]
    return found | {"classes": {name: type(value) for name, value in vars(module).items()}}


def use(module: Any, path: str) -> Any:
    """Call the target as its user would."""
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, module)
    instance = owner if owner is module else owner()
    if name == "__init__":
        return instance.x
    got = getattr(instance, name)
    result = got([1]) if path in ("builtin", "dispatched") else got() if callable(got) else got
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        return next(result)
    if inspect.isasyncgen(result):
        return asyncio.run(anext(result))  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize("path", TARGETS)
def test_every_kind(path: str, write: Write) -> None:
    write(toy__work=KINDS)
    work = load("toy.work")
    before = namespaces(work)
    expected = use(work, path)
    getattr(work.cached, "cache_clear", id)()
    with record(text=spans_map(f"toy.f: {{function: toy.work:{path}}}")) as spans:
        assert states(spans) == {f"toy.work:{path}": "applied"}
        assert use(work, path) == expected
        assert len(spans.spans) == 1
    assert namespaces(work) == before
    assert use(work, path) == expected
    with record(text=spans_map(f"toy.f: {{function: toy.work:{path}}}")) as spans:
        assert use(work, path) == expected
    assert len(spans.spans) == 1
    assert namespaces(work) == before


@pytest.mark.parametrize("path", ["block", "Manager"])
def test_every_kind_of_block(path: str, write: Write) -> None:
    write(toy__work=KINDS)
    work = load("toy.work")
    before = namespaces(work)
    with record(text=spans_map(f"toy.f: {{block: toy.work:{path}}}")) as spans, getattr(work, path)():
        pass
    assert len(spans.spans) == 1
    assert namespaces(work) == before


def test_what_a_callable_offers_beside_calls_stays(write: Write) -> None:
    write(toy__work=KINDS)
    work = load("toy.work")
    maps = spans_map(*(f"toy.{name}: {{function: toy.work:{name}}}" for name in ("cached", "dispatched", "called")))
    with record(text=maps):
        assert work.dispatched("a") == "text"
        work.cached(3)
        assert work.cached.cache_info().currsize == 1
        work.cached.cache_clear()
        assert isinstance(work.called, work.Callable)
        assert type(pickle.loads(pickle.dumps(work.called))) is work.Callable
        assert type(copy.deepcopy(work.called)) is work.Callable
    maps = spans_map("toy.f: {function: toy.work:Owner.inherited_coroutine}")
    with record(text=maps):
        assert inspect.iscoroutinefunction(work.Owner.inherited_coroutine)


INHERITED = """
class Base:
    def run(self): return 'base'
class Below(Base): pass
class Mixin(Base):
    def run(self): return 'mixin'
class Both(Below, Mixin): pass
class WithNew:
    def __new__(cls, x): return object.__new__(cls)
class Plain(WithNew): pass
"""


def test_an_inherited_method_follows_the_order_of_inheritance_at_every_call(write: Write) -> None:
    write(toy__work=INHERITED)
    maps = spans_map("toy.f: {function: toy.work:Below.run}", "toy.g: {function: toy.work:Plain.__init__}")
    with record(text=maps) as spans:
        work = load("toy.work")
        assert (work.Below().run(), work.Both().run()) == ("base", "mixin")
        assert spans.tree() == "toy.f\ntoy.f"
        work.Base.run = lambda self: "patched later"
        assert work.Below().run() == "patched later"
        assert work.Below.run(object()) == "base"  # as any function, of anything
        work.Plain(1)


def by_wrapt(function: Any, log: list[Any]) -> Any:
    def theirs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        log.append(instance)
        return wrapped(*args, **kwargs)

    return wrapt.FunctionWrapper(function, theirs)


@pytest.mark.parametrize("name", ["method", "class_method", "static", "inherited"])
def test_beside_wrapts_wrappers(name: str, write: Write) -> None:
    """Other instrumentation wraps by wrapt: what it is told of the instance stays right, and it stays there."""
    write(toy__work=KINDS)
    work = load("toy.work")
    log: list[Any] = []
    owner = work.Base if name == "inherited" else work.Owner
    theirs = by_wrapt(vars(owner)[name], log)
    setattr(owner, name, theirs)
    instance = work.Owner()
    instance_told = {"method": instance, "class_method": work.Owner, "static": None, "inherited": instance}[name]

    getattr(instance, name)(5)
    assert log == [instance_told]
    with record(text=spans_map(f"toy.f: {{function: toy.work:Owner.{name}}}")) as spans:
        assert getattr(instance, name)(5) == 5
        assert log == [instance_told] * 2
        if name == "class_method":
            assert work.Owner.class_method(6) == 6
    assert len(spans.spans) == (2 if name == "class_method" else 1)
    assert vars(owner)[name] is theirs

    # the other way round: they wrap ours, we go, they stay
    with record(text=spans_map(f"toy.f: {{function: toy.work:Owner.{name}}}")) as spans:
        outer = by_wrapt(inspect.getattr_static(work.Owner, name), log)
        setattr(work.Owner, name, outer)
        assert getattr(instance, name)(5) == 5
        assert len(spans.spans) == 1
    log.clear()
    assert vars(work.Owner)[name] is outer
    assert getattr(instance, name)(5) == 5
    assert log == [instance_told] * 2
    assert len(spans.spans) == 1


def test_nested_recordings_may_end_in_any_order(write: Write) -> None:
    write(toy__work=KINDS)
    work = load("toy.work")
    before = namespaces(work)
    maps = spans_map(
        "toy.f: {function: toy.work:function}",
        "toy.m: {function: toy.work:Owner.method}",
        "toy.c: {function: toy.work:called}",
        "toy.i: {function: toy.work:Owner.inherited}",
    )
    outer, inner = record(text=maps), record(text=maps)
    first, second = outer.__enter__(), inner.__enter__()

    def use_all() -> list[int]:
        first.clear()
        second.clear()
        for path in ("function", "Owner.method", "called", "Owner.inherited"):
            use(work, path)
        return [len(first.spans), len(second.spans)]

    assert use_all() == [4, 4]
    outer.__exit__(None, None, None)
    assert use_all() == [0, 4]
    inner.__exit__(None, None, None)
    assert use_all() == [0, 0]
    assert namespaces(work) == before

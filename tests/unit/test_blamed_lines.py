"""Whom `warnings.warn(stacklevel=2)` and `logging` with a `stacklevel` blame: whoever called, and never a wrapper.

The place is printed, filters choose by its module, and one place is warned of once.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path

import pytest
from toy_packages import Write, spans_map, states

from autoinstr.testing import record

WORK = """
import contextlib, functools, logging, warnings

def speak(level):
    warnings.warn("warned", DeprecationWarning, stacklevel=level)
    logging.getLogger("toy").warning("logged", stacklevel=level)

def plain(): speak(3)
def deeper(): inner()
def inner(): speak(4)
async def coroutine(): speak(3)
def generator():
    speak(3)
    yield
    speak(3)
async def async_generator():
    speak(3)
    yield
    speak(3)

def decorator(function):
    @functools.wraps(function)
    def decorated(*args, **kwargs):
        return function(*args, **kwargs)
    return decorated

@decorator
async def decorated(): speak(3)
@decorator
def decorated_generator():
    speak(3)
    yield

class Base:
    def method(self): speak(3)
    @property
    def prop(self): speak(3)
    @classmethod
    def of_class(cls): speak(3)
    def inherited(self): speak(3)
    @property
    def inherited_prop(self): speak(3)
    def __init_subclass__(cls): speak(3)

class Child(Base): pass
class Called:
    def __call__(self): speak(3)
called = Called()

@contextlib.contextmanager
def block(label):
    speak(4)
    yield
    speak(4)
@contextlib.asynccontextmanager
async def async_block(label):
    speak(4)
    yield
    speak(4)
class Block:
    def __enter__(self): speak(3)
    def __exit__(self, *exception): speak(3)
class Shared:
    def __enter__(self): speak(3)
    def __exit__(self, *exception): speak(3)
def shared(label): return Shared()

def items():
    speak(3)
    yield 1
    speak(3)
class Items:
    def __iter__(self): return self
    def __next__(self): speak(3); raise StopIteration
def made(): return Items()

def begin(): speak(3)
def end(): speak(3)
def log_metrics(metrics): speak(3)
def request(headers=None): speak(3)
def adding(): speak(3)
async def adding_later(): speak(3)
"""

USE = """
import asyncio, concurrent.futures
from toy import work

def use():
    work.plain()
    work.deeper()
    list(work.generator())
    list(work.decorated_generator())
    asyncio.run(awaiting())
    base, child = work.Base(), work.Child()
    base.method()
    base.prop
    work.Base.of_class()
    child.inherited()
    child.inherited_prop
    work.called()
    type("Later", (work.Base,), {})
    with work.block("a"):
        pass
    with work.Block():
        pass
    with work.shared("a"):
        pass
    for _ in work.items():
        pass
    for _ in work.made():
        pass
    work.begin()
    work.end()
    work.log_metrics({"loss": 1})
    work.request()
    work.adding()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(work.begin).result()

async def awaiting():
    await work.coroutine()
    await work.decorated()
    await work.adding_later()
    async for _ in work.async_generator():
        pass
    async with work.async_block("a"):
        pass
"""

MAP = (
    spans_map(
        "toy.use: {function: toy.use:use, threads: true}",
        *(
            f"toy.{name}: {{function: toy.work:{target}}}"
            for name, target in {
                "plain": "plain",
                "deeper": "deeper",
                "coroutine": "coroutine",
                "generator": "generator",
                "async_generator": "async_generator",
                "decorated": "decorated",
                "decorated_generator": "decorated_generator",
                "prop": "Base.prop",
                "of_class": "Base.of_class",
                "inherited": "Child.inherited",
                "inherited_prop": "Child.inherited_prop",
                "called": "called",
            }.items()
        ),
        "toy.method: {function: toy.work:Base.method, subclasses: true}",
        "toy.block: {block: toy.work:block(label=a)}",
        "toy.async_block: {block: toy.work:async_block(label=a)}",
        "toy.class_block: {block: toy.work:Block}",
        "toy.shared: {block: toy.work:shared(label=a)}",
        "toy.items: {each: toy.work:items}",
        "toy.made: {each: toy.work:made}",
        "toy.pair: {between: {begin: toy.work:begin, end: toy.work:end}}",
    )
    + """
  toy.with_more:
    - {group: job, function: toy.use:use}
    - {group: job, attributes_from: [toy.work:adding, toy.work:adding_later], attributes: {result: outcome}}
    - {group: job, attributes_from: toy.work:adding, attributes: {constant: 1}}
metrics:
  toy.work:log_metrics: {values: args.metrics, series: {toy.loss: {from: loss}}}
arguments:
  toy.work:request: {group: job, add: {headers: trace_headers}}
"""
)


def spoken(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Who is blamed for everything that `use` has said, in order."""
    use = importlib.import_module("toy.use").use
    caplog.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        use()
    by_logging = [f"{Path(r.pathname).name}:{r.lineno}" for r in caplog.records if r.name == "toy"]
    return [f"{Path(w.filename).name}:{w.lineno}" for w in warned] + (
        by_logging if sys.version_info >= (3, 11) else []  # before, logging passes over its own frames only
    )


def test_warnings_and_logging_blame_the_same_lines(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "toy")
    write(toy__work=WORK, toy__use=USE)
    without = spoken(caplog)
    with record(text=MAP) as spans:
        assert spoken(caplog) == without
        assert set(states(spans).values()) == {"applied"}
    assert len(without) >= 34


def test_a_filter_by_module_still_chooses(write: Write) -> None:
    write(toy__work=WORK, toy__use="from toy import work\ndef use(): work.plain()\n")
    with record(text=spans_map("toy.plain: {function: toy.work:plain}")) as spans:
        use = importlib.import_module("toy.use").use
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore")
            warnings.filterwarnings("error", module=r"toy\.use$")
            with pytest.raises(DeprecationWarning, match="warned"):
                use()
    assert spans.tree() == "toy.plain !DeprecationWarning"


def test_a_traceback_shows_the_lines_of_our_files(write: Write) -> None:
    import traceback

    write(toy__work="def f(): raise ValueError('no')\n")
    with record(text=spans_map("toy.f: {function: toy.work:f}")):
        try:
            importlib.import_module("toy.work").f()
        except ValueError as error:
            ours = [f for f in traceback.extract_tb(error.__traceback__) if f.name == "wrapper"]
    assert [f.line for f in ours] == ["result = function(*held.pop(), **held.pop())"]
    assert Path(ours[0].filename).resolve().name == "functions.py"

"""What a traced function lets go of is freed at the same moment as without us: a batch on a GPU is not held longer."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

import pytest
from made_modules import Make, span_map

from autoinstr.testing import record

SOURCE = """
import functools
import weakref

class Batch:
    pass

alive = []

def function(batch, *, more=None):
    watch, also = weakref.ref(batch), more and weakref.ref(more)
    del batch, more
    alive.append((watch() is not None, also and also() is not None))

def decorator(function):
    @functools.wraps(function)
    def wrapped(batch):
        watch = weakref.ref(batch)
        del batch
        alive.append(watch() is not None)
    return wrapped

@decorator
def decorated(batch):
    yield

async def coroutine(batch):
    watch = weakref.ref(batch)
    del batch
    alive.append(watch() is not None)

def generator(batch):
    watch = weakref.ref(batch)
    del batch
    yield watch() is not None

async def async_generator(batch):
    watch = weakref.ref(batch)
    del batch
    yield watch() is not None

class Base:
    def inherited(self, batch):
        watch = weakref.ref(batch)
        del batch
        alive.append(watch() is not None)

class Trainer(Base):
    def method(self, batch):
        watch = weakref.ref(batch)
        del batch
        alive.append(watch() is not None)
    @classmethod
    def of_class(cls, batch):
        watch = weakref.ref(batch)
        del batch
        alive.append(watch() is not None)

def raises(batch):
    raises.watch = weakref.ref(batch)
    del batch
    raise ValueError("no good")

def gives():
    result = Batch()
    gives.watch = weakref.ref(result)
    return result
"""
TARGETS = (
    *("function", "decorated", "coroutine", "generator", "async_generator"),
    *("Trainer.method", "Trainer.of_class", "Trainer.inherited", "raises", "gives"),
)
JOINS = ("function: '{t}'", "function: '{t}', attributes: {kind: args.batch | type, end: outcome}", "each: '{t}'")


def traced(module: types.ModuleType, join: str) -> str:
    entries = (f"s{n}: {{group: job, {join.replace('{t}', '{m}:' + target)}}}" for n, target in enumerate(TARGETS))
    return span_map(module, "\n".join(entries))


def lifetimes(m: Any) -> list[Any]:
    """What was alive, in this order of uses."""
    m.alive.clear()
    m.function(m.Batch())
    m.function(m.Batch(), more=m.Batch())
    m.function(batch=m.Batch())
    m.decorated(m.Batch())
    m.Trainer().method(m.Batch())
    m.Trainer.of_class(m.Batch())
    m.Trainer().inherited(m.Batch())
    asyncio.run(m.coroutine(m.Batch()))
    m.alive += m.generator(m.Batch())

    async def items() -> None:
        async for item in m.async_generator(m.Batch()):
            m.alive.append(item)

    asyncio.run(items())
    try:
        m.raises(m.Batch())
    except ValueError:
        m.alive.append(m.raises.watch() is not None)
    kept = m.gives()
    m.alive.append(m.gives.watch() is kept)
    del kept
    m.alive.append(m.gives.watch() is not None)
    return list(m.alive)


@pytest.mark.skipif(sys.version_info[:2] == (3, 11), reason="there a call that spreads a tuple holds what is in it")
@pytest.mark.parametrize("join", JOINS)
def test_arguments_and_results_die_as_without_us(join: str, make: Make) -> None:
    module = make(SOURCE)
    before = lifetimes(module)
    with record(text=traced(module, join)):
        assert lifetimes(module) == before


@pytest.mark.parametrize("join", JOINS)
def test_what_has_raised_or_is_driven_holds_no_argument(join: str, make: Make) -> None:
    module: types.ModuleType = make(SOURCE)
    with record(text=traced(module, join)):
        assert lifetimes(module)[-6:] == [False, False, False, False, True, False]

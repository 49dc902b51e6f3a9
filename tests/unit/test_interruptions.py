"""What a signal handler of the program raises while our own code runs is the program's: a time limit, `sys.exit`."""

from __future__ import annotations

import functools
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from made_modules import Make, span_map
from opentelemetry.sdk.trace import SpanProcessor

from autoinstr.testing import record

SOURCE = """
calls = []

def step(batch):
    calls.append(batch)
    return "done"
"""


class Limit(Exception):
    pass


def reach_the_limit(number: int, frame: Any) -> None:
    raise Limit


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        raise Limit

    def method(self, number: int, frame: Any) -> None:
        raise Limit


def leave(number: int, frame: Any) -> None:
    sys.exit(3)


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR1)


class Batch:
    """What a map reads of it is where the signal comes in."""

    @property
    def size(self) -> int:
        interrupt()
        return 1


class Processor(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if when == "start":
            interrupt()

    def on_end(self, span: Any) -> None:
        if when == "end":
            interrupt()


when = ""


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler) and None
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def module(make: Make) -> types.ModuleType:
    return make(SOURCE)


@pytest.mark.parametrize(
    ("handler", "raised"),
    [
        (reach_the_limit, Limit),
        (Handler(), Limit),
        (Handler().method, Limit),
        (functools.partial(reach_the_limit), Limit),
        (leave, SystemExit),
    ],
)
def test_it_passes_where_a_value_is_read(handler: Any, raised: Any, module: Any, handled: Any) -> None:
    handled(handler)
    text = span_map(module, "it: {group: job, function: '{m}:step', attributes: {n: args.batch.size}}")
    with record(text=text), pytest.raises(raised):
        module.step(Batch())


@pytest.mark.parametrize("moment", ["start", "end"])
def test_it_passes_where_a_span_begins_or_ends(
    moment: str, module: Any, handled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled(reach_the_limit)
    monkeypatch.setattr(sys.modules[__name__], "when", moment)
    with record(text=span_map(module, "it: {group: job, function: '{m}:step'}")) as spans:
        spans.provider.add_span_processor(Processor())
        with pytest.raises(Limit):
            module.step(1)
    assert module.calls == ([] if moment == "start" else [1])


def test_what_a_value_raises_by_itself_does_not(module: Any, handled: Any) -> None:
    handled(reach_the_limit)

    class Raises:
        @property
        def size(self) -> int:
            raise Limit

    text = span_map(module, "it: {group: job, function: '{m}:step', attributes: {n: args.batch.size}}")
    with record(text=text) as spans:
        assert module.step(Raises()) == "done"
    assert spans.tree() == "it"

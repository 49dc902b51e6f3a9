"""`coalesce`: the blocks of a poll loop, or of a step that is started over, are one span."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from made_modules import Make, span_map
from opentelemetry.sdk.trace import SpanProcessor
from test_journal_format import parse

from autoinstr.journal.writer import JournalProcessor
from autoinstr.spans import opening
from autoinstr.testing import record

TIMER = """
from contextlib import contextmanager

class Timer:
    @contextmanager
    def time(self, label):
        yield

timer = Timer()

def poll(key=0):
    return key

async def poll_async(key=0):
    return key

def job(loop):
    return loop()
"""

ENTRIES = """
my.job: {group: job, function: "{m}:job"}
my.step:
  group: step
  block: "{m}:Timer.time(label=step)"
  attributes: {my.iteration: caller.step}
  coalesce: {match: caller.step}
my.wait:
  group: efficiency
  block: "{m}:Timer.time(label=poll)"
  coalesce: {match: caller.step, count: my.polls}
my.train: {group: policy_update, block: "{m}:Timer.time(label=train)"}
my.poll:
  group: efficiency
  function: ["{m}:poll", "{m}:poll_async"]
  coalesce: {match: args.key, count: my.polls}
"""


def polls(module: Any, step: int, times: int) -> None:
    for _ in range(times):
        with module.timer.time("poll"):
            assert step >= 0


def test_a_wait_is_one_span_until_something_else_is_opened(make: Make) -> None:
    module = make(TIMER)
    with record(text=span_map(module, ENTRIES)) as spans:
        for step in (1, 2):
            with module.timer.time("step"):
                polls(module, step, 40)
                with module.timer.time("train"):
                    pass
                polls(module, step, 1)
    assert (
        spans.tree()
        == """
        my.step my.iteration=1
          my.wait [idle] my.polls=40
          my.train [productive]
          my.wait [idle] my.polls=1
        my.step my.iteration=2
          my.wait [idle] my.polls=40
          my.train [productive]
          my.wait [idle] my.polls=1
        """
    )


def test_a_step_that_is_started_over_is_one_step_and_its_wait_one_wait(make: Make) -> None:
    """The loop leaves its step by `continue` as long as there is nothing to train on."""
    module = make(TIMER)

    def loop() -> None:
        step, starved = 0, 0
        while step < 3:
            with module.timer.time("step"):
                if starved < 10 * step:
                    with module.timer.time("poll"):
                        starved += 1
                    continue
                with module.timer.time("train"):
                    pass
            step, starved = step + 1, 0

    with record(text=span_map(module, ENTRIES)) as spans:
        module.job(loop)
    assert (
        spans.tree()
        == """
        my.job
          my.step my.iteration=0
            my.train [productive]
          my.step my.iteration=1
            my.wait [idle] my.polls=10
            my.train [productive]
          my.step my.iteration=2
            my.wait [idle] my.polls=20
            my.train [productive]
        """
    )


def test_what_is_not_the_same_is_never_one_span(make: Make) -> None:
    """Waits of two steps, with the spans between them switched off; and blocks without the value that tells."""
    module = make(TIMER)
    with record(text=span_map(module, ENTRIES), groups="efficiency") as spans:
        for step in (1, 2):
            with module.timer.time("step"):
                polls(module, step, 3)
                with module.timer.time("train"):
                    pass
        del step
        for _ in range(3):
            with module.timer.time("poll"):
                pass
    assert [span.attributes.get("my.polls") for span in spans.named("my.wait")] == [3, 3, None, None, None]


def test_it_ends_as_of_its_last_block(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make(TIMER)
    clock = [time.time_ns()]
    monkeypatch.setattr(opening, "time_ns", lambda: clock[0])

    def loop() -> None:
        for _ in range(2):
            clock[0] += 10**9
            polls(module, 1, 1)
        ended.append(clock[0])
        clock[0] += 10**9

    ended: list[int] = []
    with record(text=span_map(module, ENTRIES)) as spans:
        module.job(loop)
        assert spans.tree() == "my.job\n  my.wait [idle] my.polls=2"
    (wait,) = spans.named("my.wait")
    assert wait.end_time == ended[0]


def test_an_exception_ends_it_and_the_next_block_is_a_new_span(make: Make) -> None:
    module = make(TIMER)
    step = 1

    def loop() -> None:
        polls(module, step, 2)
        with pytest.raises(KeyError), module.timer.time("poll"):
            raise KeyError(step)
        polls(module, step, 3)

    with record(text=span_map(module, ENTRIES)) as spans:
        module.job(loop)
    assert (
        spans.tree()
        == """
        my.job
          my.wait [idle] my.polls=3 !KeyError
          my.wait [idle] my.polls=3
        """
    )


def test_each_thread_and_each_task_has_its_own_wait(make: Make) -> None:
    module = make(TIMER)

    async def wait(times: int) -> None:
        step = 1
        for _ in range(times):
            with module.timer.time("poll"):
                await asyncio.sleep(0)
                assert step

    async def both() -> None:
        await asyncio.gather(wait(5), wait(7))

    def threads() -> None:
        pair = [threading.Thread(target=polls, args=(module, 1, times)) for times in (3, 4)]
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()

    with record(text=span_map(module, ENTRIES)) as spans:
        module.job(lambda: asyncio.run(both()))
    assert spans.tree() == "my.job\n  my.wait [idle] my.polls=5\n  my.wait [idle] my.polls=7"
    with record(text=span_map(module, ENTRIES)) as spans:
        threads()
    assert sorted(span.attributes["my.polls"] for span in spans.named("my.wait")) == [3, 4]


def test_calls_of_a_function_too(make: Make) -> None:
    module = make(TIMER)

    async def many() -> None:
        for key in (1, 1, 1, 2):
            await module.poll_async(key)

    with record(text=span_map(module, ENTRIES)) as spans:
        for key in (1, 1, 2):
            module.poll(key)
        module.job(lambda: asyncio.run(many()))
    assert (
        spans.tree()
        == """
        my.poll [idle] my.polls=2
        my.poll [idle] my.polls=1
        my.job
          my.poll [idle] my.polls=3
          my.poll [idle] my.polls=1
        """
    )


def test_nothing_of_a_wait_is_current_between_its_blocks_and_nothing_is_kept(make: Make) -> None:
    import gc

    from opentelemetry import context, trace

    def rests() -> int:
        gc.collect()
        return sum(type(one) is opening.Rest for one in gc.get_objects())

    module, rests_before = make(TIMER), rests()
    with record(text=span_map(module, ENTRIES)):
        before, others = context.get_current(), set(opening._loose)
        polls(module, 1, 2)
        assert context.get_current() is before
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert len(set(opening._loose) - others) == 1
        for key in range(5000):
            module.poll(key)
        assert len(set(opening._loose) - others) == 1
    assert set(opening._loose) <= others
    assert rests() <= rests_before


def test_it_is_on_record_from_its_first_block_on(make: Make) -> None:
    """So that a process that is killed shows its wait as open, and since when."""

    class Record(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            said.append(f"start {span.name}")

        def on_end(self, span: Any) -> None:
            said.append(f"end {span.name}")

    said: list[str] = []
    module = make(TIMER)
    with record(text=span_map(module, ENTRIES)) as spans:
        spans.provider.add_span_processor(Record())
        step = 1
        with module.timer.time("poll"):
            said.append("first poll")
        with module.timer.time("poll"):
            said.append(f"second poll of step {step}")
        with module.timer.time("train"):
            said.append("train")
    assert said == [
        "start my.wait",
        "first poll",
        "second poll of step 1",
        "end my.wait",
        "start my.train",
        "train",
        "end my.train",
    ]


def test_the_journal_has_each_block_at_once_but_of_polls_one_a_second(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [10**18]
    monkeypatch.setattr(opening, "time_ns", lambda: clock[0])
    module = make(TIMER)

    def lines() -> list[str]:
        """What the journal says of the wait, and when it would have ended."""
        found = []
        assert journal.path is not None
        for text in journal.path.read_text().splitlines():
            line = parse(text)
            if hasattr(line, "resource_spans"):
                (span,) = line.resource_spans[0].scope_spans[0].spans
                found.append(f"end {span.end_time_unix_nano - 10**18}")
                continue
            (record,) = line.resource_logs[0].scope_logs[0].log_records
            what = record.event_name.rpartition(".")[2]
            if record.event_name == "autoinstr.span.rest":
                (span,) = parse(record.body.string_value).resource_spans[0].scope_spans[0].spans
                polls = next(a.value.int_value for a in span.attributes if a.key == "my.polls")
                what = f"rest {span.end_time_unix_nano - 10**18} polls {polls}"
            found.append(what)
        return found[1:]  # the process's own comes first

    with record(text=span_map(module, ENTRIES), groups="efficiency") as spans:
        journal = JournalProcessor(tmp_path, "r")
        spans.provider.add_span_processor(journal)
        first = ["start", "rest 1 polls 1"]
        for now, more in (
            (1, []),
            (2, ["start"]),
            (3, []),
            (10**9, []),
            (10**9 + 1, ["rest 1000000001 polls 5"]),
            (10**9 + 2, ["start"]),
        ):
            clock[0] = 10**18 + now
            polls(module, 1, 1)
            first += more
            assert lines() == first
    assert lines() == [*first, "end 1000000002"]


def test_a_processor_that_cannot_hear_of_it_costs_nothing(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(SpanProcessor):
        def on_rest(self, span: Any) -> None:
            """It takes too few arguments."""

    module = make(TIMER)
    with record(text=span_map(module, ENTRIES)) as spans:
        spans.provider.add_span_processor(Broken())
        polls(module, 1, 5)
    assert [span.attributes["my.polls"] for span in spans.named("my.wait")] == [5]
    assert capsys.readouterr().err.count("a processor could not be told of a span at rest") == 1


def test_a_forked_child_records_no_rest_of_its_parents_wait(make: Make) -> None:
    from autoinstr.bridges.processes import OwnSpans

    module = make(TIMER)
    heard: list[str] = []

    class Hears(SpanProcessor):
        def on_rest(self, span: Any, since_ns: int) -> None:
            heard.append("rest")

        def on_resume(self, span: Any) -> None:
            heard.append("resume")

    with record(text=span_map(module, ENTRIES)) as spans:
        spans.provider.add_span_processor(Hears())
        polls(module, 1, 1)
        assert heard == ["rest"]
        active: Any = spans.provider._active_span_processor
        own = active._span_processors
        active._span_processors = (OwnSpans(own),)
        polls(module, 1, 2)
        assert heard == ["rest"]
        polls(module, 2, 2)
        assert heard == ["rest", "rest", "resume"]
        active._span_processors = own


def test_a_task_that_is_cancelled_ends_its_wait(make: Make) -> None:
    module = make(TIMER)
    step = 1

    async def waits(third: asyncio.Event) -> None:
        for _ in range(2):
            with module.timer.time("poll"):
                await asyncio.sleep(0)
                assert step
        with module.timer.time("poll"):
            third.set()
            await asyncio.Event().wait()

    async def main() -> None:
        third = asyncio.Event()
        task = asyncio.create_task(waits(third))
        await third.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with record(text=span_map(module, ENTRIES)) as spans:
        module.job(lambda: asyncio.run(main()))
    (wait,) = spans.named("my.wait")
    assert wait.attributes is not None
    assert wait.attributes["my.polls"] == 3
    assert not wait.status.is_ok

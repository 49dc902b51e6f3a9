"""`threads: true`: threads that are started while the span is open continue it, and no others do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from autoinstr.testing import record

SOURCE = """
def work(): pass
def setup(start): start()
"""
MAP = """
map: t
package: {m}
spans:
  setup: {{group: setup, function: '{m}:setup'{threads}}}
  work: {{group: step, function: '{m}:work'}}
"""
INSIDE, OUTSIDE = "setup\n  work", "setup\nwork"

Make = Callable[..., Any]


def by_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "run" not in vars(thread), "a thread object is left as it came"


def by_subclass(work: Callable[[], None]) -> None:
    class Mine(threading.Thread):
        def run(self) -> None:
            work()

    thread = Mine()
    thread.start()
    thread.join()


def by_pool(work: Callable[[], None]) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def by_map(work: Callable[[], None]) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        list(pool.map(lambda _: work(), [1]))


def by_executor(work: Callable[[], None]) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)

    asyncio.run(main())


@pytest.mark.parametrize("start", [by_thread, by_subclass, by_pool, by_map, by_executor])
@pytest.mark.parametrize(("threads", "tree"), [(", threads: true", INSIDE), ("", OUTSIDE)])
def test_a_thread_continues_the_span_where_the_map_asks(
    make: Make, start: Callable[[Callable[[], None]], None], threads: str, tree: str
) -> None:
    module = make(SOURCE)
    with record(text=MAP.format(m=module.__name__, threads=threads)) as spans:
        module.setup(lambda: start(module.work))
    assert spans.tree() == tree


@pytest.mark.parametrize("threads", [", threads: true", ""])
def test_to_thread_carries_the_context_by_itself(make: Make, threads: str) -> None:
    module = make(SOURCE)
    with record(text=MAP.format(m=module.__name__, threads=threads)) as spans:
        module.setup(lambda: asyncio.run(asyncio.to_thread(module.work)))  # type: ignore[arg-type]
    assert spans.tree() == INSIDE


def test_a_pool_that_outlives_the_span_forgets_it(make: Make) -> None:
    module = make(SOURCE)
    with (
        record(text=MAP.format(m=module.__name__, threads=", threads: true")) as spans,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        module.setup(lambda: pool.submit(module.work).result())
        pool.submit(module.work).result()
    assert spans.tree() == "setup\n  work\nwork"


def test_results_and_exceptions_pass_and_the_originals_come_back(make: Make) -> None:
    module = make(SOURCE)
    originals = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit
    with (
        record(text=MAP.format(m=module.__name__, threads=", threads: true")),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        assert threading.Thread.start is not originals[0]
        got: list[Any] = []
        module.setup(lambda: got.append(pool.submit(divmod, 7, 2).result()))
        module.setup(lambda: got.append(type(pool.submit(divmod, 7, 0).exception())))
        assert got == [(3, 1), ZeroDivisionError]
    assert (threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit) == originals

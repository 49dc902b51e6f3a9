"""Nothing lost: kills, preemption, collectors that are dead, slow or silent, bursts.

`AUTOINSTR_TEST_KILLS=200` kills as often as that, at random; `python tests/kills.py 200` prints figures.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kills import copy_example, every_state, kill_after, kill_many, kill_one
from otlp_receiver import Receiver
from runs import HUNG, clean_environment, journal_spans, launch, our_lines, run, wait_for

MAP = """
map: work
package: work
spans:
  work.step:
    group: step
    function: work:step
  work.item:
    group: rollout
    function: work:item
"""

WORK = """
import signal, sys, time

def item(n):
    return n

def step(seconds=0.0, items=0):
    for n in range(items):
        item(n)
    time.sleep(seconds)
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a package `work`, its map, and the environment for it in `AUTOINSTR_SPAN_MAPS`."""
    return write_work(tmp_path)


def write_work(folder: Path) -> Path:
    (folder / "work.py").write_text(WORK)
    (folder / "work.yaml").write_text(MAP)
    return folder


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {
        "AUTOINSTR_SPAN_MAPS": str(folder / "work.yaml"),
        "AUTOINSTR_SPAN_GROUPS": "all",
        "AUTOINSTR_BUILTIN_MAPS": "none",
        **more,
    }


def start(folder: Path, source: str, **env: str) -> subprocess.Popen[str]:
    """A traced script that is running: it has printed `ready`."""
    (folder / "script.py").write_text(source)
    process = launch("script.py", cwd=folder, **settings(folder, **env))
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        process.kill()
        raise AssertionError(f"{line}\n{process.communicate()[1]}")
    return process


def sigterm(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Send SIGTERM; the exit status, what was printed and said. Raises where the process hangs."""
    process.send_signal(signal.SIGTERM)
    try:
        out, err = process.communicate(timeout=HUNG)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def direct(receiver: Receiver, protocol: str = "grpc") -> dict[str, str]:
    """An environment that sends to the receiver, and so seldom that only a flush gets anything there."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_BSP_SCHEDULE_DELAY": "60000",
    }


# -- kill -9 --------------------------------------------------------------------------------------------


def test_killed_after_any_record_or_in_it_no_finished_span_is_missing_and_every_open_one_is_named(
    tmp_path: Path,
) -> None:
    states = every_state(copy_example(tmp_path), tmp_path / "run")
    assert [problem for one in states for problem in one.problems] == []
    assert sum(one.torn for one in states) > 50
    assert max(one.finished for one in states) > 20
    assert max(one.open for one in states) > 2


def test_killed_at_any_moment_no_finished_span_is_missing_and_every_open_one_is_named() -> None:
    if "AUTOINSTR_TEST_KILLS" in os.environ:
        killed = kill_many(kill_one, range(int(os.environ["AUTOINSTR_TEST_KILLS"])))
    else:
        killed = kill_many(kill_after, (1, 2, 5, 20, 31, 53, 200, 501))
    assert [problem for one in killed for problem in one.problems] == []
    assert sum(one.finished for one in killed) > 0
    assert sum(one.open for one in killed) > 0


# -- SIGTERM --------------------------------------------------------------------------------------------

BUSY = "import work\nwork.step()\nprint('ready', flush=True)\nwhile True: work.time.sleep(0.01)\n"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_sigterm_flushes_and_then_kills_as_it_would_have(work: Path, protocol: str) -> None:
    with Receiver() as receiver:
        status, _, err = sigterm(start(work, BUSY, **direct(receiver, protocol)))
        assert status == -signal.SIGTERM
        assert [span.name for span in receiver.spans()] == ["work.step"], err
        assert err == ""


def test_without_an_exporter_sigterm_is_left_alone(work: Path) -> None:
    source = "import signal, work\nwork.step()\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    process = start(work, source + "print('ready', flush=True)\nwork.time.sleep(60)\n")
    assert sigterm(process)[0] == -signal.SIGTERM


def test_a_main_thread_that_hangs_in_a_library_still_dies_of_sigterm(work: Path) -> None:
    """Python's own handlers would wait for it for ever."""
    source = (
        "import ctypes, work\nwork.step()\nprint('ready', flush=True)\n"
        # a call that begins again after each signal, as a collective does
        "libc = ctypes.CDLL(None)\n"
        "lock = ctypes.create_string_buffer(64)\n"
        "libc.pthread_mutex_init(lock, None)\nlibc.pthread_mutex_lock(lock)\nlibc.pthread_mutex_lock(lock)\n"
    )
    with Receiver() as receiver:
        status, _, err = sigterm(start(work, source, **direct(receiver)))
        assert status == -signal.SIGTERM, err
        assert [span.name for span in receiver.spans()] == ["work.step"]


# not print: the signal may come while the script's own print is at work
HANDLER = "import os\ndef mine(signum, frame):\n    os.write(1, b'mine\\n')\n    sys.exit(7)\n"


def test_a_handler_that_is_set_later_runs_once_and_the_exit_sends(work: Path) -> None:
    source = (
        f"import signal, sys, work\n{HANDLER}signal.signal(signal.SIGTERM, mine)\n"
        "work.step()\nprint('ready', flush=True)\nwhile True: work.time.sleep(0.01)\n"
    )
    with Receiver() as receiver:
        status, out, err = sigterm(start(work, source, **direct(receiver)))
        assert (status, out) == (7, "mine\n"), err
        assert len(receiver.spans()) == 1


def test_a_later_handler_that_calls_the_one_before_goes_on_after_it(work: Path) -> None:
    """It was written for SIG_DFL, which is not callable: ours must not end the process under it."""
    source = (
        "import os, signal, sys, work\n"
        "before = signal.getsignal(signal.SIGTERM)\n"
        "def mine(signum, frame):\n"
        "    if callable(before): before(signum, frame)\n"
        "    os.write(1, b'mine\\n')\n"
        "    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, mine)\n"
        "work.step()\nprint('ready', flush=True)\nwhile True: work.time.sleep(0.01)\n"
    )
    with Receiver() as receiver:
        status, out, err = sigterm(start(work, source, **direct(receiver)))
        assert (status, out) == (7, "mine\n"), err
        assert len(receiver.spans()) == 1


def test_a_handler_that_was_there_before_stays(work: Path) -> None:
    (work / "sitecustomize.py").write_text("")
    source = (
        f"import signal, sys\n{HANDLER}"
        "signal.signal(signal.SIGTERM, mine)\n"
        "from opentelemetry.instrumentation.auto_instrumentation import initialize\n"
        "initialize()\n"
        "assert signal.getsignal(signal.SIGTERM) is mine\n"
        "import work\nwork.step()\nprint('ready', flush=True)\nwhile True: work.time.sleep(0.01)\n"
    )
    (work / "script.py").write_text(source)
    with Receiver() as receiver:
        process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=work,
            env=clean_environment(
                **settings(
                    work, OTEL_PYTHON_DISTRO="autoinstr", OTEL_PYTHON_CONFIGURATOR="autoinstr", **direct(receiver)
                )
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        status, out, _ = sigterm(process)
        assert (status, out) == (7, "mine\n")
        assert len(receiver.spans()) == 1


def test_sigterm_does_not_wait_long_for_a_collector_that_hangs(slow_ends: SlowEnds) -> None:
    status, _, _ = slow_ends.sigterm.result()
    assert status == -signal.SIGTERM


# the first SIGTERM would wait for longer than the test
WAITING = (
    "from autoinstr.exporting import ending\nfrom autoinstr.instrumentor import AutoinstrInstrumentor\n"
    f"ending.EXIT_SECONDS = AutoinstrInstrumentor()._termination._seconds = {2 * HUNG}\n"
)


def test_the_second_sigterm_ends_the_waiting(work: Path) -> None:
    with silent() as (endpoint, listening):
        process = start(work, WAITING + BUSY, **hanging(endpoint))
        process.send_signal(signal.SIGTERM)
        until_asked(listening)
        assert process.poll() is None, "it waits"
        until = time.monotonic() + HUNG
        while process.poll() is None and time.monotonic() < until:
            process.send_signal(signal.SIGTERM)  # of two that come before a handler has begun Python makes one
            time.sleep(0.1)
        status = process.poll()
        process.kill()
        process.communicate()
        assert status == -signal.SIGTERM


# -- collectors that are no good ------------------------------------------------------------------------


@contextmanager
def silent() -> Iterator[tuple[str, socket.socket]]:
    """Its address, and the socket which takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", listening


def until_asked(listening: socket.socket) -> None:
    """Until somebody has connected and sent something: a first connection may only see whether anybody is there."""
    listening.settimeout(HUNG)
    while True:
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(HUNG)
            if connection.recv(1, socket.MSG_PEEK):
                return


def hanging(endpoint: str) -> dict[str, str]:
    """An environment that sends to an endpoint which never answers, when the process ends."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "60000",
    }


@contextmanager
def black_hole() -> Iterator[str]:
    """Connecting to it takes for ever: its queue of connections is full, and the kernel drops what comes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        filling = [socket.socket() for _ in range(8)]
        filling[0].connect(address)
        select.select([listening], [], [])  # it is in the queue, which has room for one
        for one in filling[1:]:
            one.setblocking(False)
            one.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for one in filling:
            one.close()


@contextmanager
def slow() -> Iterator[str]:
    """Reads a request and answers it after three seconds."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)

        def answer(connection: socket.socket) -> None:
            try:
                connection.recv(1 << 20)
                time.sleep(3)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                pass

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@dataclass
class SlowEnds:
    """Processes whose ends take their time: they run beside each other, from the first test on that asks for one."""

    exits: dict[tuple[str, str], Future[subprocess.CompletedProcess[str]]]
    sigterm: Future[tuple[int, str, str]]
    full_queue: Future[subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def slow_ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowEnds]:
    def folder() -> Path:
        return write_work(tmp_path_factory.mktemp("slow"))

    with silent() as (accepts, _), black_hole() as drops, slow() as late, ThreadPoolExecutor(8) as pool:
        exits = {
            (what, protocol): pool.submit(exit_with_2000_spans, folder(), endpoint, protocol)
            for what, endpoint in (("silent", accepts), ("black hole", drops), ("slow", late))
            for protocol in ("grpc", "http/protobuf")
        }
        preempted = folder()
        overflowing = folder()
        (overflowing / "script.py").write_text("import work\nwork.step(items=3000)\n")
        yield SlowEnds(
            exits,
            pool.submit(lambda: sigterm(start(preempted, BUSY, **hanging(accepts)))),
            pool.submit(
                lambda: run(
                    "script.py",
                    cwd=overflowing,
                    **settings(overflowing, **hanging(accepts), OTEL_BSP_MAX_QUEUE_SIZE="1000"),
                )
            ),
        )


def exit_with_2000_spans(folder: Path, endpoint: str, protocol: str) -> subprocess.CompletedProcess[str]:
    """A process that has so many for that endpoint as it ends; their batches would take ten minutes and more."""
    (folder / "script.py").write_text("import work\nfor n in range(2000): work.step()\n")
    return run(
        "script.py",
        cwd=folder,
        **settings(
            folder,
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10",
        ),
    )


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("what", ["silent", "black hole", "slow"])
def test_no_collector_holds_up_the_exit(slow_ends: SlowEnds, what: str, protocol: str) -> None:
    done = slow_ends.exits[what, protocol].result()  # TimeoutExpired where it hangs
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(our_lines(done)) in (1, 2), done.stderr


# -- bursts ---------------------------------------------------------------------------------------------

BURST = """
import asyncio, sys, time
import work
from autoinstr.exporting import ending

ending.EXIT_SECONDS = 10_000  # the bound of the end is another test's: here the machine may be slow

async def task(items):
    for n in range(items):
        work.item(n)
        if n % 20 == 0:
            await asyncio.sleep(0)

async def burst(tasks, spans):
    await asyncio.gather(*(task(spans // tasks + (t < spans % tasks)) for t in range(tasks)))

for line in sys.stdin:
    began = time.monotonic()
    asyncio.run(burst(64, 20_000))
    print(f"{time.monotonic() - began:.2f}", flush=True)
"""


@pytest.mark.parametrize("ways", ["otlp", "journal", "otlp and journal"])
def test_a_burst_of_20_000_spans_from_64_tasks_loses_none(work: Path, ways: str) -> None:
    """`AUTOINSTR_TEST_BURSTS=10` has ten, each when the one before has arrived."""
    (work / "script.py").write_text(BURST)
    took = []
    with Receiver() as receiver:
        to = receiver.grpc_endpoint if "otlp" in ways else ""
        journal = "on" if "journal" in ways else "off"
        env = settings(work, OTEL_EXPORTER_OTLP_ENDPOINT=to, AUTOINSTR_JOURNAL=journal)
        process = launch("script.py", cwd=work, **env)
        assert process.stdin is not None
        assert process.stdout is not None
        bursts = int(os.environ.get("AUTOINSTR_TEST_BURSTS", "1"))
        for n in range(1, bursts + 1):
            process.stdin.write("go\n")
            process.stdin.flush()
            took.append(process.stdout.readline().strip())
            if to:
                wait_for(lambda n=n: len(receiver.spans()) >= n * 20_000, process)
        _, stderr = process.communicate(timeout=HUNG)
        assert (process.returncode, stderr) == (0, "")
        arrived = [span.span_id.hex() for span in receiver.spans()]
    written = [span["spanId"] for span in journal_spans(work)]
    for way, ids in (("otlp", arrived), ("journal", written)):
        assert len(ids) == len(set(ids)) == (bursts * 20_000 if way in ways else 0)
    print(f"bursts of 20,000 spans, {ways}: {took} s")


def test_a_full_queue_is_said_and_counted(slow_ends: SlowEnds) -> None:
    said = our_lines(slow_ends.full_queue.result())
    assert len([line for line in said if "the queue of 1000 is full" in line]) == 1, said
    (lost,) = [line for line in said if "were not sent" in line]
    assert "dropped by the full queue" in lost

"""Signals in a program whose spans go to an endpoint: what it sees of them and does is what it was without us."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from otlp_receiver import Receiver
from runs import our_lines, run

BEGIN = """
import asyncio, json, os, signal, subprocess, sys, threading, time
def die(*_): os.kill(os.getpid(), signal.SIGTERM)
def from_outside(name): subprocess.run(["kill", f"-{name}", str(os.getpid())], check=True)
def say(*what): os.write(1, (json.dumps(what, default=str) + "\\n").encode())
def on_term(signum, frame):
    say("handled")
    sys.exit(7)
default = signal.SIG_DFL
"""
PROGRAMS = {
    "default": "die()\ntime.sleep(60)",
    "looks": "say(signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGTERM, on_term))",
    # PyTorch Lightning does that
    "handles it where nobody does": """
if signal.getsignal(signal.SIGTERM) in (None, signal.SIG_DFL): signal.signal(signal.SIGTERM, on_term)
die()
time.sleep(60)""",
    "calls the one before, or dies": """
def mine(signum, frame):
    say("mine")
    if callable(before): before(signum, frame)
    else:
        signal.signal(signum, default)
        die()
before = signal.signal(signal.SIGTERM, mine)
die()
time.sleep(60)""",
    "puts back what was there": """
before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
die()
signal.signal(signal.SIGTERM, before)
say("lives", signal.getsignal(signal.SIGTERM))
die()
time.sleep(60)""",
    "ignores": "signal.signal(signal.SIGTERM, 1)\ndie()\nsay(signal.getsignal(signal.SIGTERM))",
    "asyncio": """
async def main():
    loop, come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, come.set)
    die()
    await come.wait()
    say(loop.remove_signal_handler(signal.SIGTERM), signal.getsignal(signal.SIGTERM))
    die()
    await asyncio.sleep(60)
asyncio.run(main())""",
    "a wakeup descriptor of its own": """
reader, writer = os.pipe()
os.set_blocking(writer, False)
say(signal.set_wakeup_fd(writer))
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
say(list(os.read(reader, 9)), signal.set_wakeup_fd(-1) == writer, signal.set_wakeup_fd(-1))
die()
time.sleep(60)""",
    "a wrong descriptor": """
for wrong in (10_000, "a", 0.5):
    try: signal.set_wakeup_fd(wrong)
    except Exception as error: say(type(error).__name__, str(error))
for signum, handler in ((signal.SIGTERM, 5), (signal.SIGTERM, "x"), (99999, default), ("a", default), (9, default)):
    try: signal.signal(signum, handler)
    except Exception as error: say(type(error).__name__, str(error))""",
    "in another thread": """
def other():
    for call in (lambda: signal.signal(signal.SIGTERM, default), lambda: signal.set_wakeup_fd(-1)):
        try: call()
        except Exception as error: say(type(error).__name__, str(error))
    say(signal.getsignal(signal.SIGTERM))
thread = threading.Thread(target=other)
thread.start()
thread.join()""",
    "waits for a signal that it blocks": """
for name in ("TERM", "USR1", "HUP"):
    signum = signal.Signals[f"SIG{name}"]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signum])
    from_outside(name)
    say(signal.sigwait([signum]))""",
    "blocks one for a while": """
signal.signal(signal.SIGUSR1, lambda *_: say("handled"))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
from_outside("USR1")
say(signal.sigpending())
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
say(signal.pthread_sigmask(signal.SIG_BLOCK, []))""",
    "a forked child": """
child = os.fork()
if not child:
    say(signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    from_outside("TERM")
    say(signal.sigwait([signal.SIGTERM]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    die()
    time.sleep(60)
say(os.waitpid(child, 0)[1])""",
    "a child that is started": """
look = "import signal; print(signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, []))"
say(subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout)""",
}


def program(tmp_path: Path, source: str) -> Path:
    script = tmp_path / "script.py"
    script.write_text(BEGIN + source + "\n")
    return script


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_it_sees_and_does_is_what_it_was(tmp_path: Path, name: str) -> None:
    script = program(tmp_path, PROGRAMS[name])
    plain = run(script, cwd=tmp_path, traced=False)
    with Receiver() as receiver:
        traced = run(
            script,
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )

    assert (traced.returncode, traced.stdout) == (plain.returncode, plain.stdout), traced.stderr
    assert plain.returncode in (0, 7, -signal.SIGTERM), plain.stderr
    assert our_lines(traced) == []


MASKS = """
def masks():
    found = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/status") as file:
                about = dict(line.rstrip("\\n").split(":\\t", 1) for line in file if ":\\t" in line)
        except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            continue
        if int(task) != os.getpid():
            found[task] = [s for s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
                           if not int(about["SigBlk"], 16) >> (s - 1) & 1]
    return len(found) > 2, [unblocked for unblocked in found.values() if unblocked]
say(masks())
sys.stdout.flush()
if not os.fork():
    say(masks())
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_no_thread_but_the_programs_own_takes_signals(tmp_path: Path, protocol: str) -> None:
    """Those of the SDK's processors and readers, and of gRPC, among them; in a forked child too."""
    script = program(tmp_path, MASKS)
    with Receiver() as receiver:
        traced = run(
            script,
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            AUTOINSTR_LOGS_ENABLED="true",
        )

    found = [json.loads(line) for line in traced.stdout.splitlines()]
    assert found == [[[True, []]], [[True, []]]], traced.stderr

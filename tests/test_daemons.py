"""A process that closes every descriptor, as a daemon does, and opens files of its own in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from otlp_receiver import Receiver
from runs import HUNG, journal_spans, launch, wait_for

MAP = "map: work\npackage: work\nspans:\n  work.step: {group: step, function: work:step}\n"

DAEMON = """
import os, signal
import work

work.step()
print("first", flush=True)
input()                                  # the exporters have their connections
os.closerange(3, 4096)
files = [open(f"user-{number}", "w+b") for number in range(60)]
work.step()
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)     # a byte for each signal goes to the wakeup descriptor
print("second", flush=True)
input()                                  # and have made new ones
work.step()
print("not as they were:", [f.name for f in files if os.fstat(f.fileno()).st_size
      or not os.path.samestat(os.fstat(f.fileno()), os.stat(f.name))])
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_users_files_are_the_users_and_every_span_arrives(tmp_path: Path, protocol: str) -> None:
    (tmp_path / "work.py").write_text("def step(): pass\n")
    (tmp_path / "work.yaml").write_text(MAP)
    (tmp_path / "daemon.py").write_text(DAEMON)
    with Receiver() as receiver:
        process = launch(
            "daemon.py",
            cwd=tmp_path,
            AUTOINSTR_SPAN_MAPS="work.yaml",
            AUTOINSTR_SPAN_GROUPS="all",
            AUTOINSTR_JOURNAL="on",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_METRIC_EXPORT_INTERVAL="500",
            OTEL_BSP_SCHEDULE_DELAY="100",
            PYTHONPATH=".",
        )
        assert process.stdin is not None
        assert process.stdout is not None
        for count, word in enumerate(("first", "second"), 1):
            assert process.stdout.readline() == f"{word}\n", process.communicate()
            metrics = len(receiver.metric_requests)
            wait_for(lambda: len(receiver.spans()) == count and len(receiver.metric_requests) > metrics, process)
            process.stdin.write("\n")
            process.stdin.flush()
        out, err = process.communicate(timeout=HUNG)
    assert (process.returncode, out) == (0, "not as they were: []\n"), err
    assert [line for line in err.splitlines() if line.startswith("autoinstr: ")] == []
    assert "Bad file descriptor" not in err
    assert [span.name for span in receiver.spans()] == ["work.step"] * 3
    assert len(journal_spans(tmp_path)) == 3
    assert [path.name for path in tmp_path.glob("user-*") if path.stat().st_size] == []

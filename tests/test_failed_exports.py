"""An endpoint that takes nothing: one line, which says why."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from otlp_receiver import Receiver, dead_port
from runs import our_lines, run

from autoinstr.exporting import failures, guards

MAP = "map: work\npackage: work\nspans:\n  work.step: {group: step, function: work:step}\n"


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """An HTTP endpoint that answers every request with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Retry-After", "3600")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def said_of(folder: Path, **env: str) -> list[str]:
    """What a run of one span says."""
    (folder / "work.py").write_text("def step(): pass\n")
    (folder / "work.yaml").write_text(MAP)
    done = run(
        "-c",
        "import work; work.step()",
        cwd=folder,
        AUTOINSTR_SPAN_MAPS="work.yaml",
        AUTOINSTR_SPAN_GROUPS="all",
        AUTOINSTR_METRICS_ENABLED="false",
        PYTHONPATH=".",
        **env,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return our_lines(done)


@pytest.mark.parametrize(
    ("status", "why"), [(401, "401 Unauthorized"), (404, "404 Not Found"), (429, "429 Too Many Requests")]
)
def test_the_answer_is_the_reason(tmp_path: Path, status: int, why: str) -> None:
    with refusing(status) as address:
        said = said_of(
            tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{address}", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"
        )
    assert said == [
        f"autoinstr: spans could not be sent to http://{address}/v1/traces: {why}; training goes on",
        f"autoinstr: 1 spans were not sent to http://{address}/v1/traces; AUTOINSTR_JOURNAL=on keeps them on disk",
    ]


def test_an_endpoint_without_http_in_front_is_told_as_such(tmp_path: Path) -> None:
    with refusing(200) as address:
        said = said_of(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf")
    assert said[0] == (
        f"autoinstr: spans can't be sent to {address}/v1/traces: "
        "OTLP over HTTP needs http:// or https:// in front (OTEL_EXPORTER_OTLP_ENDPOINT)"
    )
    assert len(said) == 2, "and what was lost"


def test_a_name_that_nobody_has(tmp_path: Path) -> None:
    said = said_of(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://nobody.invalid:4317")
    assert len(said) == 2
    assert said[0].startswith("autoinstr: spans could not be sent to nobody.invalid:4317: ")


def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def silent(*args: Any, **kwargs: Any) -> Any:
        answer.wait()
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    try:
        assert failures.why_unreachable("http://collector:4317") == "its name is not resolved within 1 s"
    finally:
        answer.set()


@pytest.mark.parametrize(
    ("logged", "reason"),
    [
        # gRPC, new and old
        (
            "Failed to export traces to h:4317, error code: StatusCode.UNAUTHENTICATED, error details: no token",
            "UNAUTHENTICATED no token",
        ),
        ("Failed to export traces to h:4317, error code: StatusCode.UNIMPLEMENTED", "UNIMPLEMENTED"),
        (
            "Transient error StatusCode.UNAVAILABLE encountered while exporting traces to h:1, retrying in 1.02s. "
            "Error details: connection refused",
            "UNAVAILABLE connection refused",
        ),
        ("Transient error StatusCode.UNAVAILABLE encountered while exporting traces to h:1, retrying in 1s.",
         "UNAVAILABLE"),
        # HTTP
        ("Failed to export span batch code: 401, reason: Unauthorized", "401 Unauthorized"),
        ("Failed to export spans batch code: None, reason: no route", "no route"),
        ("Transient error Bad Gateway encountered while exporting span batch, retrying in 1.1s.", "Bad Gateway"),
        ("Failed to export span batch due to timeout, max retries or shutdown.", ""),
        # anything else
        ("something\nodd", "something odd"),
        ("x" * 500, "x" * 197 + "..."),
    ],
)  # fmt: skip
def test_the_reason_in_what_the_exporters_log(logged: str, reason: str) -> None:
    assert failures.reason_in(logged) == reason


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_an_endpoint_takes_and_rejects_is_said_and_counted(tmp_path: Path, protocol: str) -> None:
    with Receiver(rejects="attribute too long") as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        said = said_of(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert len(receiver.spans()) == 1
    name = endpoint.removeprefix("http://") if protocol == "grpc" else f"{endpoint}/v1/traces"
    assert said == [
        f"autoinstr: {name} rejects spans: attribute too long; training goes on",
        f"autoinstr: {name} has rejected 1 spans",
    ]


def test_an_export_that_is_tried_again_and_again_tells_its_trouble() -> None:
    """The end of the process does not wait for its last try, and says why nothing has arrived so far."""
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    tried, ended = threading.Event(), threading.Event()

    class Trying:
        _endpoint = "http://h:1/v1/traces"

        def export(self, spans: Any) -> SpanExportResult:
            logger.warning("Transient error Bad Gateway encountered while exporting span batch, retrying in 64s.")
            tried.set()
            ended.wait()
            return SpanExportResult.SUCCESS

    guarded = guards.GuardedExporter(Trying())
    assert guarded.trouble() == ""
    thread = threading.Thread(target=guarded.export, args=([],))
    thread.start()
    tried.wait()
    assert guarded.trouble() == "Bad Gateway"
    ended.set()
    thread.join()
    assert guarded.trouble() == ""


@pytest.mark.parametrize("when", ["between the queue and the exporter", "after the end has looked"])
def test_a_batch_that_the_end_does_not_see_is_not_tried_for_long(when: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It has left the queue and is not at the exporter yet; or what it holds was open until the process's end."""
    ended = threading.Event()

    class Trying:
        def __init__(self, port: int) -> None:
            self._endpoint = f"127.0.0.1:{port}"

        def export(self, spans: Any) -> SpanExportResult:
            assert ended.wait(300), "the next try would be a minute later"
            return SpanExportResult.FAILURE

        def shutdown(self) -> None:
            ended.set()

    with dead_port() as port:
        guarded = guards.GuardedExporter(Trying(port))
        guarded.waiting = lambda: 0
        if when.startswith("between"):
            guarded.complete = lambda items: guarded.see_who_is_there()  # type: ignore[method-assign]
        else:
            guarded.see_who_is_there()
        assert guarded.export([]) is SpanExportResult.FAILURE
    assert capsys.readouterr().err.splitlines() == [
        f"autoinstr: spans could not be sent to 127.0.0.1:{port}: nobody answers there"
    ]

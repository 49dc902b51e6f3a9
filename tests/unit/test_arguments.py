"""`arguments` in a map: calls of HTTP clients carry the current span's headers, and nothing else about them changes."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from toy_packages import Write

from autoinstr.patch.handing import traces_endpoint
from autoinstr.testing import MapMistakes, Recording, record

CLIENTS = {
    "requests": "requests.sessions:Session.request",
    "httpx": "httpx._client:BaseClient.build_request",
    "aiohttp": "aiohttp.client:ClientSession._request",
}
MAP = """
map: toys
package: toys
spans:
  toys.rollout: {group: rollout, function: toys:rollout}
  toys.other: {group: step, function: toys:other}
arguments:
"""
ENTRY = """
  %s:
    group: per_prompt
    within: toys.rollout
    add: {headers: trace_headers}
"""
TOYS = """
def rollout(do): return do()
def other(do): return do()
"""


@pytest.fixture
def toys(write: Write) -> None:
    write(toys=TOYS)


class Server(ThreadingHTTPServer):
    """Keeps the headers of every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(client: str, url: str, headers: Any = None) -> str:
    """One request, as a user would make it."""
    if client == "requests":
        import requests

        return requests.get(url, headers=headers, timeout=300).text
    if client == "httpx":
        import httpx

        return httpx.get(url, headers=headers, trust_env=False, timeout=300).text

    async def ask() -> str:
        import aiohttp

        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            return await answer.text()

    return asyncio.run(ask())


def traceparent(spans: Recording, name: str) -> str:
    (span,) = spans.named(name)
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_inside_the_span_carries_it(toys: None, server: Server, client: str) -> None:
    pytest.importorskip(client)
    with record(text=MAP + ENTRY % CLIENTS[client], groups="per_step,per_prompt") as spans:
        import toys

        assert toys.rollout(lambda: get(client, server.url, {"X-Mine": "1"})) == "ok"
        assert toys.other(lambda: get(client, server.url)) == "ok"
        assert get(client, server.url) == "ok"
    inside, *outside = server.seen
    assert (inside["traceparent"], inside["x-mine"]) == (traceparent(spans, "toys.rollout"), "1")
    assert [headers for headers in outside if "traceparent" in headers] == []
    assert spans.notices == []


@pytest.mark.parametrize("client", CLIENTS)
def test_headers_of_every_kind(toys: None, server: Server, client: str) -> None:
    pytest.importorskip(client)
    kinds: list[Any] = [None, {}]
    if client == "httpx":
        import httpx

        kinds += [httpx.Headers({"x": "1"}), [("x", "1"), ("x", "2")], [(b"x", b"1")]]
    elif client == "aiohttp":
        from multidict import CIMultiDict, CIMultiDictProxy

        many = CIMultiDict([("x", "1"), ("x", "2")])
        kinds += [many, CIMultiDictProxy(many), [("x", "1"), ("x", "2")]]
    before = [repr(kind) for kind in kinds]
    with record(text=MAP + ENTRY % CLIENTS[client], groups="all") as spans:
        import toys

        toys.rollout(lambda: [get(client, server.url, kind) for kind in kinds])
    assert [headers["traceparent"] for headers in server.seen] == [traceparent(spans, "toys.rollout")] * len(kinds)
    assert [repr(kind) for kind in kinds] == before, "the caller's own headers stay as they were"


class Unchanging(dict):  # type: ignore[type-arg]
    def copy(self) -> Unchanging:
        return self


def test_headers_whose_copy_is_themselves_are_not_changed(toys: None, server: Server) -> None:
    headers = Unchanging({"x": "1"})
    with record(text=MAP + ENTRY % CLIENTS["requests"], groups="all"):
        import toys

        toys.rollout(lambda: get("requests", server.url, headers))
    assert headers == {"x": "1"}
    assert server.seen[0]["x"] == "1"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_header_of_the_callers_own_stays(toys: None, server: Server, client: str) -> None:
    pytest.importorskip(client)
    with record(text=MAP + ENTRY % CLIENTS[client], groups="all"):
        import toys

        toys.rollout(lambda: get(client, server.url, {"TraceParent": "theirs"}))
    assert server.seen[0]["traceparent"] == "theirs"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_that_is_off_leaves_the_client_the_very_object_it_was(toys: None, client: str) -> None:
    module, _, name = CLIENTS[client].partition(":")
    pytest.importorskip(client)
    owner, _, method = name.partition(".")
    cls = getattr(sys.modules[module], owner)
    before = vars(cls)[method]
    with record(text=MAP + ENTRY % CLIENTS[client], groups="per_step"):
        import toys  # noqa: F401

        assert vars(cls)[method] is before
    with record(text=MAP + ENTRY % CLIENTS[client], groups="all"):
        import toys  # noqa: F401

        patched = vars(cls)[method]
        assert patched is not before
        assert inspect.signature(patched) == inspect.signature(before)
        assert inspect.iscoroutinefunction(patched) == inspect.iscoroutinefunction(before)
        assert pickle.loads(pickle.dumps(cls)) is cls
    assert vars(cls)[method] is before


# requests, httpx and aiohttp as OpenTelemetry instruments them: where its packages are, they send their own headers

CONTRIB = {
    "requests": "RequestsInstrumentor",
    "httpx": "HTTPXClientInstrumentor",
    "aiohttp": "AioHttpClientInstrumentor",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_beside_opentelemetrys_own_instrumentation(toys: None, server: Server, client: str) -> None:
    pytest.importorskip(client)
    module = pytest.importorskip(
        f"opentelemetry.instrumentation.{'aiohttp_client' if client == 'aiohttp' else client}",
    )
    instrumentor = getattr(module, CONTRIB[client])()
    with record(text=MAP + ENTRY % CLIENTS[client], groups="all") as spans:
        import toys

        instrumentor.instrument(tracer_provider=spans.provider)
        try:
            toys.rollout(lambda: get(client, server.url))
        finally:
            instrumentor.uninstrument()
    (theirs,) = spans.named("GET")
    (ours,) = spans.named("toys.rollout")
    assert theirs.parent is not None
    assert theirs.parent.span_id == ours.context.span_id
    assert server.seen[0]["traceparent"] == traceparent(spans, "GET")


# -- any function ----------------------------------------------------------------------------------------

CALLEE = """
class Engine:
    tracing = None
    def submit(self, prompt, trace_headers=None, *, endpoint=None): return prompt, trace_headers, endpoint
    async def send(self, prompt, trace_headers=None): return trace_headers
    def stream(self, trace_headers=None): yield trace_headers
"""
SET = """
  toys:Engine.submit:
    switch: AUTOINSTR_VLLM_NATIVE_TRACING
    set: {trace_headers: trace_headers, endpoint: traces_endpoint}
"""
ON = ["AUTOINSTR_VLLM_NATIVE_TRACING"]


def test_set_gives_what_the_call_does_not(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(toys=TOYS + CALLEE)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    with record(text=MAP + SET, switches=ON) as spans:
        import toys

        engine = toys.Engine()
        seen = toys.rollout(
            lambda: [
                engine.submit("a"),
                engine.submit("b", None, endpoint=None),
                engine.submit("c", {}, endpoint="mine"),
            ]
        )
        nothing = engine.submit("d")
    headers = {"traceparent": traceparent(spans, "toys.rollout")}
    assert seen == [
        ("a", headers, "http://collector:4317"),
        ("b", headers, "http://collector:4317"),
        ("c", {}, "mine"),
    ]
    assert nothing == ("d", None, "http://collector:4317")


def test_a_switch_that_is_off(write: Write) -> None:
    write(toys=TOYS + CALLEE)
    with record(text=MAP + SET, groups="all"):
        import toys

        assert toys.rollout(lambda: toys.Engine().submit("a")) == ("a", None, None)


def test_where(write: Write) -> None:
    write(toys=TOYS + CALLEE)
    entry = "  toys:Engine.send: {group: step, set: {trace_headers: trace_headers}, where: self.tracing}\n"
    with record(text=MAP + entry):
        import toys

        engine = toys.Engine()
        assert toys.rollout(lambda: asyncio.run(engine.send("a"))) is None
        engine.tracing = True
        assert set(toys.rollout(lambda: asyncio.run(engine.send("a")))) == {"traceparent"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "toys:Engine.submit: {group: step, set: {trace_header: trace_headers}}",
            "<text>:7:3: toys:Engine.submit: it takes no argument 'trace_header', did you mean 'trace_headers'?; "
            "trace_header: left as the program has it",
        ),
        (
            "toys:Engine.submitt: {group: step, set: {trace_headers: trace_headers}}",
            "<text>:7:3: toys:Engine.submitt: toys.Engine has no 'submitt', did you mean 'submit'?; "
            "trace_headers: left as the program has it",
        ),
        (
            "toys:Engine.stream: {group: step, set: {trace_headers: trace_headers}}",
            "<text>:7:3: toys:Engine.stream: it is a generator; trace_headers: left as the program has it",
        ),
        (
            "toys:Engine.submit: {group: step, set: {trace_headers: trace_headers}, needs: [no_such.thing]}",
            "<text>:7:3: toys:Engine.submit: it needs no_such.thing, which can't be imported; "
            "trace_headers: left as the program has it",
        ),
        ("toys:Engine.submitt: {group: step, set: {trace_headers: trace_headers}, optional: true}", None),
    ],
)
def test_what_can_not_be_given_is_said(write: Write, entry: str, said: str | None) -> None:
    write(toys=TOYS + CALLEE)
    with record(text=MAP + "  " + entry) as spans:
        import toys

        assert toys.Engine().submit("a") == ("a", None, None)
    assert spans.notices == ([said] if said else [])


@pytest.mark.parametrize(
    ("entry", "mistake"),
    [
        ("{group: step}", "the arguments of toys:f need 'set' or 'add'"),
        ("{set: {h: trace_headers}}", "the arguments of toys:f need one of 'group' and 'switch'"),
        ("{group: step, set: {h: trace_header}}", "set: h can't be 'trace_header', did you mean 'trace_headers'?"),
        (
            "{group: step, add: {h: traces_endpoint}}",
            "add: h can't be 'traces_endpoint'; known: trace_headers",
        ),
        ("{switch: AUTOINSTR_VLLM, set: {h: trace_headers}}", "there is no switch 'AUTOINSTR_VLLM'"),
        ("{group: step, set: {h: trace_headers}, where: return.x}", "where reads args or self, not 'return'"),
    ],
)
def test_mistakes(entry: str, mistake: str) -> None:
    with pytest.raises(MapMistakes) as wrong, record(text=MAP + f"  toys:f: {entry}"):
        pass
    assert mistake in str(wrong.value)
    assert "the arguments are left out" in str(wrong.value)


@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({}, None),
        ({"ENDPOINT": "http://c:4317"}, "http://c:4317"),
        ({"ENDPOINT": "http://c:4318/", "PROTOCOL": "http/protobuf"}, "http://c:4318/v1/traces"),
        ({"ENDPOINT": "http://c:4317", "TRACES_ENDPOINT": "http://d:9/x", "PROTOCOL": "http/protobuf"}, "http://d:9/x"),
        ({"ENDPOINT": "http://c:4317", "TRACES_PROTOCOL": "grpc", "PROTOCOL": "http/protobuf"}, "http://c:4317"),
        ({"ENDPOINT": "http://c:4318", "PROTOCOL": "http/json"}, None),  # which vLLM would stop at
    ],
)
def test_the_endpoint_of_traces(
    variables: dict[str, str], endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "TRACES_PROTOCOL"):
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", variables.get(name, ""))
    assert traces_endpoint() == endpoint

"""What an OTLP endpoint answers when it has not taken all of a batch.

Of a batch that it took, it may say that it does not keep all of it (partial success). OpenTelemetry's exporters do not
read that answer; it is the first field of each signal's response, of one shape:
https://opentelemetry.io/docs/specs/otlp/#partial-success

Of the status of an answer over HTTP that is tried again or not (429, 503), they do not tell in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnRejected = Callable[[int, str], None]
"""Told how many items were not taken (0: it is a warning only), and why."""


def listen(exporter: Any, on_rejected: OnRejected, on_refused: Callable[[str], None]) -> None:
    """Tell of each answer of an OTLP exporter from here on, over HTTP or gRPC. Never raises, nor may what is told.

    `on_refused` is told the status of an answer over HTTP that takes nothing.
    """
    try:
        if hasattr(exporter, "_initialize_channel_and_stub"):
            _listen_to_stubs(exporter, on_rejected)
        for holder in holders_of_sessions(exporter):

            def on_response(response: Any, *_: Any, **__: Any) -> None:
                if not response.ok:
                    on_refused(f"{response.status_code} {response.reason}".rstrip())
                elif response.content:
                    _read(response.content, on_rejected)

            holder._session.hooks["response"].append(on_response)
    except Exception:  # an exporter of another make: its answers stay unread
        pass


def holders_of_sessions(exporter: Any) -> list[Any]:
    """What holds an HTTP exporter's pool of connections; newer ones keep it in a transport."""
    transport = getattr(getattr(exporter, "_client", None), "_transport", None)
    return [holder for holder in (exporter, transport) if getattr(holder, "_session", None) is not None]


def _listen_to_stubs(exporter: Any, on_rejected: OnRejected) -> None:
    begin = exporter._initialize_channel_and_stub

    def heard() -> None:
        stub = exporter._client
        if stub is None:
            return
        export = stub.Export

        def send(*args: Any, **kwargs: Any) -> Any:
            response = export(*args, **kwargs)
            _read(response.SerializeToString(), on_rejected)
            return response

        stub.Export = send

    def _initialize_channel_and_stub() -> None:
        begin()
        heard()

    exporter._initialize_channel_and_stub = _initialize_channel_and_stub
    heard()


def _read(answer: bytes, on_rejected: OnRejected) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        said = ExportTraceServiceResponse.FromString(answer).partial_success
    except Exception:  # no OTLP: a page of some proxy's
        return
    if said.rejected_spans > 0 or said.error_message:
        on_rejected(said.rejected_spans, " ".join(said.error_message.split())[:200])

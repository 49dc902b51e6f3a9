"""A real OTLP receiver for tests: gRPC and HTTP on ports of this machine, keeping every request it gets."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def reserve() -> socket.socket:
    """Holds a port of this machine which nobody is given; who asks for it by number, and for a share of it, gets it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


@contextmanager
def dead_port() -> Iterator[int]:
    """A port of this machine where nobody answers, and which nobody else is given. A `Receiver` may come to it."""
    with reserve() as reserved:
        yield int(reserved.getsockname()[1])


_had: list[socket.socket] = []
"""The ports of all receivers of this process: none is given again. `ship` knows an endpoint by its address, and who
still sends to a receiver that is gone must not come to the next one."""


def new_port() -> int:
    _had.append(reserve())
    return int(_had[-1].getsockname()[1])


class Server(ThreadingHTTPServer):
    """Comes to a port that is reserved."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


class Receiver:
    """`with Receiver() as r:` then send to `r.grpc_endpoint` or `r.http_endpoint`.

    `r.spans()`, `r.metrics()` and `r.logs()` are what came.
    """

    def __init__(self, grpc_port: int = 0, takes_logs: bool = True, rejects: str = "") -> None:
        """`rejects`: why it says of each batch of spans that it does not keep one of them."""
        self._answer = trace_service_pb2.ExportTraceServiceResponse()
        if rejects:
            self._answer.partial_success.rejected_spans = 1
            self._answer.partial_success.error_message = rejects
        self._grpc_port = grpc_port
        self._takes_logs = takes_logs
        self.requests: list[Any] = []
        self.metric_requests: list[Any] = []
        self.log_requests: list[Any] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Receiver:
        receiver = self

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                receiver._keep(request)
                return receiver._answer

        class MetricsService(metrics_service_pb2_grpc.MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                receiver._keep_metrics(request)
                return metrics_service_pb2.ExportMetricsServiceResponse()

        class LogsService(logs_service_pb2_grpc.LogsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                receiver._keep_logs(request)
                return logs_service_pb2.ExportLogsServiceResponse()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                answer = b""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path.endswith("/v1/logs") and not receiver._takes_logs:
                    self.send_error(404)
                    return
                if self.path.endswith("/v1/metrics"):
                    receiver._keep_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
                elif self.path.endswith("/v1/logs"):
                    receiver._keep_logs(logs_service_pb2.ExportLogsServiceRequest.FromString(body))
                else:
                    receiver._keep(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
                    answer = receiver._answer.SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), self._grpc)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(MetricsService(), self._grpc)
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(LogsService(), self._grpc)
        port = self._grpc.add_insecure_port(f"127.0.0.1:{self._grpc_port or new_port()}")
        self._grpc.start()
        self.grpc_endpoint = f"http://127.0.0.1:{port}"
        self._http = Server(("127.0.0.1", new_port()), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.http_endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        return self

    def __exit__(self, *exception: object) -> None:
        self._grpc.stop(None)
        self._http.shutdown()
        self._http.server_close()

    def _keep(self, request: Any) -> None:
        with self._lock:
            self.requests.append(request)

    def _keep_metrics(self, request: Any) -> None:
        with self._lock:
            self.metric_requests.append(request)

    def _keep_logs(self, request: Any) -> None:
        with self._lock:
            self.log_requests.append(request)

    def logs(self) -> list[tuple[str, Any]]:
        """The scope's name, which is the logger's, and the record."""
        return [
            (scope.scope.name, record)
            for request in self.log_requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def log_resources(self) -> list[dict[str, Any]]:
        return [
            {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in resource.resource.attributes}
            for request in self.log_requests
            for resource in request.resource_logs
        ]

    def metrics(self) -> dict[str, Any]:
        """The last that came of each series, by name."""
        return {
            metric.name: metric
            for request in self.metric_requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def metric_resources(self) -> list[dict[str, str]]:
        return [
            {a.key: a.value.string_value for a in resource.resource.attributes}
            for request in self.metric_requests
            for resource in request.resource_metrics
        ]

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resources(self) -> list[dict[str, str]]:
        return [
            {a.key: a.value.string_value for a in resource.resource.attributes}
            for request in self.requests
            for resource in request.resource_spans
        ]

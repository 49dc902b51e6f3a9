"""Sending a journal to an OTLP endpoint: from where it stopped last time, each span once as far as we know.

A finished span is rebuilt as the SDK's `ReadableSpan` and given to OpenTelemetry's own OTLP exporter, so every
`OTEL_EXPORTER_OTLP_*` variable counts as it does for a run. What was sent is remembered per endpoint in
`shipped.json` in the run's folder, after each batch that the endpoint took: at least once, and twice only where a
batch was taken and the answer, or this process, was lost.

A run that had both an endpoint and the journal has sent spans itself. Its processes record which batches were
taken (`autoinstr.spans.sent`) and which were given up (`autoinstr.spans.unsent`), and only the latter are shipped to
the same endpoint. A span with neither record may still be in the queue of a process that lives: it is left for
later. It is shipped once its process is gone, or once batches of younger spans have been recorded: a queue is
first in, first out, so the span was dropped. Log records are shipped in the same way (`shipping_logs`).

A span that rests between two of its blocks (`autoinstr.span.rest`) is shipped once its process is gone, for then no
other block comes.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from autoinstr.exporting import rejections
from autoinstr.exporting.failures import reason_in, why_unreachable, wrong_address
from autoinstr.journal import decoding, identity
from autoinstr.journal.decoding import BROKEN, Lines
from autoinstr.journal.reader import PROCESS_END, PROCESS_START, SENT, SPAN_REST, SPAN_START, UNSENT, journal_files

STATE_FILE = "shipped.json"
LOCK_FILE = "shipped.lock"
BATCH_SPANS = 512
BATCH_BYTES = 1 << 20
"""A batch holds at most so much journal: a gRPC server takes 4 MiB by default."""
CHUNK_BYTES = 16 << 20
"""So much of a file is read before what it holds is sent."""
TRIES = 3
"""How often one batch is given to the exporter, which itself retries for up to its timeout."""
QUIET_SECONDS = 60.0
"""A process on another machine whose file has not grown for so long is taken to be gone."""
_YOUNGER_BATCHES = 2
_RECENT = 100
_Made = TypeVar("_Made")
attributes_of = partial(decoding.attributes_of, of_bytes=base64.b64decode)
value_of = partial(decoding.value_of, of_bytes=base64.b64decode)


class ShipError(Exception):
    """Shipping can't go on; the text says what was sent so far, and why no more."""


class EndpointError(ShipError):
    """The endpoint is no address that anything could be sent to."""


class UnreadableError(ShipError):
    """Some files can't be read; all others were sent."""


@dataclass(slots=True)
class Shipped:
    """What one call did."""

    spans: int = 0
    sent_before: int = 0
    """Spans that the run had sent to this endpoint itself."""
    repeated: int = 0
    """Spans that were on record twice."""
    held: int = 0
    """Spans that a living process may still send itself."""
    rejected: int = 0
    """Of those sent, what the endpoint said that it does not keep; it is not to be sent again."""
    why_rejected: str = ""
    broken_lines: int = 0


class _Span(NamedTuple):
    """Where the line of a finished span is in its file."""

    span_id: str
    begin: int
    end: int


@dataclass(slots=True)
class _File:
    """One process's file, as far as it has been read."""

    path: Path
    offset: int = 0
    """Everything before it is done with."""
    read: int = 0
    """Everything before it has been looked at."""
    pid: int | None = None
    who: str | None = None
    ended: bool = False
    sends_itself: bool = False
    waiting: dict[str, _Span] = field(default_factory=dict)
    """Finished spans that are neither shipped nor known to be sent, by id, in the order of the file."""
    younger: dict[str, int] = field(default_factory=dict)
    """How many batches of younger spans have been recorded since, for spans that no batch has named."""
    resting: dict[str, _Span] = field(default_factory=dict)
    """The last rest of spans that neither went on nor ended since, by id."""
    rests_sent: int = 0
    """How long the file was when its rests were sent: those that held by then."""
    sent: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)


class Shipper:
    """Ships one run's spans to one endpoint. Close it, or use it in a `with`: it holds a lock on the run."""

    what = "spans"
    them = "them"
    """The same, in the notice that an endpoint does not take it."""
    passes_over: bytes | None = None
    """How a line begins that has nothing to say here, and need not be taken apart."""
    sent_event, unsent_event = SENT, UNSENT
    ids_attribute = "autoinstr.span_ids"
    endpoints_attribute = "autoinstr.endpoints"

    def __init__(
        self,
        folder: Path,
        exporter: Any,
        endpoint: str,
        *,
        resend: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        on_wait: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`on_wait` is told at once what is waited for, and why.

        Raises `ShipError` when another process ships this run, or nothing can be remembered there."""
        self.folder = folder
        self.done = Shipped()
        self._exporter = exporter
        self._refused = ""
        rejections.listen(exporter, self._on_rejected, self._on_refused)
        self._endpoint = address(endpoint)
        self.resend = resend
        self.sleep = sleep
        self.on_wait = on_wait
        self._where = endpoint
        self._answered = False
        self._files: dict[str, _File] = {}
        self._seen: set[str] = set()
        self._resources: dict[str, Resource] = {}
        self._scopes: dict[str, InstrumentationScope] = {}
        self._lines = Lines()
        self._recent: dict[int, tuple[Any, Any]] = {}
        self._unsaved = False
        self._lock = self._take_lock()
        self.endpoints = self._load_endpoints()
        """What is remembered: offsets by file, by `memory`."""
        self._state: dict[str, int] = self.endpoints.setdefault(self.memory, {})

    def __enter__(self) -> Shipper:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._lock)

    def _on_refused(self, why: str) -> None:
        self._refused = why

    def _on_rejected(self, count: int, why: str) -> None:
        self.done.rejected += count
        self.done.why_rejected = why or self.done.why_rejected

    @property
    def memory(self) -> str:
        """Under which name it is remembered what was sent."""
        return self._endpoint

    def share_lock(self) -> int:
        """The lock, for another shipper of the same run in this process."""
        return os.dup(self._lock)

    # -- reading --------------------------------------------------------------------------------------

    def ship(self) -> int:
        """Send what is there and not sent yet. Returns how many spans were sent.

        Raises `ShipError`, and `UnreadableError` when all files have been looked at."""
        before = self.done.spans
        self.done.held = 0
        unreadable: list[str] = []
        for path in journal_files(self.folder):
            try:
                file = self._files.get(path.name) or self._begin(path)
                while not self._read(file):
                    # of a file whose process sends itself, all must be known first: the records of what was sent
                    # come after the spans
                    if not file.sends_itself:
                        self._send(file)
                self._send(file)
                self._send_resting(file)
            except OSError as error:
                unreadable.append(f"cannot read {path}: {error.strerror or error}")
        if self._unsaved:
            self._save_state()
        if unreadable:
            raise UnreadableError(unreadable[0] + (f"; and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""))
        return self.done.spans - before

    def is_over(self) -> bool:
        """Whether every process of the run has ended or is gone. False before the first `ship`."""
        return bool(self._files) and all(self._gone(file) for file in self._files.values())

    def _begin(self, path: Path) -> _File:
        file = self._files[path.name] = _File(path)
        offset = 0 if self.resend else self._state.get(path.name, 0)
        if offset > path.stat().st_size:  # another file of the same name
            offset = 0
        file.offset = offset
        if offset:
            file.rests_sent = self._state.get(_rests_of(path.name), 0)
        return file

    def _read(self, file: _File) -> bool:
        """Look at a chunk of new lines; True at the end. A line without its end waits until it is whole."""
        until = file.read + CHUNK_BYTES
        with file.path.open("rb") as lines:
            lines.seek(file.read)
            for line in lines:
                if not line.endswith(b"\n"):
                    return True
                if file.read >= until:
                    return False
                begin = file.read
                file.read += len(line)
                if line.isspace():
                    continue
                try:
                    self._take(file, line, begin)
                except BROKEN:
                    if begin >= file.offset:
                        self.done.broken_lines += 1
        return True

    def _take(self, file: _File, line: bytes, begin: int) -> None:
        if self.passes_over is not None and line.startswith(self.passes_over):
            return
        document = self._lines.loads(line)
        for item_id in self._ids(document):
            self._take_item(file, item_id, begin)
        for logs in document.get("resourceLogs", ()):
            for scope in logs.get("scopeLogs", ()):
                for record in scope.get("logRecords", ()):
                    self._take_event(file, record, begin)

    def _ids(self, document: dict[str, Any]) -> Iterator[str]:
        """The ids of what is shipped of a line."""
        for spans in document.get("resourceSpans", ()):
            for scope in spans.get("scopeSpans", ()):
                for span in scope.get("spans", ()):
                    yield str(span["spanId"])

    def _key(self, file_name: str, item_id: str) -> str:
        """What tells an item from those of all files."""
        return item_id

    def _take_item(self, file: _File, item_id: str, begin: int) -> None:
        key = self._key(file.path.name, item_id)
        if key in self._seen or self._is_sent_resting(file, item_id, begin):
            if begin >= file.offset:
                self.done.repeated += 1
            return
        self._seen.add(key)
        file.resting.pop(item_id, None)
        if begin >= file.offset:
            file.waiting[item_id] = _Span(item_id, begin, file.read)

    def _take_rest(self, file: _File, span_id: str, begin: int, rests: bool) -> None:
        """A span has come to rest, or goes on (or begins)."""
        if self._key(file.path.name, span_id) in self._seen or self._is_sent_resting(file, span_id, begin):
            return  # it has ended; another thread may have ended it before its rest was written
        if rests:
            file.resting[span_id] = _Span(span_id, begin, file.read)
        else:
            file.resting.pop(span_id, None)

    def _is_sent_resting(self, file: _File, span_id: str, begin: int) -> bool:
        """Whether a span had been sent as it rested, by the time of the record at `begin`."""
        rest = file.resting.get(span_id)
        return rest is not None and rest.begin < file.rests_sent <= begin

    def _take_event(self, file: _File, record: dict[str, Any], begin: int) -> None:
        event = record.get("eventName")
        if event in (SPAN_REST, SPAN_START):
            self._take_rest(file, str(record["spanId"]), begin, event == SPAN_REST)
        if event not in (PROCESS_START, PROCESS_END, self.sent_event, self.unsent_event):
            return
        about = attributes_of(record.get("attributes"))
        if event == PROCESS_START:
            file.who = about.get("autoinstr.process.identity")
            file.pid = _pid(file.path)
            file.sends_itself = self._endpoint in [address(e) for e in about.get(self.endpoints_attribute) or ()]
        elif event == PROCESS_END:
            file.ended = True
        elif not self.resend and address(about["autoinstr.endpoint"]) == self._endpoint:
            ids = about[self.ids_attribute]
            batch = [ids[i : i + 16] for i in range(0, len(ids), 16)]
            (file.sent if event == self.sent_event else file.given_up).update(batch)
            self._grow_older(file, batch)

    def _grow_older(self, file: _File, batch: Sequence[str]) -> None:
        """A batch has left the queue: spans before its first one that no batch has named are a batch older."""
        places = [file.waiting[span_id].begin for span_id in batch if span_id in file.waiting]
        if not places:
            return
        first = min(places)
        for span_id, span in file.waiting.items():
            if span.begin >= first:
                break
            if span_id not in file.sent and span_id not in file.given_up:
                file.younger[span_id] = file.younger.get(span_id, 0) + 1

    def _gone(self, file: _File) -> bool:
        if file.ended:
            return True
        state = identity.state_of(file.pid, file.who)
        if state is not None:
            return state == "gone"
        try:
            return time.time() - file.path.stat().st_mtime > QUIET_SECONDS
        except OSError:
            return True

    # -- sending --------------------------------------------------------------------------------------

    def _send(self, file: _File) -> None:
        gone = not file.sends_itself or self.resend or self._gone(file)
        if gone and file.sends_itself and not self.resend:
            while not self._read(file):  # what it wrote between our reading and its end
                pass
        batch: list[_Span] = []
        size = 0
        for span in list(file.waiting.values()):
            if span.span_id in file.sent:
                self.done.sent_before += 1
                self._forget(file, span)
                continue
            if not gone and span.span_id not in file.given_up and file.younger.get(span.span_id, 0) < _YOUNGER_BATCHES:
                self.done.held += 1
                continue
            if batch and (len(batch) == BATCH_SPANS or size + span.end - span.begin > BATCH_BYTES):
                self._send_batch(file, batch)
                batch, size = [], 0
            batch.append(span)
            size += span.end - span.begin
        if batch:
            self._send_batch(file, batch)
        self._advance(file)

    def _send_resting(self, file: _File) -> None:
        """Send the spans that rest, if their process is gone: they ended with their last block."""
        if all(span.begin < file.rests_sent for span in file.resting.values()) or not self._gone(file):
            return
        while not self._read(file):  # what it wrote between our reading and its end
            pass
        file.waiting.update({key: span for key, span in file.resting.items() if span.begin >= file.rests_sent})
        self._send(file)
        file.rests_sent = self._state[_rests_of(file.path.name)] = file.read
        self._save_state()

    def _send_batch(self, file: _File, batch: Sequence[_Span]) -> None:
        rebuilt = []
        with file.path.open("rb") as lines:
            for span in batch:
                lines.seek(span.begin)
                try:
                    rebuilt.append(self._rebuild(self._lines.loads(lines.read(span.end - span.begin)), span.span_id))
                except BROKEN:
                    self.done.broken_lines += 1
        if rebuilt:
            self._export(rebuilt)
        for span in batch:
            self._forget(file, span)
        self.done.spans += len(rebuilt)
        self._advance(file)
        if self._unsaved:
            self._save_state()

    def _export(self, items: list[Any]) -> None:
        why = None if self._answered else why_unreachable(self._where)
        if why is not None:
            self.on_wait(f"{self._endpoint}: {why}; trying for half a minute, in case it starts")
        with _LastWords() as said:
            for attempt in range(TRIES):
                if attempt:
                    if why is None:
                        because = said.text or self._refused or "no answer in time"
                        self.on_wait(f"{self._endpoint} does not take {self.them}: {because}; trying again")
                    self.sleep(2.0**attempt)
                if self._give(items):
                    self._answered = True
                    return
        self._answered = False
        raise ShipError(
            f"{self._endpoint} does not take {self.them}: {said.text or self._refused or why or 'no answer in time'}"
        )

    def _give(self, items: list[Any]) -> bool:
        return bool(self._exporter.export(items).name == SpanExportResult.SUCCESS.name)

    def _forget(self, file: _File, span: _Span) -> None:
        file.waiting.pop(span.span_id, None)
        file.younger.pop(span.span_id, None)
        file.sent.discard(span.span_id)
        file.given_up.discard(span.span_id)

    def _advance(self, file: _File) -> None:
        """Remember that all before the first span that still waits is done."""
        offset = next((span.begin for span in file.waiting.values()), file.read)
        if offset > file.offset:
            file.offset = offset
            self._state[file.path.name] = offset
            self._unsaved = True  # at once where something was sent, else once for all files

    # -- remembering ----------------------------------------------------------------------------------

    def _take_lock(self) -> int:
        try:
            lock = os.open(self.folder / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            why = error.strerror or error
            raise ShipError(
                f"nothing can be written in {self.folder}, so what was sent can't be remembered: {why}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ShipError(f"another process is shipping {self.folder}") from None
        return lock

    def _load_endpoints(self) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / STATE_FILE).read_text())["endpoints"]
            return {
                str(name): {str(file): int(offset) for file, offset in files.items()} for name, files in found.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, *BROKEN) as error:
            raise ShipError(
                f"{self.folder / STATE_FILE} can't be read: {error}; without it, all is sent again"
            ) from error

    def _save_state(self) -> None:
        self._unsaved = False
        path = self.folder / STATE_FILE
        draft = path.with_suffix(".json.new")
        try:
            with draft.open("w") as file:
                json.dump(
                    {"version": 1, "endpoints": {name: files for name, files in self.endpoints.items() if files}},
                    file,
                    indent=1,
                )
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError as error:
            raise ShipError(f"what was sent can't be remembered in {path}: {error}") from error

    # -- from OTLP JSON back to the SDK's spans -------------------------------------------------------

    def _rebuild(self, document: dict[str, Any], span_id: str) -> Any:
        if "resourceSpans" not in document:  # the span rests
            (record,) = document["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
            document = json.loads(record["body"]["stringValue"])
        resource, scope, span = next(
            (of_resource.get("resource", {}), of_scope.get("scope", {}), span)
            for of_resource in document["resourceSpans"]
            for of_scope in of_resource["scopeSpans"]
            for span in of_scope["spans"]
            if span["spanId"] == span_id
        )
        flags = int(span.get("flags") or 1)
        trace_id = int(span["traceId"], 16)
        state = TraceState.from_header([span["traceState"]]) if span.get("traceState") else None
        parent = None
        if span.get("parentSpanId"):
            parent = SpanContext(
                trace_id, int(span["parentSpanId"], 16), bool(flags & 0x200), TraceFlags(flags & 0xFF), state
            )
        status = span.get("status") or {}
        code = StatusCode(int(status.get("code") or 0))
        return ReadableSpan(
            name=span["name"],
            context=SpanContext(trace_id, int(span["spanId"], 16), False, TraceFlags(flags & 0xFF), state),
            parent=parent,
            resource=self._resource(resource),
            attributes=attributes_of(span.get("attributes")),
            events=[
                Event(e["name"], attributes_of(e.get("attributes")), int(e["timeUnixNano"]))
                for e in span.get("events", ())
            ],
            links=[
                Link(
                    SpanContext(int(link["traceId"], 16), int(link["spanId"], 16), True, TraceFlags(1)),
                    attributes_of(link.get("attributes")),
                )
                for link in span.get("links", ())
            ],
            kind=SpanKind(max(0, int(span.get("kind") or 1) - 1)),
            status=Status(code, status.get("message")) if code is StatusCode.ERROR else Status(code),
            start_time=int(span["startTimeUnixNano"]),
            end_time=int(span["endTimeUnixNano"]),
            instrumentation_scope=self._scope(scope),
        )

    def _resource(self, encoded: dict[str, Any]) -> Resource:
        return self._made(encoded, self._resources, lambda encoded: Resource(attributes_of(encoded.get("attributes"))))

    def _scope(self, encoded: dict[str, Any]) -> InstrumentationScope:
        return self._made(
            encoded,
            self._scopes,
            lambda encoded: InstrumentationScope(
                encoded.get("name") or "", encoded.get("version"), None, attributes_of(encoded.get("attributes"))
            ),
        )

    def _made(self, encoded: dict[str, Any], known: dict[str, _Made], make: Callable[[dict[str, Any]], _Made]) -> _Made:
        """The same for what is equal. `Lines` shares what line after line repeats, which is known as it is."""
        recent = self._recent.get(id(encoded))
        if recent is None or recent[0] is not encoded:
            key = json.dumps(encoded)
            if key not in known:
                known[key] = make(encoded)
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            recent = self._recent[id(encoded)] = encoded, known[key]
        return recent[1]


class _LastWords(logging.Handler):
    """Keeps the last thing OpenTelemetry's exporters logged, which is why they failed; nothing goes further."""

    _NAMES = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._before: list[tuple[logging.Logger, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text = reason_in(record.getMessage()) or self.text

    def __enter__(self) -> _LastWords:
        for name in self._NAMES:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.propagate))
            logger.addHandler(self)
            logger.propagate = False
        return self

    def __exit__(self, *exception: object) -> None:
        for logger, propagate in self._before:
            logger.removeHandler(self)
            logger.propagate = propagate


_EXPORTERS = {
    ("traces", "grpc"): ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "OTLPSpanExporter"),
    ("traces", "http/protobuf"): ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLPSpanExporter"),
    ("logs", "grpc"): ("opentelemetry.exporter.otlp.proto.grpc._log_exporter", "OTLPLogExporter"),
    ("logs", "http/protobuf"): ("opentelemetry.exporter.otlp.proto.http._log_exporter", "OTLPLogExporter"),
}
Signal = Literal["traces", "logs"]


def make_exporter(endpoint: str | None, protocol: str | None, signal: Signal = "traces") -> tuple[Any, str]:
    """OpenTelemetry's OTLP exporter for these, else for what its variables say; and where it sends to.

    `protocol` is `grpc` or `http/protobuf`. Unsaid, it is what the variables say, and for an `endpoint` whose port
    is 4318 or that has a path, HTTP. An HTTP endpoint without `/v1/traces` or `/v1/logs` gets it.
    Raises `ShipError`, and `EndpointError` for an endpoint that is no address.
    """
    said = protocol or _variable("PROTOCOL", signal)
    if endpoint is not None:
        try:
            parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
            is_http = bool(parts.path.strip("/")) or parts.port == 4318
        except ValueError as error:
            raise EndpointError(f"{endpoint!r} is no address: {error}") from None
        if parts.hostname is None:
            raise EndpointError(f"{endpoint!r} is no address: it names no host")
        if said is None and is_http:
            said = "http/protobuf"
    said = said or "grpc"
    if (signal, said) not in _EXPORTERS:
        raise ShipError(f"protocol {said!r} is neither grpc nor http/protobuf")
    if said == "http/protobuf" and endpoint is not None:
        endpoint = endpoint.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/logs")
        endpoint = endpoint if "//" in endpoint else f"http://{endpoint}"
        endpoint = f"{endpoint}/v1/{signal}"
    module, name = _EXPORTERS[signal, said]
    try:
        make = getattr(import_module(module), name)
        exporter = make(endpoint=endpoint) if endpoint else make()
    except ImportError as error:
        raise ShipError(f"the OTLP exporter for {said} is not installed: {error}") from error
    except ValueError as error:
        raise EndpointError(f"{endpoint or _variable('ENDPOINT', signal)!r} is no address: {error}") from None
    wrong = wrong_address(exporter)
    if wrong is not None:
        raise EndpointError(f"{exporter._endpoint}: {wrong}")
    return exporter, str(getattr(exporter, "_endpoint", None) or endpoint)


def _variable(name: str, signal: Signal) -> str | None:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        if os.environ.get(variable, "").strip():
            return os.environ[variable].strip()
    return None


def address(endpoint: str) -> str:
    """Host and port of an endpoint, by which two spellings of one are known to be the same."""
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    except ValueError:  # a record may say anything
        return endpoint
    host = parts.hostname or endpoint
    host = "localhost" if host in ("127.0.0.1", "::1") else host
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    return f"{host}:{port}" if port else host


def _rests_of(file_name: str) -> str:
    """Under which name it is remembered which rests of a file were sent."""
    return f"{file_name} at rest"


def _pid(path: Path) -> int | None:
    try:
        return int(path.stem.rsplit("-", 2)[1])
    except (ValueError, IndexError):
        return None


def follow(shippers: Sequence[Shipper], every_seconds: float, on_trouble: Callable[[ShipError], None]) -> None:
    """Ship again and again until the run is over and all of it was sent.

    An endpoint that does not answer is told to `on_trouble` and tried again, as long as the run goes on. Raises
    `ShipError` when the run is over and the rest can't be sent.
    """
    while True:
        over = shippers[0].is_over()
        failed: ShipError | None = None
        for shipper in shippers:
            try:
                shipper.ship()
            except ShipError as error:
                failed = error
                if not over:
                    on_trouble(error)
        if over and failed is not None:
            raise failed
        if over:
            return
        time.sleep(every_seconds)

"""The journal: a span processor that puts every span's start and end on disk as it happens.

Each process appends to a file of its own, one line a record, one `write` a line and no buffer of ours: a
process that is killed at any moment leaves every finished span, and the start of every open one. A file that
can't be written is said once, and training goes on.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from autoinstr import __version__
from autoinstr.descriptors import Identity, deleted, identity_of, moved_high
from autoinstr.interruptions import is_the_programs
from autoinstr.journal import encoding, identity
from autoinstr.notices import say
from autoinstr.resource import completed
from autoinstr.spans import GROUP_ATTRIBUTE


def _open_high(path: Path) -> int:
    """Open the file to append to it, under a high descriptor where the process may have one."""
    return moved_high(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))


class JournalProcessor(SpanProcessor):
    """Writes to `<run_dir>/<run_id>/<host>-<pid>-<start>.jsonl`. The file is made with the first record."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        self.folder = run_dir / run_id
        self.path: Path | None = None
        self.lost = 0
        """Records that could not be written."""
        self.endpoints: list[str] = []
        """Where this process's exporters of spans send to, for whoever ships what they did not send."""
        self.log_endpoints: list[str] = []
        """The same of its exporters of logs."""
        self._run_id = run_id
        self._lock = threading.RLock()  # a finalizer or a signal's handler may come while this thread opens the file
        self._reset()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._in_child
        )
        atexit.register(self.end_process)

    def _reset(self) -> None:
        self._file: int | None = None
        self._failed = False
        self._opening = False
        self._ended = False
        self._torn = False
        self._identity: Identity | None = None
        self._begun = ""
        self._started_ns = time.time_ns()
        self._brief = ""
        self._told: Any = None
        self._resources: dict[int, tuple[Any, str]] = {}
        self._scopes: dict[int, tuple[Any, str]] = {}

    def _in_child(self) -> None:
        """A forked child writes to a file of its own."""
        self._lock.release()
        if self._file is not None and identity_of(self._file) == self._identity:
            os.close(self._file)
        self.path = None
        self.lost = 0
        self._reset()

    # -- the processor --------------------------------------------------------------------------------

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        try:
            context = span.context
            attributes: dict[str, Any] = {"autoinstr.span.name": span.name}
            if span.parent is not None:
                attributes["autoinstr.span.parent_id"] = f"{span.parent.span_id:016x}"
            scope = span.instrumentation_scope
            if scope is not None and scope.attributes:
                attributes[GROUP_ATTRIBUTE] = scope.attributes.get(GROUP_ATTRIBUTE, "")
            attributes.update(span.attributes or {})
            if self._file is None:
                self._open(span)
            if span.resource is not self._told:
                self._tell_of_the_run(span.resource)
            self._write(
                encoding.event_line(
                    self._brief,
                    __version__,
                    "autoinstr.span.start",
                    span.start_time or 0,
                    attributes,
                    context.trace_id,
                    context.span_id,
                )
            )
        except Exception as error:
            if is_the_programs(error):
                raise
            self._fail(error)

    def on_end(self, span: ReadableSpan) -> None:
        try:
            if self._file is None:
                self._open(span)
            self._write(
                encoding.span_line(self._resource(completed(span.resource)), self._scope(span), encoding.span(span))
            )
        except Exception as error:
            if is_the_programs(error):
                raise
            self._fail(error)

    def on_rest(self, span: Any, since_ns: int) -> None:
        """Record what the span is if no other block of it comes (`coalesce`): whoever dies now has not lost it.

        As an event with the span's line as its body, since the span itself is recorded once.
        """
        try:
            if self._file is None:
                self._open(span)
            line = encoding.span_line(
                self._resource(completed(span.resource)), self._scope(span), encoding.span(span, since_ns)
            )
            self.event("autoinstr.span.rest", {}, span.context.trace_id, span.context.span_id, body=line.rstrip())
        except Exception as error:
            if is_the_programs(error):
                raise
            self._fail(error)

    def on_resume(self, span: Any) -> None:
        """Record that the span is open again."""
        self.on_start(span)

    def shutdown(self) -> None:
        """Nothing is buffered; the end of the process is recorded at exit."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True

    def log(self, record: Any) -> None:
        """Append an SDK log record; never raises."""
        try:
            if self._file is None:
                self._open(record)
            self._write(encoding.log_line(self._resource(record.resource), self._scope(record), encoding.log(record)))
        except Exception as error:
            if is_the_programs(error):
                raise
            self._fail(error)

    # -- events that are no spans ---------------------------------------------------------------------

    def _tell_of_the_run(self, resource: Any) -> None:
        """Record what has been learned since the file began: spans that are on record already have it from here."""
        before = self._told.attributes if self._told is not None else {}
        self._told = resource
        new = {key: value for key, value in resource.attributes.items() if before.get(key) != value}
        if new:
            self.event("autoinstr.run", new)

    def delivered(
        self, endpoint: str, ids: Sequence[int], taken: bool, what: Literal["spans", "logs"] = "spans"
    ) -> None:
        """Record that a direct exporter's batch was taken by `endpoint`, or was not and is given up. Never raises."""
        if self._file is None:
            return
        name = f"autoinstr.{what}.{'sent' if taken else 'unsent'}"
        run_together = "".join([f"{one:016x}" for one in ids])
        self.event(name, {"autoinstr.endpoint": endpoint, f"autoinstr.{what[:-1]}_ids": run_together})

    def event(
        self,
        name: str,
        attributes: dict[str, Any],
        trace_id: int = 0,
        span_id: int = 0,
        severity: tuple[int, str] | None = None,
        body: str | None = None,
    ) -> None:
        """Append an event; never raises. `severity` is OpenTelemetry's number and text."""
        if self._file is None:
            return
        try:
            self._write(
                encoding.event_line(
                    self._brief, __version__, name, time.time_ns(), attributes, trace_id, span_id, severity, body
                )
            )
        except Exception as error:
            if is_the_programs(error):
                raise
            self._fail(error)

    def end_process(self) -> None:
        """Record the normal end of this process, once; never raises."""
        if self._file is None or self._ended:
            return
        self._ended = True
        self.event("autoinstr.process.end", {"autoinstr.journal.lost": self.lost} if self.lost else {})
        if self.lost:
            say(f"the journal {self.path} lacks {self.lost} records that could not be written")

    # -- the file -------------------------------------------------------------------------------------

    def _open(self, span: ReadableSpan) -> None:
        with self._lock:
            if self._file is not None or self._failed or self._opening:
                return
            self._opening = True
            try:
                self._begin(span)
            finally:
                self._opening = False

    def _begin(self, span: ReadableSpan) -> None:
        host, pid = socket.gethostname(), os.getpid()
        self._brief = encoding.resource({"process.pid": pid, "nemo.run.id": self._run_id})
        path = self._named(host, pid, self._started_ns)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = _open_high(path)
            self._identity = identity_of(file)
            # the first record before any other thread sees the file
            self.path = path
            self._begun = self._introduction(span, host, pid)
            self._put(file, self._begun)
        except OSError as error:
            self._failed = True
            say(f"the journal {path} can't be written: {error.strerror or error}; this run keeps no journal")
            return
        self._told = span.resource
        self._file = file

    def _named(self, host: str, pid: int, since_ns: int) -> Path:
        return self.folder / f"{host}-{pid}-{since_ns:x}.jsonl"

    def _reopened(self, file: int) -> int:
        """The journal's file, where `file` is that no more: somebody else's by now, closed, or deleted.

        One that was deleted begins anew under another name, by which whoever reads as it grows knows it: what is
        written to the deleted one is for nobody.
        """
        assert self.path is not None
        with self._lock:
            found = identity_of(file)
            if found == self._identity:  # another thread was here
                return file
            was_deleted = found is not None and found == deleted(self._identity)
            path = self.path
            if was_deleted:
                path = self._named(socket.gethostname(), os.getpid(), time.time_ns())
                self.folder.mkdir(parents=True, exist_ok=True)
            again = _open_high(path)
            self._identity = identity_of(again)
            if was_deleted:
                os.dup2(again, file, inheritable=False)  # another thread may be writing to it
                os.close(again)
                again = file
                say(f"the journal {self.path} was deleted: it goes on in {path.name}", once="journal deleted")
                self.path = path
            self._file = again
        if was_deleted:
            self._told = None
            os.write(again, self._begun.encode())
        return again

    def _introduction(self, span: ReadableSpan, host: str, pid: int) -> str:
        about: dict[str, Any] = {
            "process.command": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else "",
            "process.parent_pid": os.getppid(),
        }
        if (who := identity.of_process()) is not None:
            about["autoinstr.process.identity"] = who
        if self.endpoints:
            about["autoinstr.endpoints"] = self.endpoints
        if self.log_endpoints:
            about["autoinstr.log_endpoints"] = self.log_endpoints
        whole = encoding.resource({**span.resource.attributes, "process.pid": pid, "host.name": host})
        return encoding.event_line(whole, __version__, "autoinstr.process.start", self._started_ns, about)

    def _write(self, line: str) -> None:
        file = self._file
        if file is None:
            self.lost += 1
            return
        self._put(file, line)

    def _put(self, file: int, line: str) -> None:
        data = line.encode()
        if self._torn:  # what was cut off must not take this record with it
            data, self._torn = b"\n" + data, False
        if identity_of(file) != self._identity:
            # whoever closed every descriptor (a daemon does) may hold a file of its own under our number
            file = self._reopened(file)
        written = os.write(file, data)
        while written < len(data):  # a signal, or a disk that is nearly full
            self._torn = True
            written += os.write(file, data[written:])
            self._torn = False

    def _fail(self, error: Exception) -> None:
        self.lost += 1
        if self.lost == 1:
            self._mark_lost()
        what = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        say(
            f"the journal {self.path or self.folder} lost a record: {what}; training goes on",
            once="journal lost",
        )

    def _mark_lost(self) -> None:
        """An empty file, which a full disk takes mostly: without it this process would look killed in mid-span."""
        try:
            if self.path is not None:
                self.path.with_suffix(".lost").touch()
        except OSError:
            pass

    # -- what repeats ---------------------------------------------------------------------------------

    def _resource(self, resource: Any) -> str:
        """The resource as JSON, encoded once."""
        known = self._resources.get(id(resource))
        if known is None or known[0] is not resource:
            attributes = dict(resource.attributes)
            attributes.setdefault("process.pid", os.getpid())
            attributes.setdefault("host.name", socket.gethostname())
            known = (resource, encoding.resource(attributes))
            self._resources[id(resource)] = known
        return known[1]

    def _scope(self, span: ReadableSpan) -> str:
        scope = span.instrumentation_scope
        known = self._scopes.get(id(scope))
        if known is None or known[0] is not scope:
            if scope is None:
                known = (scope, encoding.scope("", None, None))
            else:
                known = (scope, encoding.scope(scope.name, scope.version, scope.attributes))
            self._scopes[id(scope)] = known
        return known[1]

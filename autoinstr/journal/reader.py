"""Reading a run's journal: from a folder of OTLP JSON lines to processes and spans.

A journal is what a run left behind, however it ended, so nothing in a file is taken for granted: a line
that is torn or misshapen is skipped and counted, never raised. Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

import gc
import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from autoinstr.journal.decoding import BROKEN, Lines, attributes_of, text, value_of

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
SpanKey: TypeAlias = "tuple[str, str]"

PROCESS_START = "autoinstr.process.start"
PROCESS_END = "autoinstr.process.end"
LOST = "autoinstr.journal.lost"
"""How many records the process could not write, as it said in its last one."""
LOST_SUFFIX = ".lost"
"""An empty file beside the journal's: it says so where there was no room for a record."""
RUN = "autoinstr.run"
SPAN_START = "autoinstr.span.start"
SPAN_REST = "autoinstr.span.rest"
"""A span of many blocks (`coalesce`) is between two of them: what it is if no other comes, as the event's body."""
SPAN_NAME = "autoinstr.span.name"
SPAN_PARENT = "autoinstr.span.parent_id"
HANG = "autoinstr.hang"
SENT = "autoinstr.spans.sent"
UNSENT = "autoinstr.spans.unsent"
LOGS_SENT = "autoinstr.logs.sent"
LOGS_UNSENT = "autoinstr.logs.unsent"
IDENTITY = "autoinstr.process.identity"
GROUP = "autoinstr.group"
BUCKET = "rl.bucket"

_STATUS_ERROR = (2, "STATUS_CODE_ERROR")
_NO_PARENT = "0" * 16
_RUNS_NAMED = 10


class JournalError(Exception):
    """A run cannot be found or read; the text says where it was looked for and which runs there are."""


@dataclass(slots=True)
class Span:
    """One span of a run. ``end_ns`` is None while it is open: started on record, and never finished."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int | None
    attributes: dict[str, Value]
    group: str | None
    """The span group, None for spans of other instrumentation."""
    bucket: str | None
    """What the span's time counts as; None for an umbrella, which only holds other spans."""
    error: str | None
    process: int
    """Index into ``Run.processes``."""

    @property
    def key(self) -> SpanKey:
        return self.trace_id, self.span_id

    @property
    def parent_key(self) -> SpanKey | None:
        return None if self.parent_id is None else (self.trace_id, self.parent_id)


@dataclass(slots=True)
class Process:
    """One process of a run, which is one file of its journal."""

    file: str
    pid: int | None
    host: str | None
    service: str | None = None
    rank: int | None = None
    command: str | None = None
    parent_pid: int | None = None
    identity: str | None = None
    """What `autoinstr.journal.identity` said of the process when it began to write; None in an older journal."""
    resource: dict[str, Value] = field(default_factory=dict)
    started_ns: int | None = None
    last_ns: int | None = None
    """The newest timestamp in the file."""
    ended: bool = False
    """Whether the process came to a normal end of the interpreter."""
    spans: int = 0
    """How many spans finished."""
    open: int = 0
    """How many spans are open."""
    broken_lines: int = 0
    lost: int = 0
    """How many records are known to be lacking, because they could not be written: at least so many."""
    unreadable: str = ""
    """Why the file could not be read to its end (no permission, a stale mount); empty where it could."""


@dataclass(slots=True)
class Hang:
    """What the hang watch wrote: a span that was open for too long, and what each thread was doing."""

    process: int
    time_ns: int
    span: SpanKey
    name: str
    open_for_s: float
    stacks: str


@dataclass(slots=True)
class Run:
    """Everything a journal folder says. Processes, finished ``spans`` and ``open`` spans by start time."""

    run_id: str
    folder: Path
    processes: list[Process]
    spans: list[Span]
    open: list[Span]
    hangs: list[Hang] = field(default_factory=list)

    @property
    def started_ns(self) -> int | None:
        """The earliest timestamp of the run, None when it holds none."""
        times = [p.started_ns for p in self.processes if p.started_ns is not None]
        times += [spans[0].start_ns for spans in (self.spans, self.open) if spans]
        return min(times, default=None)

    @property
    def last_ns(self) -> int | None:
        """The newest timestamp of the run, None when it holds none."""
        return max((p.last_ns for p in self.processes if p.last_ns is not None), default=None)

    def about(self, *keys: str) -> dict[str, Value]:
        """What the processes' resources say under these keys, which are those of the run: the first that says it."""
        found: dict[str, Value] = {}
        for key in keys:
            said = (process.resource[key] for process in self.processes if key in process.resource)
            if (value := next(said, None)) is not None:
                found[key] = value
        return found

    @property
    def broken_lines(self) -> int:
        return sum(process.broken_lines for process in self.processes)


def default_run_dir() -> Path:
    """Where runs lie: ``AUTOINSTR_RUN_DIR``, else ``autoinstr-runs`` in the working directory."""
    return Path(os.path.expanduser(os.environ.get("AUTOINSTR_RUN_DIR", "").strip() or "autoinstr-runs"))


def find_run(run: str | None, run_dir: Path) -> Path:
    """The folder of a run.

    ``run`` is a run id in ``run_dir``, the path of a run's folder, or the beginning of exactly one run id;
    None stands for the run that was written to last. Raises ``JournalError``.
    """
    runs = _runs_in(run_dir)
    if run is None:
        if not runs:
            raise JournalError(f"no run in {_where(run_dir)}{_shut(run_dir)}")
        return max(runs.values(), key=_newest_write)
    if run in runs:
        return runs[run]
    path = Path(run)
    # An empty RUN (an unset shell variable) must not become the working directory.
    if run and path.is_dir():
        if journal_files(path):
            return path
        inside = _runs_in(path)
        hint = f"; it holds the runs {_names(inside)}" if inside else ""
        raise JournalError(f"{path.resolve()} is not a run: no .jsonl file is in it{hint}")
    starting = {name: folder for name, folder in runs.items() if run and name.startswith(run)}
    if len(starting) == 1:
        return next(iter(starting.values()))
    if starting:
        raise JournalError(f"{len(starting)} runs in {_where(run_dir)} start with {run!r}: {_names(starting)}")
    have = f"runs there: {_names(runs)}" if runs else f"no run is there{_shut(run_dir)}"
    raise JournalError(f"no run {run!r} in {_where(run_dir)}; {have}")


def read_run(folder: Path) -> Run:
    """Read every file of a run, line by line. Raises ``JournalError`` when none can be read.

    A file of several that cannot be read is a process with nothing but what its name says, and why.
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing here runs in a circle, and it would look through all spans again and again
    try:
        return _read_run(folder)
    finally:
        if collecting:
            gc.enable()


def _read_run(folder: Path) -> Run:
    processes: list[Process] = []
    finished: list[Span] = []
    started: dict[SpanKey, _Started] = {}
    resting: dict[SpanKey, Span] = {}
    hangs: list[Hang] = []
    for path in journal_files(folder):
        process = _named_process(path)
        processes.append(process)
        try:
            _read_process(path, process, len(processes) - 1, finished, started, resting, hangs)
        except OSError as error:
            process.unreadable = error.strerror or str(error)
    if processes and all(process.unreadable for process in processes):
        first = processes[0]
        raise JournalError(f"cannot read the journal in {folder.resolve()}: {first.file}: {first.unreadable}")
    if resting:
        # Another thread may have ended a span before its rest was written.
        ended = {span.key for span in finished}
        for key in resting.keys() - ended:
            span = resting[key]
            finished.append(span)
            processes[span.process].spans += 1
    if started:
        # A span may be finished in another file than it was started in: a forked process does that.
        for span in finished:
            started.pop(span.key, None)
    still_open: list[Span] = []
    for start in started.values():
        try:
            still_open.append(_started_span(start))
        except BROKEN:
            processes[start.process].broken_lines += 1
        else:
            processes[start.process].open += 1
    finished.sort(key=_start)
    still_open.sort(key=_start)
    return Run(folder.resolve().name, folder.resolve(), processes, finished, still_open, hangs)


def _start(span: Span) -> int:
    return span.start_ns


def journal_files(folder: Path) -> list[Path]:
    """A run's files, in the order in which their processes started."""
    found = [path for path in folder.glob("*.jsonl") if _modified(path) is not None]
    return sorted(found, key=lambda path: (_name_parts(path)[2] or 0, path.name))


def _modified(path: Path) -> float | None:
    """When a file was written to last, in seconds; None for a folder, and for a link or a file that leads nowhere."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime if stat.S_ISREG(about.st_mode) else None


def _runs_in(run_dir: Path) -> dict[str, Path]:
    try:
        folders = sorted(path for path in run_dir.iterdir() if path.is_dir())
        return {path.name: path for path in folders if journal_files(path)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise JournalError(f"cannot look for runs in {run_dir.resolve()}: {error}") from error


def _shut(run_dir: Path) -> str:
    """The folders that may hold a run, and that may not be listed."""
    if not run_dir.is_dir():
        return ""
    shut = sorted(path.name for path in run_dir.iterdir() if path.is_dir() and not os.access(path, os.R_OK | os.X_OK))
    more = f" and {len(shut) - _RUNS_NAMED} more" if len(shut) > _RUNS_NAMED else ""
    return f"; not readable there: {', '.join(shut[:_RUNS_NAMED])}{more}" if shut else ""


def _newest_write(folder: Path) -> float:
    return max((_modified(path) or 0.0 for path in journal_files(folder)), default=0.0)


def _where(run_dir: Path) -> str:
    missing = "" if run_dir.is_dir() else " (which is not there; AUTOINSTR_RUN_DIR names another)"
    return f"{run_dir.resolve()}{missing}"


def _names(runs: dict[str, Path]) -> str:
    newest_first = sorted(runs, key=lambda name: _newest_write(runs[name]), reverse=True)
    more = f" and {len(runs) - _RUNS_NAMED} more" if len(runs) > _RUNS_NAMED else ""
    return ", ".join(newest_first[:_RUNS_NAMED]) + more


def _name_parts(path: Path) -> tuple[str | None, int | None, int | None]:
    """Host, process id and start time, from ``<host>-<pid>-<start ns in hex>.jsonl``."""
    try:
        # From the right: a host name may hold dashes.
        host, pid, start = path.stem.rsplit("-", 2)
        return host, int(pid), _time(int(start, 16))
    except ValueError:
        return None, None, None


class _Started(NamedTuple):
    """A span that has begun, still encoded: most end, and then nobody asks how they began."""

    key: SpanKey
    start_ns: int
    encoded: dict[str, Any]
    process: int


class _Record(NamedTuple):
    """One span or log record, with the resource it came under, still encoded."""

    event: str
    time_ns: int
    span: Span | _Started | None
    attributes: dict[str, Value]
    resource: dict[str, Any]
    hang: Hang | None = None


_FINISHED = ""


def _named_process(path: Path) -> Process:
    """What a file's name says of its process."""
    host, pid, start_ns = _name_parts(path)
    return Process(path.name, pid, host, started_ns=start_ns, last_ns=start_ns)


def _read_process(
    path: Path,
    process: Process,
    index: int,
    finished: list[Span],
    started: dict[SpanKey, _Started],
    resting: dict[SpanKey, Span],
    hangs: list[Hang],
) -> None:
    process.lost = int(path.with_suffix(LOST_SUFFIX).exists())
    named_start = process.started_ns is not None
    loads = Lines().loads
    with path.open("rb") as lines:
        for line in lines:
            if line.isspace():
                continue
            # A line counts whole or not at all, so everything that can fail comes before the first change.
            try:
                records = list(_records(loads(line), index))
                for record in records:
                    if record.event == PROCESS_START or not process.resource:
                        _describe(process, record)
            except BROKEN:
                process.broken_lines += 1
                continue
            for record in records:
                if record.time_ns:
                    process.last_ns = max(process.last_ns or 0, record.time_ns)
                    if not named_start:
                        first_ns = record.span.start_ns if record.span else record.time_ns
                        process.started_ns = min(process.started_ns or first_ns, first_ns)
                if record.span is not None:
                    key = record.span.key
                    resting.pop(key, None)
                    if isinstance(record.span, _Started):
                        started[key] = record.span
                    elif record.event == SPAN_REST:
                        resting[key] = record.span
                    else:
                        finished.append(record.span)
                        process.spans += 1
                        started.pop(key, None)
                elif record.hang is not None:
                    hangs.append(record.hang)
                elif record.event == PROCESS_END:
                    process.ended = True
                    process.lost = max(process.lost, _whole(record.attributes.get(LOST)) or 0)
                elif record.event == RUN:
                    process.resource.update(record.attributes)
                    process.service = _text_or_none(process.resource.get("service.name"))


def _describe(process: Process, record: _Record) -> None:
    resource = attributes_of(record.resource.get("attributes"))
    rank = resource.get("nv.dl.rank", resource.get("dl.rank"))
    pid = _whole(resource.get("process.pid"))
    process.resource = resource
    process.rank = _whole(rank)
    process.service = _text_or_none(resource.get("service.name"))
    process.host = _text_or_none(resource.get("host.name")) or process.host
    process.pid = process.pid if pid is None else pid
    if record.event == PROCESS_START:
        process.command = _text_or_none(record.attributes.get("process.command"))
        process.parent_pid = _whole(record.attributes.get("process.parent_pid"))
        process.identity = _text_or_none(record.attributes.get(IDENTITY))


def _records(document: dict[str, Any], process: int) -> Iterator[_Record]:
    for of_resource in document.get("resourceSpans", ()):
        resource = of_resource.get("resource", {})
        for of_scope in of_resource.get("scopeSpans", ()):
            scope = of_scope.get("scope", {})
            group = _text_or_none(attributes_of(scope.get("attributes")).get(GROUP))
            for encoded in of_scope.get("spans", ()):
                span = _finished_span(encoded, group, process)
                yield _Record(_FINISHED, max(span.start_ns, span.end_ns or 0), span, {}, resource)
    for of_resource in document.get("resourceLogs", ()):
        resource = of_resource.get("resource", {})
        for of_scope in of_resource.get("scopeLogs", ()):
            for encoded in of_scope.get("logRecords", ()):
                # A log record of somebody else's has no event name, and tells us the time only.
                event = encoded.get("eventName") or "log"
                if event == SPAN_REST:
                    for record in _records(json.loads(encoded["body"]["stringValue"]), process):
                        yield record._replace(event=SPAN_REST)
                    continue
                time_ns = _time(encoded.get("timeUnixNano") or encoded.get("observedTimeUnixNano") or 0)
                if event == SPAN_START:
                    key = sys.intern(encoded["traceId"]), text(encoded["spanId"])
                    yield _Record(event, time_ns, _Started(key, time_ns, encoded, process), {}, resource)
                    continue
                attributes = attributes_of(encoded.get("attributes"))
                hang = _hang(encoded, attributes, time_ns, process) if event == HANG else None
                yield _Record(event, time_ns, None, attributes, resource, hang)


def _finished_span(encoded: dict[str, Any], group: str | None, process: int) -> Span:
    attributes = attributes_of(encoded.get("attributes"))
    return Span(
        name=sys.intern(text(encoded["name"])),
        trace_id=sys.intern(text(encoded["traceId"])),
        span_id=text(encoded["spanId"]),
        parent_id=_parent(encoded.get("parentSpanId")),
        start_ns=_time(encoded["startTimeUnixNano"]),
        end_ns=_time(encoded["endTimeUnixNano"]),
        attributes=attributes,
        group=group,
        bucket=_text_or_none(attributes.get(BUCKET)),
        error=_error(encoded),
        process=process,
    )


def _started_span(start: _Started) -> Span:
    attributes = attributes_of(start.encoded.get("attributes"))
    trace_id, span_id = start.key
    return Span(
        name=sys.intern(text(attributes.pop(SPAN_NAME))),
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_parent(attributes.pop(SPAN_PARENT, None)),
        start_ns=start.start_ns,
        end_ns=None,
        group=_text_or_none(attributes.pop(GROUP, None)),
        bucket=_text_or_none(attributes.get(BUCKET)),
        attributes=attributes,
        error=None,
        process=start.process,
    )


def _hang(encoded: dict[str, Any], attributes: dict[str, Value], time_ns: int, process: int) -> Hang:
    open_for_s = attributes.get("autoinstr.hang.open_for_s")
    return Hang(
        process=process,
        time_ns=time_ns,
        span=(text(encoded["traceId"]), text(encoded["spanId"])),
        name=text(attributes[SPAN_NAME]),
        open_for_s=float(open_for_s) if isinstance(open_for_s, (int, float)) else 0.0,
        stacks=text(value_of(encoded.get("body") or {}) or ""),
    )


def _error(encoded: dict[str, Any]) -> str | None:
    """What went wrong in a span: the status message, else its last exception, else just that it did."""
    status = encoded.get("status", {})
    if status.get("code") not in _STATUS_ERROR:
        return None
    if message := status.get("message"):
        return text(message)
    for event in reversed(encoded.get("events", ())):
        if event.get("name") == "exception":
            about = attributes_of(event.get("attributes"))
            parts = [about.get("exception.type"), about.get("exception.message")]
            return ": ".join(str(part) for part in parts if part) or "exception"
    return "error"


def _parent(value: Value) -> str | None:
    # many spans have the same
    return sys.intern(text(value)) if value and value != _NO_PARENT else None


def _time(value: Any) -> int:
    time_ns = int(value)
    # The OTLP field is unsigned, but what lies beyond the year 2262 is damage, and no calendar takes it.
    if not 0 <= time_ns < 1 << 63:
        raise ValueError(f"no time: {value!r}")
    return time_ns


def _text_or_none(value: Value) -> str | None:
    return sys.intern(value) if isinstance(value, str) else None


def _whole(value: Value) -> int | None:
    try:
        return int(value) if isinstance(value, (int, str)) else None
    except ValueError:
        return None

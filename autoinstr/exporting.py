"""Sending spans without ever costing the run: a guard around the user's exporter.

The SDK's exporters retry for many seconds when a collector is down, at exit too, log each try, and the gRPC
one draws its waiting times from the global `random`, which training may have seeded. The guard says once that
the collector can't be reached, counts what was lost, and bounds the end of the process. The SDK's queue drops
silently when it is full: the guard counts that too, and a forked child gets connections of its own.
"""

from __future__ import annotations

import atexit
import copy
import logging
import os
import queue
import random
import re
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opentelemetry.sdk.trace.export import SpanExportResult

from autoinstr import rejections, resource
from autoinstr.notices import describe, say
from autoinstr.patience import within
from autoinstr.signal_masks import no_signals

EXIT_SECONDS = 5.0
"""How long the end of the process may wait for a collector that answers."""
_PROBE_SECONDS = 0.5
_RESOLVE_SECONDS = 1.0
"""How long the end may wait to learn the address of a name."""
_REASON_CHARACTERS = 200
_LOOKS_AT_GRPC = 500
"""How often to look, a millisecond apart, whether gRPC has ended its threads."""
SPANS_FAIL = "export"
"""The key under which it is said that spans do not arrive."""


class GuardedExporter:
    """`exporter`, counted and bounded. `once` is the key under which it is said that nothing arrives."""

    what = "spans"
    """What is sent, in words: another kind of exporter has a class below this one."""
    queue_variable = "OTEL_BSP_MAX_QUEUE_SIZE"
    failure: Any = SpanExportResult.FAILURE
    """What is answered where nothing is tried."""
    loggers: tuple[str, ...] = (
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.exporter.http.transport",
        "opentelemetry.sdk._shared_internal",
    )
    """Who is quiet from now on."""

    def __init__(self, exporter: Any, once: str = SPANS_FAIL) -> None:
        self.warn_of_loss = False
        self.once = once
        self.endpoint = endpoint_of(exporter)
        """Only read to name it, and to see whether anybody is there."""
        self.on_delivery: Callable[[str, Sequence[int], bool], None] | None = None
        """Told of each batch: the endpoint, the ids of its spans, and whether the exporter took them."""
        self.lost = 0
        """Spans that the exporter did not take."""
        self.dropped = 0
        """Spans that never came to the exporter: its queue was full."""
        self.waiting: Callable[[], int] = lambda: 1
        """How many spans are in the queue in front; unless somebody knows, there may be some."""
        self.rejected = 0
        """Spans that the endpoint took and said that it does not keep."""
        self._exporter = exporter
        self._exporting = False
        self._thread = 0
        self._counting = threading.RLock()
        self._closing = False
        self._down = False
        self._inherited = False
        wrong = wrong_address(exporter)
        self._no_address = wrong is not None
        if wrong is not None:
            say(f"{self.what} can't be sent to {self.endpoint}: {wrong}", once=self.once)
        quieten(self.loggers)
        rejections.listen(exporter, self._on_rejected, _quiet.hear)
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.lost = self.dropped = self.rejected = 0
        self._counting = threading.RLock()
        self._closing = self._down = self._exporting = False
        self._inherited = True

    def identify(self, items: Sequence[Any]) -> list[int]:
        """What tells an item from all others of this process."""
        return [span.context.span_id for span in items if span.context]

    def complete(self, items: Sequence[Any]) -> None:
        """Add to the items what has been learned since they were made."""
        for span in items:
            resource.complete(span)

    def export(self, items: Any, **how: Any) -> Any:
        """Export by the guarded exporter, with its answer."""
        if (self._closing and self._down) or self._no_address:
            self.account(items, taken=False)
            return self.failure
        if self._inherited:
            self._inherited = False
            renew_connections(self._exporter)
        self.complete(items)
        self._exporting = True
        self._thread = threading.get_ident()
        last_words()
        why = ""
        try:
            with AT_WORK:
                result = self._exporter.export(items, **how)
        except Exception as error:
            result, why = self.failure, describe(error)
        finally:
            self._exporting = False
        taken = result.name == SpanExportResult.SUCCESS.name  # each signal has an enumeration of its own
        self._down = not taken
        why = why or last_words()
        if not taken:
            because = f": {why}" if why else ""
            say(f"{self.what} could not be sent to {self.endpoint}{because}; training goes on", once=self.once)
        self.account(items, taken)
        return result

    def account(self, items: Any, taken: bool) -> None:
        """Count and tell what became of a batch."""
        if not taken:
            self.lost += len(items)
        if self.on_delivery is not None:
            self.on_delivery(self.endpoint, self.identify(items), taken)

    def trouble(self) -> str:
        """What the export that is at work has met with so far; empty where it just takes long."""
        return _quiet.heard.get(self._thread, "") if self._exporting else ""

    def _on_rejected(self, count: int, why: str) -> None:
        self.rejected += count
        rejects = f"rejects {self.what}" if count else f"warns of {self.what}"
        say(f"{self.endpoint} {rejects}{': ' if why else ''}{why}; training goes on", once=f"rejected {self.what}")

    def count_dropped(self, count: int, queue_size: int) -> None:
        """The processor in front has dropped the oldest spans of its queue."""
        with self._counting:
            self.dropped += count
        keeps = "" if self.warn_of_loss else "; the journal keeps them"
        say(
            f"{self.what} come faster than {self.endpoint} takes them: the queue of {queue_size} is full and "
            f"the oldest are dropped{keeps} ({self.queue_variable})",
            once=f"queue of {self.what} full",
        )

    def see_who_is_there(self) -> None:
        """The process ends: where nobody answers, there are no more tries."""
        if self._closing:
            return
        self._closing = True
        if self._no_address or not (self.waiting() or self._exporting):
            return
        why = why_unreachable(self.endpoint)
        if why is None:
            return
        self._down = True
        say(f"{self.what} could not be sent to {self.endpoint}: {why}", once=self.once)
        if not self._inherited:
            self._exporter.shutdown()  # also ends a retry that is waiting right now

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        # what came through a fork and was never used is the parent's to close
        if not (self._inherited or (self._closing and self._down)):
            self._exporter.shutdown(*args, **kwargs)
        self.say_what_was_lost()

    def say_what_was_lost(self) -> None:
        """One line with the counts, when there is something to count and no journal that has it."""
        if self.rejected:
            say(f"{self.endpoint} has rejected {self.rejected} {self.what}", once=f"all rejected {self.what}")
        lost = self.lost + self.dropped
        if not lost or not self.warn_of_loss:
            return
        dropped = f" ({self.dropped} of them dropped by the full queue)" if self.dropped else ""
        say(
            f"{lost} {self.what} were not sent to {self.endpoint}{dropped}; AUTOINSTR_JOURNAL=on keeps them on disk",
            once=f"lost {self.what}",
        )

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


class _CountedDrops:
    """Stands before a batch processor's own metrics, which are off by default, and hears of what its queue drops."""

    def __init__(self, metrics: Any, guarded: GuardedExporter, queue_size: int) -> None:
        self._metrics = metrics
        self._guarded = guarded
        self._queue_size = queue_size

    def drop_items(self, count: int, *why: Any) -> None:
        if not why:  # with a reason, it is another one than the full queue
            self._guarded.count_dropped(count, self._queue_size)
        self._metrics.drop_items(count, *why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metrics, name)


def endpoint_of(exporter: Any) -> str:
    """Where an exporter sends, or the name of its kind."""
    return str(getattr(exporter, "_endpoint", "") or type(exporter).__name__)


def address(endpoint: str) -> str:
    """Host and port of an endpoint."""
    return endpoint.partition("//")[2].partition("/")[0] or endpoint


def key_beside(span_guards: Iterable[GuardedExporter], exporter: Any) -> str:
    """The key of another signal's exporter: where it sends where spans go, what fails for both is said once."""
    here = address(endpoint_of(exporter))
    return SPANS_FAIL if here in {address(one.endpoint) for one in span_guards} else f"export to {here}"


class Exports:
    """The exports that are at work in this process, which can be held up for a moment. `with` is one export."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._held = False
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._held = False

    def __enter__(self) -> None:
        with self._changed:
            within(_HELD_SECONDS, lambda seconds: self._changed.wait_for(lambda: not self._held, seconds))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count = max(0, self._count - 1)
            self._changed.notify_all()

    def hold(self) -> None:
        """No export begins until `release`; those at work come to their end, unless they take too long."""
        with self._changed:
            self._held = True
            within(_HELD_SECONDS, lambda seconds: self._changed.wait_for(lambda: not self._count, seconds))

    def release(self) -> None:
        """Exports go on."""
        with self._changed:
            self._held = False
            self._changed.notify_all()


_HELD_SECONDS = 2.0
AT_WORK = Exports()


def let_go_of_descriptors(guards: Iterable[Any]) -> None:
    """Close the exporters' connections, whose descriptors nobody can move. Their next batch makes new ones."""
    for guarded in guards:
        exporter = guarded._exporter
        for holder in rejections.holders_of_sessions(exporter):
            holder._session.close()  # which can be used again
        if not hasattr(exporter, "_initialize_channel_and_stub"):
            continue
        guarded._inherited = True
        channel, exporter._channel, exporter._client = exporter._channel, None, None
        if channel is not None:
            channel.close()
    _wait_for_the_end_of_grpc()


def _wait_for_the_end_of_grpc() -> None:
    """With the last channel gRPC ends its threads, which close what is theirs; one that finds it closed aborts."""
    tasks = Path("/proc/self/task")
    for _ in range(_LOOKS_AT_GRPC):  # a program may have channels of its own
        if not any(map(_is_of_grpc, tasks.glob("*/comm"))):
            return
        time.sleep(0.001)


def _is_of_grpc(comm: Path) -> bool:
    try:
        return comm.read_text().startswith(("grpc_", "event_engine", "lifeguard"))
    except OSError:  # it has just ended
        return False


_abandoned: list[Any] = []
"""Connections of the parent that a forked child must neither use nor close: they stay referred to."""


def renew_connections(exporter: Any) -> None:
    """Give an OTLP exporter that came through a fork connections of its own. Never raises.

    Two processes that write to one HTTP connection garble each other's requests.
    """
    try:
        if hasattr(exporter, "_initialize_channel_and_stub"):
            _abandoned.append((getattr(exporter, "_channel", None), getattr(exporter, "_client", None)))
            exporter._initialize_channel_and_stub()
        for holder in rejections.holders_of_sessions(exporter):
            _abandoned.append(holder._session)
            holder._session = copy.deepcopy(holder._session)
    except Exception as error:
        say(f"an exporter could not be renewed after a fork: {type(error).__name__}: {error}", once="renew")


def wrong_address(exporter: Any) -> str | None:
    """Why nothing can ever be sent by this exporter: OTLP over HTTP to an address without `http://`. Else None."""
    endpoint = getattr(exporter, "_endpoint", None)
    if ".proto.http." not in type(exporter).__module__ or not isinstance(endpoint, str):
        return None
    try:
        scheme = urlsplit(endpoint).scheme
    except ValueError as error:
        return f"it is no address: {error}"
    if scheme in ("http", "https"):
        return None
    return "OTLP over HTTP needs http:// or https:// in front (OTEL_EXPORTER_OTLP_ENDPOINT)"


def why_unreachable(endpoint: str) -> str | None:
    """Why no TCP connection to the endpoint's host and port can be opened now. Unknown forms count as reachable.

    A resolver that does not answer takes many seconds: it is asked in another thread, and waited for in short.
    """
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        # bytes: a text would be encoded as IDNA, whose import here might meet one that a signal has interrupted
        host: Any = parts.hostname.encode("ascii") if parts.hostname else None
    except ValueError:  # of a malformed address; UnicodeError is one
        return None
    if host is None or port is None:
        return None
    found: list[str | None] = []

    def probe() -> None:
        try:
            with socket.create_connection((host, port), timeout=_PROBE_SECONDS):
                found.append(None)
        except socket.gaierror as error:
            found.append(f"its name can't be resolved ({error.strerror})")
        except OSError:
            found.append("nobody answers there")

    done = threading.Event()
    if not _hand_over((probe, done), _probing):
        probe()
    elif not within(_RESOLVE_SECONDS, done.wait) and not found:
        return f"its name is not resolved within {_RESOLVE_SECONDS:g} s"
    return found[0] if found else None


class _Quiet(logging.Filter):
    """Lets nothing of a logger through, and keeps the last words of each thread: the guard says them, once."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[int, str] = {}
        """By thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            if record.levelno >= logging.WARNING:
                self.hear(reason_in(record.getMessage()))
        except Exception:  # a message that does not fit its arguments
            pass
        return False

    def hear(self, reason: str) -> None:
        if reason:
            self.heard[threading.get_ident()] = reason


_quiet = _Quiet()

_CODE = re.compile(r"code: (?:StatusCode\.)?(\w+)(?:, (?:error details|reason): (.*))?")
_TRANSIENT = re.compile(r"Transient error (?:StatusCode\.)?(.*?) encountered while export.*?(?:Error details: (.*))?$")
_NO_REASON = ("due to timeout, max retries", "Shutdown in progress", "already shutdown")


def reason_in(message: str) -> str:
    """Why a batch was not taken, out of what OpenTelemetry's exporters log; empty where the message does not say."""
    text = " ".join(message.split())
    if any(words in text for words in _NO_REASON):
        return ""
    match = _CODE.search(text) or _TRANSIENT.search(text)
    if match is not None:
        text = " ".join(part for part in match.groups() if part and part != "None")
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 3] + "..."


def last_words() -> str:
    """What an exporter of this thread has logged of its failure since this was asked before."""
    return _quiet.heard.pop(threading.get_ident(), "")


def quieten(names: Sequence[str]) -> None:
    """Put the filter on loggers, once each; no level and no handler changes."""
    for name in names:
        logger = logging.getLogger(name)
        if _quiet not in logger.filters:
            logger.addFilter(_quiet)


def leave_random_alone() -> None:
    """Give OpenTelemetry's modules a random source of their own, where they use the global one."""
    own = random.SystemRandom()
    for name, module in list(sys.modules.items()):
        if not name.startswith("opentelemetry.") or not isinstance(module, types.ModuleType):
            continue
        if vars(module).get("random") is random:
            module.random = own  # type: ignore[attr-defined]


def finish(provider: Any, guards: Sequence[GuardedExporter]) -> None:
    """Flush and shut down `provider`, and the SDK's meter and logger providers, in at most `EXIT_SECONDS`.

    The work is done in threads: neither the SDK's processors nor its exporters promise a bound, and a signal's
    handler interrupts the main thread wherever it is, in the middle of an import for one. Called again while that
    goes on, this waits for it.
    """
    # what the thread does not finish must not be begun again, unbounded, by the SDK's own exit handlers
    for ends in (provider, *_other_providers()):
        for name in ("_atexit_handler", "_at_exit_handler"):
            if (handler := getattr(ends, name, None)) is not None:
                atexit.unregister(handler)
    done = threading.Event()
    work = (lambda: _end_all(provider, guards)), done
    if not _hand_over(work, _ending):
        _do(work)  # no bound but the exporters' own
    elif not within(EXIT_SECONDS, done.wait):
        said = {address(guarded.endpoint) for guarded in guards if guarded._down}
        slow = dict.fromkeys(g.endpoint for g in guards if address(g.endpoint) not in said)
        if slow or not guards:  # else it has been said that nothing arrives there, and why
            where = ", ".join(slow) or "the exporter"
            troubles = "; ".join(dict.fromkeys(filter(None, (g.trouble() for g in guards if g.endpoint in slow))))
            because = f" ({troubles})" if troubles else ""
            say(f"{where} is too slow{because}: the run ends after {EXIT_SECONDS:g} s without sending all spans")
    for exporter in guards:
        exporter.say_what_was_lost()


_Work = tuple[Callable[[], None], threading.Event]


class _StandIn:
    """A thread that is there before it is needed: Python 3.12 starts none any more at exit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.works: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._work_off, args=(self.works,), name=self.name, daemon=True)
            with no_signals():
                self.thread.start()

    @staticmethod
    def _work_off(works: queue.SimpleQueue[_Work]) -> None:
        while True:
            _do(works.get())


_ending = _StandIn("autoinstr-shutdown")
_probing = _StandIn("autoinstr-probe")
"""Beside the other, which waits for what this one learns."""


def stand_by() -> None:
    """Start the threads that end the exporters at exit."""
    _ending.start()
    _probing.start()


def _do(work: _Work) -> None:
    function, done = work
    try:
        function()
    except Exception as error:  # a malformed endpoint, for one: what can still be sent is sent by the others
        say(f"the exporters could not be ended: {type(error).__name__}: {error}", once="end")
    finally:
        done.set()


def _hand_over(work: _Work, stand_in: _StandIn) -> bool:
    """Have another thread do the work; False where there is none and none can be started."""
    if stand_in.thread is not None and stand_in.thread.is_alive():
        stand_in.works.put(work)
        return True
    try:
        with no_signals():
            threading.Thread(target=_do, args=(work,), name=stand_in.name, daemon=True).start()
    except RuntimeError:
        return False
    return True


_ended: set[int] = set()
_end_lock = threading.Lock()


def _reset_in_child() -> None:
    global _end_lock
    _end_lock = threading.Lock()
    _ending.reset()
    _probing.reset()
    _ended.clear()


os.register_at_fork(after_in_child=_reset_in_child)


def _end_all(provider: Any, guards: Sequence[GuardedExporter]) -> None:
    with _end_lock:
        if id(provider) in _ended:
            return
        _ended.add(id(provider))
        for exporter in guards:
            try:
                exporter.see_who_is_there()
            except Exception:  # an endpoint of no known form: its exporter will say so
                pass
        beside: list[threading.Thread] = []
        after: list[Any] = []
        for ends in _other_providers():
            thread = threading.Thread(target=_shut_down, args=(ends,), daemon=True)
            try:
                thread.start()  # by a thread of ours, whose mask it has
                beside.append(thread)
            except RuntimeError:  # Python 3.12 at exit
                after.append(ends)
        _shut_down(provider)
        for ends in after:
            _shut_down(ends)
        for thread in beside:
            thread.join()


def _shut_down(provider: Any) -> None:
    try:
        provider.shutdown()
    except Exception:  # it is the process's end, and the exporter has said what it had to say
        pass


def _other_providers() -> list[Any]:
    """The SDK's providers of metrics and logs, where they were set up; their exporters need the same bound."""
    found = []
    for module, getter in (
        ("opentelemetry.sdk.metrics", "opentelemetry.metrics"),
        ("opentelemetry.sdk._logs", "opentelemetry._logs"),
    ):
        if module not in sys.modules or getter not in sys.modules:
            continue
        get = getattr(sys.modules[getter], "get_meter_provider", None) or sys.modules[getter].get_logger_provider
        provider = get()
        # the training code may have ended it: the SDK would warn, maybe into a log that is closed by now
        if hasattr(provider, "shutdown") and getattr(provider, "_shutdown", False) is not True:
            found.append(provider)
    return found


def guard(provider: Any) -> list[GuardedExporter]:
    """Wrap the exporter of every batch processor of `provider`; what has another shape stays as it is."""
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    return guard_batch(processors, GuardedExporter)


Guard = TypeVar("Guard", bound=GuardedExporter)


def guard_batch(processors: Iterable[Any], make: Callable[[Any], Guard]) -> list[Guard]:
    """The same for the processors of any signal; `make` is the kind of guard."""
    guards: list[Guard] = []
    for processor in processors:
        batch = getattr(processor, "_batch_processor", None)
        exporter = getattr(batch, "_exporter", None)
        if batch is not None and hasattr(exporter, "export") and not isinstance(exporter, GuardedExporter):
            guarded = make(exporter)
            batch._exporter = guarded
            queue = getattr(batch, "_queue", None)
            if queue is not None:
                guarded.waiting = queue.__len__
            if hasattr(batch, "_metrics"):
                batch._metrics = _CountedDrops(batch._metrics, guarded, getattr(batch, "_max_queue_size", 0))
            guards.append(guarded)
    return guards

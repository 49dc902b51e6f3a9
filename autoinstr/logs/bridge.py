"""From `logging` to OpenTelemetry, by OpenTelemetry's own handler, which is put on no logger.

A handler on the root logger would be felt: `logging.basicConfig()` does nothing where there is one, warnings that
nobody handles no longer go to standard error, and code that looks whether logging is set up finds that it is. So the
handler is called after the record's own handlers, on the one way that all records take, `Logger.callHandlers`. It
takes what a handler on the root logger would: what loggers and their filters let through and what propagates up to
the root. No logger, level, handler or `logging` setting changes.
"""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from importlib import import_module
from typing import Any

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from autoinstr.maps.values import MISSING, is_sensitive, sendable, to_attribute
from autoinstr.notices import describe, say

_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}
_MOST_EXTRAS = 64
_MISSING_NOTICE = (
    "log records go nowhere: this OpenTelemetry has no handler for them; install opentelemetry-instrumentation-logging"
)


class LogBridge:
    """Installed once in a process; `remove` puts the original back."""

    def __init__(self, provider: Any) -> None:
        handler = otel_handler(provider)
        if handler is None:
            say(_MISSING_NOTICE)
        self._handler: Any = handler
        self._original: Any = None
        self._installed: Any = None
        self._off = False
        self._here = threading.local()

    def install(self) -> None:
        if self._handler is None or self._installed is not None:
            return
        self._off = False
        original = logging.Logger.callHandlers
        take = self._take

        @functools.wraps(original)
        def callHandlers(self: logging.Logger, record: logging.LogRecord) -> None:
            try:
                original(self, record)
            finally:
                take(self, record)

        # Who looks for the caller of a logging function passes over frames of this file: `logging` itself where it
        # reports a handler's error, and interceptors that hand records to another library.
        ours: Any = callHandlers
        ours.__code__ = ours.__code__.replace(co_filename=original.__code__.co_filename)
        self._original, self._installed = original, ours
        logging.Logger.callHandlers = ours  # type: ignore[method-assign]

    def remove(self) -> None:
        self._off = True
        if self._installed is not None and logging.Logger.callHandlers is self._installed:
            logging.Logger.callHandlers = self._original  # type: ignore[method-assign]
            self._installed = None

    def _take(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        """Hand a record on; never raises but for Ctrl-C, which belongs to the user."""
        if self._off or getattr(self._here, "busy", False):
            return  # what is logged while we log: by an argument's `__str__`, by a signal's handler
        self._here.busy = True
        try:
            if self._is_wanted(logger, record):
                self._handler.emit(translated(record))
        except Exception as error:
            say(f"a log record of {record.name!r} is not sent: {describe(error)}", once="log record")
        finally:
            self._here.busy = False

    def _is_wanted(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        name = record.name
        if type(name) is str and (name == "opentelemetry" or name.startswith("opentelemetry.")):
            return False  # what an exporter says of its own troubles would come back to it
        if not is_instrumentation_enabled():
            return False  # a library that an exporter uses
        above: logging.Logger | None = logger
        while above is not None and above.parent is not None:
            if not above.propagate:
                return False
            above = above.parent
        return not (above is not None and any(_is_otels(handler) for handler in above.handlers))


def otel_handler(provider: Any) -> logging.Handler | None:
    """OpenTelemetry's handler, from its instrumentation of logging or, where that is not installed, from the SDK."""
    handler: Any = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK's says that the other one is to be used
        try:
            handler = import_module("opentelemetry.instrumentation.logging.handler").LoggingHandler(
                logger_provider=provider
            )
        except ImportError:
            try:
                handler = import_module("opentelemetry.sdk._logs").LoggingHandler(logger_provider=provider)
            except (ImportError, AttributeError):
                return None
    # `logging.shutdown` flushes every handler there is, and this one's flush starts a thread, which Python 3.12
    # refuses at exit. The provider is flushed with the others.
    handler.flush = lambda: None
    return handler  # type: ignore[no-any-return]


def _is_otels(handler: Any) -> bool:
    """Whether somebody has put OpenTelemetry's handler there: then each record is sent already."""
    kind = type(handler)
    return kind.__name__ == "LoggingHandler" and kind.__module__.startswith("opentelemetry.")


def translated(record: logging.LogRecord) -> logging.LogRecord:
    """A copy of the record with its text made, and of what else it holds only what an attribute may be.

    A text that a formatter has made is taken, so that no argument is asked twice for its `__str__`.
    """
    copy = logging.LogRecord.__new__(logging.LogRecord)
    given = vars(record)
    fields = vars(copy)
    fields.update(given)
    text = given.get("message")
    copy.msg = sendable(text if type(text) is str else _text_of(record))  # else its batch would be lost with it
    copy.args = None
    extras = [key for key in given if key not in _FIELDS]
    for number, key in enumerate(extras):
        value = fields.pop(key)
        if number < _MOST_EXTRAS and isinstance(key, str):
            attribute = to_attribute(value, is_sensitive(key))
            if attribute is not MISSING:
                fields[key] = attribute
    if record.exc_info:
        fields.update(_exception(record))
        copy.exc_info = None
    return copy


def _text_of(record: logging.LogRecord) -> str:
    try:
        return str(record.getMessage())
    except Exception:  # an argument that does not fit or has a bad `__str__`: what the user wrote is still something
        return record.msg if type(record.msg) is str else type(record.msg).__name__


def _exception(record: logging.LogRecord) -> dict[str, str]:
    info: Any = record.exc_info
    kind, value, _ = info
    found = {} if kind is None else {"exception.type": str(kind.__name__)}
    if value is not None:
        name, _, text = describe(value).partition(": ")
        found["exception.message"] = sendable(text or name)
    stack = record.exc_text if type(record.exc_text) is str else logging.Formatter().formatException(info)
    return {**found, "exception.stacktrace": sendable(stack)}

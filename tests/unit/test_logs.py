"""Python's log records as OpenTelemetry's: which ones, with what, and nothing of `logging` changed."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context as context_api
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider

from autoinstr.logs.bridge import LogBridge, otel_handler


class Kept(LogRecordProcessor):
    def __init__(self) -> None:
        self.items: list[Any] = []

    def on_emit(self, log_record: Any) -> None:
        self.items.append(log_record)

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True

    @property
    def records(self) -> list[Any]:
        return [item.log_record for item in self.items]

    @property
    def bodies(self) -> list[Any]:
        return [record.body for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    provider = LoggerProvider(shutdown_on_exit=False)
    found = Kept()
    provider.add_log_record_processor(found)
    bridge = LogBridge(provider)
    before = logging.Logger.callHandlers
    handlers, level = list(logging.root.handlers), logging.root.level
    bridge.install()
    try:
        yield found
        assert (logging.root.handlers, logging.root.level) == (handlers, level)
    finally:
        bridge.remove()
        assert logging.Logger.callHandlers is before


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("training.loop")
    made.setLevel(logging.INFO)
    yield made
    made.handlers.clear()
    made.filters.clear()
    made.setLevel(logging.NOTSET)
    made.propagate = True


def stream_to(logger: logging.Logger, format: str = "%(message)s") -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(format))
    logger.addHandler(handler)
    return stream


# -- what a record becomes ------------------------------------------------------------------------------


def test_a_record_has_its_text_severity_logger_and_span(kept: Kept, logger: logging.Logger) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    with tracer.start_as_current_span("step") as span:
        logger.warning("loss %.2f at step %d", 0.5, 3, extra={"rl.iteration": 3, "tensor": object(), "api_key": "k"})
    logger.info("outside")
    inside, outside = kept.records
    assert (inside.body, inside.severity_text, inside.severity_number.value) == ("loss 0.50 at step 3", "WARN", 13)
    assert (inside.trace_id, inside.span_id) == (span.context.trace_id, span.context.span_id)
    assert kept.items[0].instrumentation_scope.name == "training.loop"
    extras = {k: v for k, v in inside.attributes.items() if not k.startswith("code.")}
    assert extras == {"rl.iteration": 3, "api_key": "[redacted]"}
    assert (outside.body, outside.trace_id, outside.span_id) == ("outside", 0, 0)


def test_an_exception_goes_along(kept: Kept, logger: logging.Logger) -> None:
    try:
        raise ValueError("no such model")
    except ValueError:
        logger.exception("failed")
    attributes = kept.records[0].attributes
    assert attributes["exception.type"] == "ValueError"
    assert attributes["exception.message"] == "no such model"
    assert attributes["exception.stacktrace"].splitlines()[-1] == "ValueError: no such model"


def test_a_text_that_no_exporter_can_encode_does_not_cost_its_batch(
    kept: Kept, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs

    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")  # as Python reads the name of such a file
    # pytest's keeps what it sees, and can't send it from one of its processes to another
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    logger.info("reading %s", name)
    try:
        raise ValueError(name)
    except ValueError:
        logger.exception("failed")
    encode_logs(kept.items)
    assert kept.bodies == ["reading caf?.txt", "failed"]
    assert kept.records[1].attributes["exception.message"] == "caf?.txt"


# -- which records --------------------------------------------------------------------------------------


def test_what_levels_and_filters_let_through(kept: Kept, logger: logging.Logger) -> None:
    logger.debug("below the level")
    logger.addFilter(lambda record: "secret" not in record.getMessage())
    logger.info("a secret")
    logger.info("well")
    logging.disable(logging.CRITICAL)
    try:
        logger.info("disabled")
    finally:
        logging.disable(logging.NOTSET)
    logger.propagate = False  # a handler on the root logger would not see it
    logger.info("kept to itself")
    assert kept.bodies == ["well"]


def test_what_a_handlers_filter_makes_of_a_record_is_sent(kept: Kept, logger: logging.Logger) -> None:
    def redact(record: logging.LogRecord) -> bool:
        record.msg, record.args = "password ***", ()
        return True

    stream_to(logger)
    logger.handlers[0].addFilter(redact)
    logger.info("password %s", "1234")
    assert kept.bodies == ["password ***"]


@pytest.mark.parametrize("name", ["opentelemetry", "opentelemetry.exporter.otlp"])
def test_what_opentelemetry_says_of_itself_is_not_sent(kept: Kept, name: str) -> None:
    logging.getLogger(name).error("can't export")
    logging.getLogger("opentelemetry_of_mine").error("mine")
    assert kept.bodies == ["mine"]


def test_what_an_exporters_libraries_log_is_not_sent(kept: Kept, logger: logging.Logger) -> None:
    """At level DEBUG, urllib3 logs every request: sending that would be one more request, without end."""
    token = context_api.attach(context_api.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        logger.info("starting new HTTPS connection")
    finally:
        context_api.detach(token)
    assert kept.bodies == []


def test_where_somebody_has_opentelemetrys_handler_on_the_root_logger_nothing_is_sent_twice(
    kept: Kept, logger: logging.Logger
) -> None:
    theirs = Kept()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(theirs)
    handler = otel_handler(provider)
    assert handler is not None
    logging.root.addHandler(handler)
    try:
        logger.info("once")
    finally:
        logging.root.removeHandler(handler)
    logger.info("again")
    assert (theirs.bodies, kept.bodies) == (["once"], ["again"])


def test_installed_twice_each_record_is_sent_once(logger: logging.Logger) -> None:
    provider = LoggerProvider(shutdown_on_exit=False)
    found = Kept()
    provider.add_log_record_processor(found)
    bridge = LogBridge(provider)
    bridge.install()
    bridge.install()
    try:
        logger.info("once")
    finally:
        bridge.remove()
    logger.info("after")
    assert found.bodies == ["once"]


# -- nothing is disturbed -------------------------------------------------------------------------------


class Counted:
    def __init__(self) -> None:
        self.asked = 0

    def __str__(self) -> str:
        self.asked += 1
        return "counted"


def test_no_argument_is_asked_twice_for_its_text(
    kept: Kept, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own format for themselves
    argument = Counted()
    stream = stream_to(logger)
    logger.info("value %s", argument)
    assert stream.getvalue() == "value counted\n"
    assert kept.bodies == ["value counted"]
    assert argument.asked == 1


class Bad:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("args", [("%s", Bad()), ("%d", "x"), ("%s %s", 1), (Bad(),), ("%s", SystemExit(3))])
def test_bad_arguments_raise_nothing_new(
    kept: Kept, logger: logging.Logger, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging, "raiseExceptions", False)
    stream_to(logger)
    logger.info(*args)
    (body,) = kept.bodies
    assert body in ("%s", "%d", "%s %s", "Bad", "3")


def test_a_handler_that_raises_raises_and_the_record_is_sent(kept: Kept, logger: logging.Logger) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    logger.addHandler(Raising())
    with pytest.raises(ZeroDivisionError):
        logger.info("well")
    assert kept.bodies == ["well"]


def test_a_processor_that_raises_is_said_once(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    class Raising(Kept):
        def on_emit(self, log_record: Any) -> None:
            raise ValueError("full")

    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(Raising())
    bridge = LogBridge(provider)
    bridge.install()
    try:
        logger.info("one")
        logger.info("two")
    finally:
        bridge.remove()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("autoinstr")]
    assert said == ["autoinstr: a log record of 'training.loop' is not sent: ValueError: full"]


def test_what_is_logged_while_a_record_is_sent_is_not_sent(logger: logging.Logger) -> None:
    class Logging(Kept):
        def on_emit(self, log_record: Any) -> None:
            super().on_emit(log_record)
            logger.info("from the processor")

    provider = LoggerProvider(shutdown_on_exit=False)
    found = Logging()
    provider.add_log_record_processor(found)
    bridge = LogBridge(provider)
    bridge.install()
    try:
        logger.info("one")
        other = threading.Thread(target=logger.info, args=("two",))
        other.start()
        other.join()
    finally:
        bridge.remove()
    assert found.bodies == ["one", "two"]


def test_the_caller_is_found_past_us(
    kept: Kept, logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `logging`, and by interceptors that pass over all frames of `logging`'s file."""
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's raise what a handler meets
    seen = []

    class Interceptor(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            frame: Any = sys._getframe()
            while frame.f_code is self.emit.__func__.__code__ or frame.f_code.co_filename == logging.__file__:
                frame = frame.f_back
            seen.append((frame.f_code.co_name, record.funcName))

    logger.addHandler(Interceptor())
    logger.info("well")
    assert seen == [("test_the_caller_is_found_past_us",) * 2]
    logger.handlers.clear()
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.info("%d", "x")
    error = capsys.readouterr().err
    called_from = error[error.index("Call stack:") : error.index("Message:")].rstrip().splitlines()
    assert called_from[-1].strip() == 'logger.info("%d", "x")'


QUIET = """
import logging, sys
if "bridge" in sys.argv:
    from opentelemetry.sdk._logs import LoggerProvider
    from autoinstr.logs.bridge import LogBridge
    LogBridge(LoggerProvider()).install()
logging.getLogger("a").warning("nobody handles it")
logging.getLogger("a").info("nor this")
print(logging.getLogger().handlers, logging.getLogger("a").hasHandlers(), logging.getLogger().level, flush=True)
logging.info("sets up logging, as it has no handler")
print(logging.getLogger().handlers, flush=True)
logging.getLogger().handlers.clear()
logging.basicConfig(level="DEBUG", stream=sys.stdout, format="%(name)s %(message)s")
logging.getLogger("b").debug("after basicConfig")
import logging.config
logging.config.dictConfig({"version": 1, "root": {"level": "INFO", "handlers": []}})
print(logging.getLogger().handlers, logging.getLogger().level, flush=True)
"""


def test_logging_behaves_as_without_us() -> None:
    """`lastResort`, `basicConfig`, `hasHandlers`, `dictConfig`: what a handler on the root logger would change."""
    plain, ours = (
        subprocess.run([sys.executable, "-c", QUIET, *more], capture_output=True, text=True, timeout=300)
        for more in ([], ["bridge"])
    )
    assert "nobody handles it" in plain.stderr
    assert "after basicConfig" in plain.stdout
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_without_any_handler_of_opentelemetrys_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autoinstr.logs.bridge.otel_handler", lambda provider: None)
    before = logging.Logger.callHandlers
    LogBridge(object()).install()
    assert logging.Logger.callHandlers is before
    assert "opentelemetry-instrumentation-logging" in capsys.readouterr().err

"""The journal is OTLP JSON: every line of a run parses as an OTLP request, and says what the exporter would have."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from autoinstr.journal.logs import JournalLogs
from autoinstr.journal.writer import JournalProcessor


def parse(line: str) -> Any:
    """One line as protobuf. OTLP's JSON has ids in hex where protobuf's own JSON has base64."""

    def mend(item: Any) -> Any:
        if isinstance(item, dict):
            return {
                k: base64.b64encode(bytes.fromhex(v)).decode()
                if k in ("traceId", "spanId", "parentSpanId")
                else mend(v)
                for k, v in item.items()
            }
        return [mend(i) for i in item] if isinstance(item, list) else item

    data = mend(json.loads(line))
    kind = ExportTraceServiceRequest if "resourceSpans" in data else ExportLogsServiceRequest
    return json_format.ParseDict(data, kind(), ignore_unknown_fields=False)


class Keep(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    """A provider that writes a journal, and what an exporter beside it was given."""
    provider = TracerProvider(resource=Resource({"service.name": "t", "n": 3}), shutdown_on_exit=False)
    keep = Keep()
    processor = JournalProcessor(tmp_path, "run")
    provider.add_span_processor(processor)
    provider.add_span_processor(SimpleSpanProcessor(keep))
    return provider.get_tracer("scope", "1.0", attributes={"autoinstr.group": "step"}), processor, keep


def test_a_line_is_what_the_exporter_would_have_sent(journal: Any) -> None:
    tracer, processor, keep = journal
    link = Link(SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1)), {"why": "earlier"})
    values = {"s": 'ä\n"q"\u2028', "i": -(2**40), "f": 0.1, "b": True, "list": ["a", "b"], "ints": [1, 2], "n": 2.0}
    with tracer.start_as_current_span("outer", kind=SpanKind.SERVER, attributes=values, links=[link]) as outer:
        outer.add_event("happened", {"x": 1})
        with pytest.raises(ValueError), tracer.start_as_current_span("inner"):
            raise ValueError("no")
    ours = [parse(line) for line in processor.path.read_text().splitlines() if '"resourceSpans"' in line]
    assert len(ours) == len(keep.spans) == 2
    for line, span in zip(ours, keep.spans, strict=True):
        theirs = encode_spans([span]).resource_spans[0]
        mine = line.resource_spans[0]
        resource = {a.key: a.value for a in mine.resource.attributes}
        assert {a.key: a.value for a in theirs.resource.attributes}.items() <= resource.items()
        assert mine.scope_spans[0].scope == theirs.scope_spans[0].scope
        got, expected = mine.scope_spans[0].spans[0], theirs.scope_spans[0].spans[0]
        # the exporter leaves the W3C flags out of the low byte, where OTLP wants them
        assert got.flags & 0xFF == span.context.trace_flags
        got.flags &= ~0xFF
        for link in got.links:
            link.flags &= ~0xFF
        assert got == expected


def test_a_log_records_line_is_what_the_exporter_would_have_sent(journal: Any) -> None:
    tracer, processor, _ = journal
    logs = LoggerProvider(resource=Resource({"service.name": "t"}), shutdown_on_exit=False)
    logs.add_log_record_processor(JournalLogs(processor))
    kept: list[Any] = []

    class Keep(LogRecordProcessor):
        def on_emit(self, log_record: Any) -> None:
            item = log_record
            kept.append(ReadableLogRecord(item.log_record, item.resource, item.instrumentation_scope, item.limits))

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return True

    logs.add_log_record_processor(Keep())
    logger = logs.get_logger("training", "1.0")
    with tracer.start_as_current_span("s"):
        logger.emit(
            LogRecord(
                timestamp=5, severity_number=SeverityNumber.ERROR, severity_text="ERROR", body='no "model"\n',
                attributes={"rl.iteration": 3, "f": 0.5, "list": ["a"]}, event_name="my.event",
            )
        )  # fmt: skip
    logger.emit(LogRecord(body={"loss": 0.5, "parts": [1, "b", True]}))
    logger.emit(
        LogRecord(timestamp=7, body="")
    )  # none at all is an empty value to older exporters, and absent to newer
    ours = [parse(line) for line in processor.path.read_text().splitlines() if '"training"' in line]
    assert len(ours) == 3
    for line, record in zip(ours, kept, strict=True):
        theirs, mine = encode_logs([record]).resource_logs[0].scope_logs[0], line.resource_logs[0].scope_logs[0]
        assert (mine.scope, mine.log_records[0]) == (theirs.scope, theirs.log_records[0])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e300, 5e-324])
def test_numbers_that_json_has_no_word_for(journal: Any, number: float) -> None:
    tracer, processor, _ = journal
    with tracer.start_as_current_span("s", attributes={"x": number}):
        pass
    line = processor.path.read_text().splitlines()[-1]
    value = parse(line).resource_spans[0].scope_spans[0].spans[0].attributes[0].value.double_value
    assert repr(value) == repr(number)


def test_every_record_of_a_journal_parses(journal: Any) -> None:
    tracer, processor, _ = journal
    with tracer.start_as_current_span("a", attributes={"k": "v"}), tracer.start_as_current_span("b"):
        pass
    kinds = [type(parse(line)).__name__ for line in processor.path.read_text().splitlines()]
    assert kinds == ["ExportLogsServiceRequest"] * 3 + ["ExportTraceServiceRequest"] * 2


def test_a_span_that_interrupts_the_opening_of_the_file_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal's handler or a finalizer that is traced, in the thread that opens: a start is lost, nothing hangs."""
    provider = TracerProvider(shutdown_on_exit=False)
    processor = JournalProcessor(tmp_path, "run")
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("t")

    def interrupted() -> str:
        monkeypatch.undo()
        tracer.start_span("handler")  # and is still open later
        return "host"

    monkeypatch.setattr("autoinstr.journal.writer.socket.gethostname", interrupted)
    worker = threading.Thread(target=lambda: tracer.start_span("span").end(), daemon=True)
    worker.start()
    worker.join(300)
    assert not worker.is_alive()
    (file,) = (tmp_path / "run").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) == 3, "the process's start, and the span's start and end"
    processor.end_process()  # else this process says it of the test, as it ends
    assert capsys.readouterr().err == f"autoinstr: the journal {file} lacks 1 records that could not be written\n"


@pytest.mark.parametrize("what", ["the file", "the folder", "the folder of all runs"])
def test_a_journal_that_is_deleted_begins_anew(
    journal: Any, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracer, processor, _ = journal
    with tracer.start_as_current_span("before"):
        pass
    path, first = processor.path, processor.path.read_text().splitlines()
    with tracer.start_as_current_span("open"):
        if what == "the file":
            processor.path.unlink()
        else:
            shutil.rmtree(tmp_path if what == "the folder of all runs" else processor.folder)
    with tracer.start_as_current_span("after"):
        pass

    again = processor.path.read_text().splitlines()
    assert again[0] == first[0]  # who the process is
    assert [line["name"] for line in map(name_of, again) if line] == ["open", "after"]
    assert processor.lost == 0
    assert list(processor.folder.iterdir()) == [processor.path] != [path]
    assert (
        capsys.readouterr().err == f"autoinstr: the journal {path} was deleted: it goes on in {processor.path.name}\n"
    )


def name_of(line: str) -> Any:
    read = json.loads(line)
    return read["resourceSpans"][0]["scopeSpans"][0]["spans"][0] if "resourceSpans" in read else None

"""OTLP JSON, written by hand for speed: one finished span, one log record, or one event, as one line.

Follows the OTLP/JSON mapping (opentelemetry-proto, `docs/specification.md`, JSON Protobuf Encoding): ids in
hex, 64-bit integers as strings, camelCase names. The Collector's `otlpjsonfile` receiver reads each line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

text = encode_basestring_ascii


def value(item: Any) -> str:
    """An OTLP AnyValue."""
    kind = type(item)
    if kind is str:
        return f'{{"stringValue":{text(item)}}}'
    if kind is bool:
        return '{"boolValue":true}' if item else '{"boolValue":false}'
    if kind is int:
        return f'{{"intValue":"{item}"}}'
    if kind is float:
        if math.isfinite(item):
            return f'{{"doubleValue":{item!r}}}'
        return '{"doubleValue":"NaN"}' if item != item else f'{{"doubleValue":"{"-" if item < 0 else ""}Infinity"}}'
    if isinstance(item, Mapping):
        return f'{{"kvlistValue":{{"values":{attributes(item)}}}}}'
    if isinstance(item, bytes):
        import base64

        return f'{{"bytesValue":"{base64.b64encode(item).decode()}"}}'
    if isinstance(item, Sequence) and not isinstance(item, str):
        return f'{{"arrayValue":{{"values":[{",".join([value(i) for i in item])}]}}}}'
    if isinstance(item, bool):
        return value(bool(item))
    if isinstance(item, int):
        return value(int(item))
    if isinstance(item, float):
        return value(float(item))
    if isinstance(item, str):
        return value(str.__str__(item))
    return "{}"


def attributes(items: Mapping[str, Any] | None) -> str:
    """A list of OTLP KeyValues."""
    if not items:
        return "[]"
    return "[" + ",".join([f'{{"key":{text(k)},"value":{value(v)}}}' for k, v in items.items()]) + "]"


def resource(resource_attributes: Mapping[str, Any]) -> str:
    return f'{{"attributes":{attributes(resource_attributes)}}}'


def scope(name: str, version: str | None, scope_attributes: Mapping[str, Any] | None) -> str:
    extra = f',"attributes":{attributes(scope_attributes)}' if scope_attributes else ""
    return f'{{"name":{text(name)},"version":{text(version or "")}{extra}}}'


def span(item: Any, end_ns: int | None = None) -> str:
    """One SDK `ReadableSpan`; as if it had ended at `end_ns`, where it has not ended."""
    context = item.context
    parent = item.parent
    parts = [f'{{"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"']
    flags = int(context.trace_flags) | 0x100  # bit 8: whether the parent is remote is known
    if parent is not None:
        parts.append(f',"parentSpanId":"{parent.span_id:016x}"')
        if parent.is_remote:
            flags |= 0x200
    if context.trace_state:
        parts.append(f',"traceState":{text(context.trace_state.to_header())}')
    parts.append(
        f',"flags":{flags},"name":{text(item.name)},"kind":{item.kind.value + 1}'
        f',"startTimeUnixNano":"{item.start_time}","endTimeUnixNano":"{item.end_time or end_ns}"'
        f',"attributes":{attributes(item.attributes)}'
    )
    if item.events:
        events = [
            f'{{"timeUnixNano":"{e.timestamp}","name":{text(e.name)},"attributes":{attributes(e.attributes)}}}'
            for e in item.events
        ]
        parts.append(f',"events":[{",".join(events)}]')
    if item.links:
        links = [
            f'{{"traceId":"{link.context.trace_id:032x}","spanId":"{link.context.span_id:016x}"'
            f',"attributes":{attributes(link.attributes)}'
            f',"flags":{int(link.context.trace_flags) | (0x300 if link.context.is_remote else 0x100)}}}'
            for link in item.links
        ]
        parts.append(f',"links":[{",".join(links)}]')
    status = item.status
    code = status.status_code.value
    if code:
        message = f',"message":{text(status.description)}' if status.description else ""
        parts.append(f',"status":{{"code":{code}{message}}}}}')
    else:
        parts.append(',"status":{}}')
    return "".join(parts)


def span_line(resource_json: str, scope_json: str, span_json: str) -> str:
    return (
        f'{{"resourceSpans":[{{"resource":{resource_json},"scopeSpans":[{{"scope":{scope_json}'
        f',"spans":[{span_json}]}}]}}]}}\n'
    )


def log(item: Any) -> str:
    """One SDK `ReadWriteLogRecord`."""
    record = item.log_record
    parts = [f'{{"timeUnixNano":"{record.timestamp or 0}","observedTimeUnixNano":"{record.observed_timestamp or 0}"']
    if record.severity_number is not None:
        parts.append(f',"severityNumber":{record.severity_number.value}')
    if record.severity_text:
        parts.append(f',"severityText":{text(record.severity_text)}')
    if record.event_name:
        parts.append(f',"eventName":{text(record.event_name)}')
    parts.append(f',"body":{value(record.body)},"attributes":{attributes(record.attributes)}')
    if item.dropped_attributes:
        parts.append(f',"droppedAttributesCount":{item.dropped_attributes}')
    if record.trace_id:
        parts.append(f',"traceId":"{record.trace_id:032x}"')
    if record.span_id:
        parts.append(f',"spanId":"{record.span_id:016x}"')
    parts.append(f',"flags":{int(record.trace_flags or 0)}}}')
    return "".join(parts)


def log_line(resource_json: str, scope_json: str, log_json: str) -> str:
    return (
        f'{{"resourceLogs":[{{"resource":{resource_json},"scopeLogs":[{{"scope":{scope_json}'
        f',"logRecords":[{log_json}]}}]}}]}}\n'
    )


def event_line(
    resource_json: str,
    version: str,
    name: str,
    time_ns: int,
    event_attributes: Mapping[str, Any],
    trace_id: int = 0,
    span_id: int = 0,
    severity: tuple[int, str] | None = None,
    body: str | None = None,
) -> str:
    """A log record with an event name."""
    more = f',"severityNumber":{severity[0]},"severityText":{text(severity[1])}' if severity else ""
    more += f',"body":{value(body)}' if body is not None else ""
    ids = f',"traceId":"{trace_id:032x}","spanId":"{span_id:016x}"' if span_id else ""
    return (
        f'{{"resourceLogs":[{{"resource":{resource_json},"scopeLogs":[{{"scope":{{"name":"autoinstr.journal"'
        f',"version":{text(version)}}},"logRecords":[{{"timeUnixNano":"{time_ns}","eventName":{text(name)}{more}{ids}'
        f',"attributes":{attributes(event_attributes)}}}]}}]}}]}}\n'
    )

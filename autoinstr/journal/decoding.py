"""OTLP's JSON lines and the attribute values in them, taken apart: the other way round is `encoding`.

What is misshapen raises one of `BROKEN`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

BROKEN = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What a misshapen line can raise while it is taken apart."""


def text(value: Any) -> str:
    """`value`, which has to be a text."""
    if not isinstance(value, str):
        raise TypeError(f"no text: {value!r}")
    return value


def attributes_of(encoded: list[dict[str, Any]] | None, of_bytes: Callable[[Any], Any] = text) -> dict[str, Any]:
    """A list of keys with values as a mapping. `of_bytes` is given bytes in base64, as JSON has them."""
    return {sys.intern(pair["key"]): value_of(pair.get("value") or {}, of_bytes) for pair in encoded or ()}


def value_of(encoded: dict[str, Any], of_bytes: Callable[[Any], Any] = text) -> Any:
    """One value; None where it holds none of a kind that is known."""
    for kind, held in encoded.items():
        if kind == "stringValue":
            return text(held)
        if kind == "intValue":
            return int(held)
        if kind == "doubleValue":
            return float(held)
        if kind == "boolValue":
            return bool(held)
        if kind == "arrayValue":
            return [value_of(item, of_bytes) for item in held.get("values", ())]
        if kind == "kvlistValue":
            return attributes_of(held.get("values"), of_bytes)
        if kind == "bytesValue":
            return of_bytes(held)
    return None


_LISTS = ((b',"spans":[', "Spans", "spans"), (b',"logRecords":[', "Logs", "logRecords"))
_END = b"]}]}]}\n"
_decode = json.JSONDecoder().raw_decode
_HEADS = 1000
"""So many beginnings of lines are kept: a journal has one for each span group, another's file may have any number."""


class Lines:
    """Takes lines apart as `json.loads` does, without the resource and the scope again that line after line repeats.

    They are three quarters of a journal. Lines that begin alike share them: nobody may change what comes out.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[Any, Any]] = {}

    def loads(self, line: bytes) -> Any:
        if line.endswith(_END):
            for mark, signal, name in _LISTS:
                # no text of JSON has this in it: its quotes are escaped
                begin = line.find(mark) + len(mark)
                if begin >= len(mark):
                    try:
                        text_of_item = line[begin : -len(_END)].decode()
                        item, end = _decode(text_of_item)
                        if end != len(text_of_item):  # several in one line
                            break
                        resource, scope = self._head(line[:begin], signal, name)
                    except ValueError:  # another shape
                        break
                    of_scope = {"scope": scope, name: [item]}
                    return {f"resource{signal}": [{"resource": resource, f"scope{signal}": [of_scope]}]}
        return json.loads(line)

    def _head(self, head: bytes, signal: str, name: str) -> tuple[Any, Any]:
        """The resource and the scope; ValueError where it holds anything else."""
        known = self._heads.get(head)
        if known is None:
            document = json.loads(head + _END)
            try:
                ((of_resource,),) = document.values()
                (of_scope,) = of_resource[f"scope{signal}"]
                resource, scope = of_resource["resource"], of_scope["scope"]
            except BROKEN as error:
                raise ValueError("no line of the journal") from error
            rebuilt = {f"resource{signal}": [{"resource": resource, f"scope{signal}": [{"scope": scope, name: []}]}]}
            if rebuilt != document:
                raise ValueError("no line of the journal")
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            known = self._heads[head] = resource, scope
        return known

"""OTLP's attribute values, as JSON lines hold them, taken apart: the other way round is `encoding`.

What is misshapen raises one of `BROKEN`.
"""

from __future__ import annotations

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
    return {sys.intern(text(pair["key"])): value_of(pair.get("value") or {}, of_bytes) for pair in encoded or ()}


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

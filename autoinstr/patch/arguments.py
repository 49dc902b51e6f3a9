"""Arguments that a map names and a function does not take: misspelt, they would be silently without effect."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from autoinstr.maps.metric_model import MetricTap
from autoinstr.maps.model import SpanEntry, Target
from autoinstr.maps.values import ValuePath, signature_of
from autoinstr.maps.words import did_you_mean

_READS_ARGUMENTS = ("function", "block", "each", "begin", "attributes_from")


def not_taken_by(function: Any, entry: SpanEntry, target: Target, role: str) -> Iterator[str]:
    """A line for each argument of a span's entry that `function`, the entry's `target`, does not take."""
    known = _known(function)
    if known is None:
        return
    for selector in target.selectors:
        if selector.argument not in known:
            yield f"{_lacks(target, selector.argument, known)}; no call of it is picked"
    if role in _READS_ARGUMENTS:
        for key, paths in entry.attributes:
            if _all_wrong(paths, known):
                yield f"{_lacks(target, paths[0].name or '', known)}; the attribute {key!r} is left out"
        for path, _ in entry.only_when:
            if _all_wrong((path,), known):
                yield f"{_lacks(target, path.name or '', known)}; for 'only_when' it is null"
    for path in entry.join.match or ():
        if role != "start_from" and _all_wrong((path,), known):
            yield f"{_lacks(target, path.name or '', known)}; 'match' does not tell by it"


def not_taken_by_tapped(function: Any, tap: MetricTap) -> Iterator[str]:
    """A line for each argument of a metric tap that `function` does not take."""
    known = _known(function)
    if known is None:
        return
    if tap.values is not None and _all_wrong((tap.values,), known):
        yield f"{_lacks(tap.target, tap.values.name or '', known)}; 'values' are never found"
    for path, _ in tap.only_when:
        if _all_wrong((path,), known):
            yield f"{_lacks(tap.target, path.name or '', known)}; 'only_when' never holds"
    for series in tap.series:
        if series.value is not None and _all_wrong((series.value,), known):
            yield f"{_lacks(tap.target, series.value.name or '', known)}; {series.name} is never fed"


def _known(function: Any) -> list[str] | None:
    """The names that a call can hand over; None where there may be any."""
    signature = signature_of(function)
    if signature is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return None
    return [name for name, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_POSITIONAL]


def _all_wrong(paths: tuple[ValuePath, ...], known: list[str]) -> bool:
    return bool(paths) and all(path.root == "args" and path.name not in known for path in paths)


def _lacks(target: Target, name: str, known: list[str]) -> str:
    return f"{target} takes no {name!r}{did_you_mean(name, known)}"

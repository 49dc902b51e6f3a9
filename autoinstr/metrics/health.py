"""How autoinstr itself is doing, as `autoinstr.*`. Read when metrics are collected: a run pays nothing between."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from autoinstr.patch.ledger import MISSING
from autoinstr.spans.opening import is_ours

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from autoinstr.patch.ledger import Ledger


_ABSENT = "absent"
"""The state of a target that nobody misses: it is optional, of another release, or one of its alternatives is there."""


class SpanCounts(SpanProcessor):
    """Counts the spans of ours that begin and end in this process."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.started = self.ended = 0
        self._lock = threading.Lock()

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        if is_ours(span):
            with self._lock:
                self.started += 1

    def on_end(self, span: ReadableSpan) -> None:
        if is_ours(span):
            with self._lock:
                self.ended += 1

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


def observe(
    meter: Meter, ledger: Callable[[], Ledger | None], spans: SpanCounts, guards: Sequence[Any], journal: Any | None
) -> None:
    """Make the instruments. `guards` count the spans that their exporter did not take; `journal` has a `path`."""

    def states(_: CallbackOptions) -> Iterable[Observation]:
        counts: dict[str, int] = {}
        current = ledger()
        for record in list(current.records) if current is not None else ():
            state = _ABSENT if record.state == MISSING and not record.said else record.state
            counts[state] = counts.get(state, 0) + 1
        return [Observation(n, {"autoinstr.patch.state": state}) for state, n in sorted(counts.items())]

    def one(read: Callable[[], int]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        return [lambda _: [Observation(read())]]

    meter.create_observable_gauge(
        "autoinstr.patches", [states], "{patch}", "join points by state: applied, pending, absent, missing, refused"
    )
    meter.create_observable_counter(
        "autoinstr.spans.started", one(lambda: spans.started), "{span}", "spans that began in this process"
    )
    meter.create_observable_counter(
        "autoinstr.spans.ended", one(lambda: spans.ended), "{span}", "spans that ended in this process"
    )
    meter.create_observable_counter(
        "autoinstr.spans.dropped",
        one(lambda: sum(guard.lost + guard.dropped for guard in guards)),
        "{span}",
        "spans that the queue dropped or the exporter did not take",
    )
    if journal is not None:
        meter.create_observable_counter(
            "autoinstr.journal.size", one(lambda: _size(journal)), "By", "bytes that this process has put on disk"
        )


def _size(journal: Any) -> int:
    path = journal.path
    try:
        return int(path.stat().st_size) if path is not None else 0
    except OSError:
        return 0

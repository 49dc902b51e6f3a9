"""Exports can be held up for a moment: while all descriptors are closed, none is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from autoinstr.exporting.connections import Exports


class Seen(threading.Condition):
    """Calls `on_wait` when a thread is about to wait, with everything that it has changed still locked."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        super().__init__()
        self._on_wait = on_wait

    def wait(self, timeout: float | None = None) -> bool:
        self._on_wait()
        return super().wait(timeout)


def test_hold_waits_for_what_is_at_work_and_keeps_the_next_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoinstr.exporting.connections._HELD_SECONDS", 600.0)
    exports: Any = Exports()
    events: list[str] = []
    begun, first_may_end, second_waits = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with exports:
            begun.set()
            first_may_end.wait()
            events.append("first ends")

    def second() -> None:
        with exports:
            events.append("second begins")

    one, two = threading.Thread(target=first, daemon=True), threading.Thread(target=second, daemon=True)
    one.start()
    begun.wait()
    exports._changed = Seen(first_may_end.set)
    exports.hold()
    events.append("held")
    first_may_end.set()
    exports._changed = Seen(second_waits.set)
    two.start()
    assert second_waits.wait(300)
    events.append("released")
    exports.release()
    one.join()
    two.join()
    assert events == ["first ends", "held", "released", "second begins"]


def test_an_export_that_closes_descriptors_itself_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoinstr.exporting.connections._HELD_SECONDS", 0.01)
    exports = Exports()
    with exports:
        exports.hold()
        exports.release()

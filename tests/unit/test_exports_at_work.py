"""Exports can be held up for a moment: while all descriptors are closed, none is at work."""

from __future__ import annotations

import threading

from autoinstr.exporting import Exports


def test_hold_waits_for_what_is_at_work_and_keeps_the_next_one_out() -> None:
    exports, events = Exports(), []
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with exports:
            begun.set()
            may_end.wait()
            events.append("first ends")

    def second() -> None:
        with exports:
            events.append("second begins")

    one, two = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    begun.wait()
    threading.Timer(0.05, may_end.set).start()
    exports.hold()
    events.append("held")
    two.start()
    two.join(0.05)
    events.append("released")
    exports.release()
    one.join()
    two.join()
    assert events == ["first ends", "held", "released", "second begins"]


def test_an_export_that_closes_descriptors_itself_does_not_wait_for_ever() -> None:
    exports = Exports()
    with exports:
        exports.hold()
        exports.release()

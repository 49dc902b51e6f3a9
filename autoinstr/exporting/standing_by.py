"""Work that another thread does, for its caller has a bound or is interrupted by a signal in the middle of anything.

The threads are there before they are needed: Python 3.12 starts none any more at exit.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from autoinstr.notices import say
from autoinstr.signal_masks import no_signals

Work = tuple[Callable[[], None], threading.Event]


class StandIn:
    """One such thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._work_off, args=(self.works,), name=self.name, daemon=True)
            with no_signals():
                self.thread.start()

    @staticmethod
    def _work_off(works: queue.SimpleQueue[Work]) -> None:
        while True:
            do(works.get())


ENDING = StandIn("autoinstr-shutdown")
PROBING = StandIn("autoinstr-probe")
"""Beside the other, which waits for what this one learns."""


def stand_by() -> None:
    """Start the threads that end the exporters at exit."""
    ENDING.start()
    PROBING.start()


def do(work: Work) -> None:
    """The work itself; whoever waits for it goes on in any case."""
    function, done = work
    try:
        function()
    except Exception as error:  # a malformed endpoint, for one: what can still be sent is sent by the others
        say(f"the exporters could not be ended: {type(error).__name__}: {error}", once="end")
    finally:
        done.set()


def hand_over(work: Work, stand_in: StandIn) -> bool:
    """Have another thread do the work; False where there is none and none can be started."""
    if stand_in.thread is not None and stand_in.thread.is_alive():
        stand_in.works.put(work)
        return True
    try:
        with no_signals():
            threading.Thread(target=do, args=(work,), name=stand_in.name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _reset_in_child() -> None:
    ENDING.reset()
    PROBING.reset()


os.register_at_fork(after_in_child=_reset_in_child)

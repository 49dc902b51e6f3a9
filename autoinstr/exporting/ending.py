"""The end of a process: what is left is sent, within a bound."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from autoinstr.exporting.guards import GuardedExporter, address
from autoinstr.exporting.standing_by import ENDING, do, hand_over
from autoinstr.notices import say
from autoinstr.patience import within

EXIT_SECONDS = 5.0
"""How long the end of the process may wait for a collector that answers."""


def finish(provider: Any, guards: Sequence[GuardedExporter]) -> None:
    """Flush and shut down `provider`, and the SDK's meter and logger providers, in at most `EXIT_SECONDS`.

    The work is done in threads: neither the SDK's processors nor its exporters promise a bound, and a signal's
    handler interrupts the main thread wherever it is, in the middle of an import for one. Called again while that
    goes on, this waits for it.
    """
    # what the thread does not finish must not be begun again, unbounded, by the SDK's own exit handlers
    for ends in (provider, *_other_providers()):
        for name in ("_atexit_handler", "_at_exit_handler"):
            if (handler := getattr(ends, name, None)) is not None:
                atexit.unregister(handler)
    done = threading.Event()
    work = (lambda: _end_all(provider, guards)), done
    if not hand_over(work, ENDING):
        do(work)  # no bound but the exporters' own
    elif not within(EXIT_SECONDS, done.wait):
        said = {address(guarded.endpoint) for guarded in guards if guarded._down}
        slow = dict.fromkeys(g.endpoint for g in guards if address(g.endpoint) not in said)
        if slow or not guards:  # else it has been said that nothing arrives there, and why
            where = ", ".join(slow) or "the exporter"
            troubles = "; ".join(dict.fromkeys(filter(None, (g.trouble() for g in guards if g.endpoint in slow))))
            because = f" ({troubles})" if troubles else ""
            say(f"{where} is too slow{because}: the run ends after {EXIT_SECONDS:g} s without sending all spans")
    for exporter in guards:
        exporter.say_what_was_lost()


_ended: set[int] = set()
_end_lock = threading.Lock()


def _reset_in_child() -> None:
    global _end_lock
    _end_lock = threading.Lock()
    _ended.clear()


os.register_at_fork(after_in_child=_reset_in_child)


def _end_all(provider: Any, guards: Sequence[GuardedExporter]) -> None:
    with _end_lock:
        if id(provider) in _ended:
            return
        _ended.add(id(provider))
        for exporter in guards:
            try:
                exporter.see_who_is_there()
            except Exception:  # an endpoint of no known form: its exporter will say so
                pass
        beside: list[threading.Thread] = []
        after: list[Any] = []
        for ends in _other_providers():
            thread = threading.Thread(target=_shut_down, args=(ends,), daemon=True)
            try:
                thread.start()  # by a thread of ours, whose mask it has
                beside.append(thread)
            except RuntimeError:  # Python 3.12 at exit
                after.append(ends)
        _shut_down(provider)
        for ends in after:
            _shut_down(ends)
        for thread in beside:
            thread.join()


def _shut_down(provider: Any) -> None:
    try:
        provider.shutdown()
    except Exception:  # it is the process's end, and the exporter has said what it had to say
        pass


def _other_providers() -> list[Any]:
    """The SDK's providers of metrics and logs, where they were set up; their exporters need the same bound."""
    found = []
    for module, getter in (
        ("opentelemetry.sdk.metrics", "opentelemetry.metrics"),
        ("opentelemetry.sdk._logs", "opentelemetry._logs"),
    ):
        if module not in sys.modules or getter not in sys.modules:
            continue
        get = getattr(sys.modules[getter], "get_meter_provider", None) or sys.modules[getter].get_logger_provider
        provider = get()
        # the training code may have ended it: the SDK would warn, maybe into a log that is closed by now
        if hasattr(provider, "shutdown") and getattr(provider, "_shutdown", False) is not True:
            found.append(provider)
    return found

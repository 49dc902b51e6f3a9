"""One clear line on standard error, once: how autoinstr speaks to the user of a run.

Written to standard error and not through `logging`: most notices are made while the interpreter starts,
before the training code configures its loggers, and a logger's level may hide them.
"""

from __future__ import annotations

import sys
import threading

_said: set[str] = set()
_lock = threading.Lock()


def say(text: str, *, once: str | None = None) -> None:
    """Write `autoinstr: text` to standard error; never raises.

    `once` is the key that makes a repeated notice silent; the text itself is the default key.
    """
    key = once if once is not None else text
    with _lock:
        if key in _said:
            return
        _said.add(key)
    try:
        stream = sys.stderr
        if stream is not None:
            stream.write(f"autoinstr: {text}\n")
            stream.flush()
    except Exception:  # a closed or broken standard error must not reach the training code
        pass


def forget() -> None:
    """Let every notice be said again (for tests)."""
    with _lock:
        _said.clear()

"""One clear line on standard error, once: how autoinstr speaks to the user of a run.

Written to standard error and not through `logging`: most notices are made while the interpreter starts,
before the training code configures its loggers, and a logger's level may hide them.
"""

from __future__ import annotations

import sys

MAX_TEXT = 1024
"""Descriptions of errors are cut to this many characters."""

_said: dict[str, object] = {}


def say(text: str, *, once: str | None = None) -> None:
    """Write `autoinstr: text` to standard error; never raises.

    `once` is the key that makes a repeated notice silent; the text itself is the default key.
    """
    # no lock: a signal handler or a finalizer may come here while this very thread is here
    mine = object()
    if _said.setdefault(once if once is not None else text, mine) is not mine:
        return
    try:
        stream = sys.stderr
        if stream is not None:
            stream.write(f"autoinstr: {text}\n")
            stream.flush()
    except Exception:  # a closed or broken standard error must not reach the training code
        pass


def forget() -> None:
    """Let every notice be said again (for tests)."""
    _said.clear()


def describe(error: BaseException) -> str:
    """`Type: text` of an error; never raises, though an error's own `__str__` may."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = ""
    name = type(error).__name__
    return f"{name}: {text[:MAX_TEXT]}" if text else name

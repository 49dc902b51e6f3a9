"""Exceptions of the program's that come up in our code: what a signal handler of its own raises there.

A handler runs between any two instructions of the main thread, so also between ours. What it raises (the limit of
`signal.alarm` on a slow answer, `sys.exit` at SIGTERM) is meant for the program. Taken for a fault of ours it would be
lost: the time limit would never come again, the process would not end.
"""

from __future__ import annotations

import functools
import signal
import threading
import types
from typing import Any


def is_the_programs(error: BaseException) -> bool:
    """Whether an exception that has come up in our code is to pass: Ctrl-C, or what a signal handler has raised."""
    if isinstance(error, KeyboardInterrupt):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers: list[Any] | None = None
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if str(frame.f_globals.get("__name__")).startswith("autoinstr."):
            continue  # most errors are ours alone, and handlers need not be asked for
        if handlers is None:
            handlers = [_code_of(signal.getsignal(number)) for number in signal.valid_signals()]
        if any(frame.f_code is code for code in handlers):
            return True
    return False


def _code_of(handler: Any) -> Any:
    """The code that runs first as a handler is called; None for one that is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004
    return getattr(handler, "__code__", None)

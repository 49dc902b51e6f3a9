"""Threads that are started inside a span whose map says `threads: true` have that span as their parent.

Python starts a thread with an empty context. While an entry asks for it, `Thread.start` and
`ThreadPoolExecutor.submit` (and so `loop.run_in_executor`) take the current context along;
`asyncio.to_thread` does so by itself. Outside such a span both do what they always did.
"""

from __future__ import annotations

import concurrent.futures.thread as pool
import functools
import threading
from collections.abc import Callable
from typing import Any

from opentelemetry.context import Context

from autoinstr.patch.importlib_bootstrap import uncounted
from autoinstr.spans.opening import attach, carries_into_threads, detach, get_current

_lock = threading.Lock()
_users = 0
_originals: tuple[Callable[..., Any], Callable[..., Any]] | None = None
_installed: tuple[Callable[..., Any], Callable[..., Any]] | None = None


def install() -> None:
    """Patch the two starting points; counted, so that each `install` wants one `remove`."""
    global _users, _originals, _installed
    with _lock:
        _users += 1
        if _users > 1:
            return
        start: Any = threading.Thread.start
        submit: Any = pool.ThreadPoolExecutor.submit
        _originals = (start, submit)

        def start_in_context(self: threading.Thread, *args: Any, **kwargs: Any) -> Any:
            context = get_current()
            # a pool's own threads live on: they must not keep the span of whoever happened to submit first
            if carries_into_threads(context) and getattr(self, "_target", None) is not pool._worker:
                self.run = functools.partial(_run_once, self, self.run, context)  # type: ignore[method-assign]
            return start(self, *args, **kwargs)

        def submit_in_context(self: Any, /, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            context = get_current()
            if carries_into_threads(context):
                return submit(self, functools.partial(_in_context, context, fn), *args, **kwargs)
            return submit(self, fn, *args, **kwargs)

        functools.update_wrapper(start_in_context, start)
        functools.update_wrapper(submit_in_context, submit)
        _installed = (start_in_context, submit_in_context)
        threading.Thread.start = start_in_context  # type: ignore[method-assign]
        pool.ThreadPoolExecutor.submit = submit_in_context  # type: ignore[method-assign,assignment]


def remove() -> None:
    """Undo one `install`; with the last one the originals are back, where nobody has patched them since."""
    global _users, _originals, _installed
    with _lock:
        if _users == 0:
            return
        _users -= 1
        if _users or _originals is None or _installed is None:
            return
        if threading.Thread.start is _installed[0]:
            threading.Thread.start = _originals[0]  # type: ignore[method-assign]
        if pool.ThreadPoolExecutor.submit is _installed[1]:
            pool.ThreadPoolExecutor.submit = _originals[1]  # type: ignore[method-assign]
        _originals = _installed = None


@uncounted
def _run_once(thread: threading.Thread, run: Callable[[], Any], context: Context) -> None:
    del thread.run  # the class's own again: a thread object is left as it came
    _in_context(context, run)


@uncounted
def _in_context(context: Context, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = attach(context)
    try:
        return function(*args, **kwargs)
    finally:
        detach(token)

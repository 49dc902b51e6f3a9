"""SIGTERM (SLURM's preemption, `kill`, `docker stop`): send what waits in a queue, then die of it as before.

Only where nobody handles SIGTERM, only from the main thread, and only for a process with something to send.
A handler that is there already stays, and one that is set later takes our place: such a process either goes on
or comes to its end through `atexit`, which sends as well. The program does not see ours (`hidden_handler`): it finds
the default, and where it sets the default, ours comes back.

Python runs a handler in the main thread, between two of its instructions. A main thread that hangs inside a
library (a collective that waits for a dead rank) would no longer die of SIGTERM, so a thread of ours learns of
the signal from `signal.set_wakeup_fd` and does the same without the main thread. While somebody else has that
descriptor (asyncio's signal handlers), the handler alone has to do.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from autoinstr.descriptors import identity_of, moved_high
from autoinstr.hidden_handler import HiddenHandler
from autoinstr.patience import within
from autoinstr.signal_masks import no_signals

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of whoever wrote (unix(7))


class Termination:
    """`flush` is called once, in a thread of its own, before the process dies; waited for up to `seconds`."""

    def __init__(self, flush: Callable[[], None], seconds: float) -> None:
        self._flush = flush
        self._seconds = seconds
        self._installed = False
        self._sockets: tuple[_Ours, _Ours] | None = None
        self._reset()

        def on_sigterm(signum: int, frame: FrameType | None) -> None:
            self._on_sigterm()

        self._handler = HiddenHandler(signal.SIGTERM, on_sigterm)

    def _reset(self) -> None:
        # plain locks: a handler may interrupt anything, also the inside of a `threading.Event`
        self._claimed = _thread.allocate_lock()
        self._flushed = _thread.allocate_lock()
        self._flushed.acquire()
        self._dying = False

    def install(self) -> bool:
        """Handle SIGTERM from here on. False where that is not ours to do."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return False
        try:
            if not self._handler.install():
                return False
        except (ValueError, OSError):  # a subinterpreter
            return False
        self._installed = True
        self._watch()
        os.register_at_fork(after_in_child=self._in_child)
        return True

    def remove(self) -> None:
        """Leave SIGTERM as it was, unless somebody has taken it over since."""
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._installed = False
        self._unwatch()
        self._handler.remove()

    # -- the signal -----------------------------------------------------------------------------------

    def _on_sigterm(self) -> None:
        if not self._handler.is_there():
            return  # whoever has got hold of it all the same calls it from a handler of his
        if not self._dying:  # the second SIGTERM of an impatient sender ends the waiting
            self._dying = True
            if self._claimed.acquire(False):
                try:
                    # not threading.Thread: its lock may be held by what we interrupt
                    with no_signals():
                        _thread.start_new_thread(self._run_flush, ())
                except RuntimeError:
                    self._flushed.release()
            within(self._seconds, lambda seconds: self._flushed.acquire(timeout=seconds))
        self._handler.give_way()
        os.kill(os.getpid(), signal.SIGTERM)

    def _run_flush(self) -> None:
        try:
            self._flush()
        except Exception:  # the process dies now, whatever happens
            pass
        self._flushed.release()

    # -- when the main thread is stuck ----------------------------------------------------------------

    def _watch(self) -> None:
        if not hasattr(socket, "SO_PASSCRED"):
            return
        reader, writer = map(_Ours, socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        writer.socket.setblocking(False)
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if not self._handler.wake_up_by(lambda: writer.number if writer.is_ours() else -1):
            reader.close()
            writer.close()
            return
        self._sockets = (reader, writer)
        with no_signals():
            threading.Thread(target=self._listen, args=(reader,), name="autoinstr-sigterm", daemon=True).start()

    def _unwatch(self) -> None:
        if self._sockets is None:
            return
        reader, writer = self._sockets
        self._sockets = None
        self._handler.wake_up_no_more()
        reader.wake()
        reader.close()
        writer.close()

    def let_go(self) -> None:
        """All descriptors will be closed: a byte for each signal must not go to what is opened in their place.

        From here on the handler alone has to do.
        """
        if threading.current_thread() is threading.main_thread():
            self._unwatch()

    def _listen(self, reader: _Ours) -> None:
        while reader.is_ours():
            try:
                data, ancillary, _, _ = reader.socket.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return
            if not data:
                return
            # a forked child shares the descriptor until it has set its own
            sender = _sender(ancillary)
            if data[0] != signal.SIGTERM or sender != os.getpid():
                continue
            if not self._handler.is_there() or not self._claimed.acquire(False):
                continue
            self._run_flush()
            # `signal.signal` is for the main thread only, and that one may never come back
            libc = ctypes.CDLL(None)
            libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
            libc.signal(int(signal.SIGTERM), None)  # SIG_DFL
            os.kill(os.getpid(), signal.SIGTERM)

    def _in_child(self) -> None:
        """A forked child has the handler, and needs a thread and a descriptor of its own."""
        if not self._installed:
            return
        self._reset()
        try:
            if self._sockets is not None:
                reader, writer = self._sockets
                self._sockets = None
                self._handler.wake_up_no_more()
                reader.close()
                writer.close()
            if self._handler.is_there():
                self._watch()
        except Exception:  # the handler alone has to do
            pass


class _Ours:
    """A socket of ours under a high number, which may have become somebody else's."""

    def __init__(self, low: socket.socket) -> None:
        self.socket = socket.socket(fileno=moved_high(low.detach()))
        self.number = self.socket.fileno()
        self._identity = identity_of(self.number)

    def is_ours(self) -> bool:
        return self.socket.fileno() >= 0 and identity_of(self.number) == self._identity

    def wake(self) -> None:
        """End the waiting of the thread that reads."""
        if self.is_ours():
            try:
                self.socket.shutdown(socket.SHUT_RD)
            except OSError:
                pass

    def close(self) -> None:
        if self.is_ours():
            self.socket.close()
        else:
            self.socket.detach()


def _sender(ancillary: list[tuple[int, int, Any]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == getattr(socket, "SCM_CREDENTIALS", 2):
            return int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
    return None

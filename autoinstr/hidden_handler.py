"""A signal handler of ours that the program does not see: where it looks, gets back or sets, there is the default.

Programs decide by what they find. Lightning handles SIGTERM only where nobody does; a handler calls the one before it,
and dies of the signal where that was `SIG_DFL`; trio warns where `signal.set_wakeup_fd` has been used. So
`signal.signal`, `getsignal` and `set_wakeup_fd` are patched to tell of what the program has set, and to put ours
back where it sets the default.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

Handler = Callable[[int, Any], Any]


class HiddenHandler:
    """`handler` in the place of the default of `signum`, while installed. For the main thread, but for `is_there`."""

    def __init__(self, signum: signal.Signals, handler: Handler) -> None:
        self._signum = signum
        self._handler = handler
        self._wakeup: Callable[[], int] = lambda: -1
        self._installed = False
        self._originals: dict[str, Any] = {}
        self._patches: dict[str, Any] = {}

    def is_there(self) -> bool:
        """Whether the handler is what the signal calls now."""
        return self._original("getsignal")(self._signum) is self._handler

    def install(self) -> bool:
        """Put the handler in the default's place; False where somebody else handles the signal. Raises ValueError."""
        if signal.getsignal(self._signum) is not signal.SIG_DFL:
            return False
        signal.signal(self._signum, self._handler)
        self._installed = True
        self._originals = {name: getattr(signal, name) for name in ("signal", "getsignal", "set_wakeup_fd")}
        self._patches = self._made()
        for name, patch in self._patches.items():
            setattr(signal, name, patch)
        return True

    def remove(self) -> None:
        """Leave the signal as the program thinks it is."""
        self._installed = False  # somebody may have wrapped the patches
        self.give_way()
        for name, patch in self._patches.items():
            if getattr(signal, name) is patch:
                setattr(signal, name, self._originals[name])
        self._patches = {}

    def give_way(self) -> None:
        """The true default from here on, where the handler is still there."""
        if self.is_there():
            self._original("signal")(self._signum, signal.SIG_DFL)

    def wake_up_by(self, descriptor: Callable[[], int]) -> bool:
        """Have a byte for each signal written to a descriptor, where nobody else has it done; it is asked for again.

        It gives -1 when it is no more.
        """
        before = self._set_wakeup(descriptor())
        if before != -1:
            self._original("set_wakeup_fd")(before)
            return False
        self._wakeup = descriptor
        return True

    def wake_up_no_more(self) -> None:
        """The program's own descriptor, where it has set one, stays."""
        ours, self._wakeup = self._wakeup(), lambda: -1
        before = self._set_wakeup(-1)
        if before not in (-1, ours):
            self._original("set_wakeup_fd")(before)

    def _original(self, name: str) -> Any:
        return self._originals.get(name, getattr(signal, name))

    def _set_wakeup(self, descriptor: int) -> int:
        set_wakeup_fd = self._original("set_wakeup_fd")
        try:
            return int(set_wakeup_fd(descriptor, warn_on_full_buffer=False))
        except (ValueError, OSError):  # it is closed, or somebody else's
            return int(set_wakeup_fd(-1))

    def _made(self) -> dict[str, Any]:
        set_handler, get_handler, set_wakeup = self._originals.values()

        @functools.wraps(set_handler)
        def signal_(signalnum: Any, handler: Any) -> Any:
            is_default = type(handler) in (int, signal.Handlers) and handler == signal.SIG_DFL
            hides = self._installed and is_default and signalnum == self._signum
            before = set_handler(signalnum, self._handler if hides else handler)
            return signal.SIG_DFL if before is self._handler else before

        @functools.wraps(get_handler)
        def getsignal(signalnum: Any) -> Any:
            found = get_handler(signalnum)
            return signal.SIG_DFL if found is self._handler else found

        @functools.wraps(set_wakeup)
        def set_wakeup_fd(*args: Any, **kwargs: Any) -> Any:
            ours = self._wakeup()
            before = self._set_wakeup(ours) if args == (-1,) and ours != -1 else set_wakeup(*args, **kwargs)
            return -1 if before == ours else before

        return {"signal": signal_, "getsignal": getsignal, "set_wakeup_fd": set_wakeup_fd}

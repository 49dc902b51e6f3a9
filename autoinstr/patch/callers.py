"""Who called: the module that opens a block, and the values of its local variables."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from autoinstr.maps.values import MISSING

_SNAPSHOT = sys.version_info < (3, 13)
_OWN_REFERENCES = 3
"""How many hold a frame's snapshot while nobody else does: the frame, our variable, the call that counts."""
_TRANSPARENT = frozenset(
    {
        "contextlib",
        # several entries on one function are wrappers in wrappers
        "autoinstr.metrics.tapper",
        "autoinstr.patch.adding",
        "autoinstr.patch.blocks",
        "autoinstr.patch.functions",
        "autoinstr.patch.handing",
        "autoinstr.patch.iterables",
        "autoinstr.patch.pairs",
    }
)


def calling_frame(frame: FrameType | None, own_module: str) -> FrameType | None:
    """The first frame at or above `frame` outside `own_module` (empty: none), contextlib and our wrappers.

    A timer's `time()` that calls its own `start()`, and an override that calls its base's, are still
    called by whoever wrote `timer.time(...)`.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module != own_module and module not in _TRANSPARENT:
            return frame
        frame = frame.f_back
    return None


def is_inside(frame: FrameType | None, modules: Iterable[str]) -> bool:
    """Whether the frame's module is one of `modules` or lies below one."""
    if frame is None:
        return False
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and any(name == module or name.startswith(module + ".") for module in modules)


def read_local(frame: FrameType | None, name: str) -> Any:
    """The value of a local variable, or `MISSING`.

    Before Python 3.13 `f_locals` is a snapshot that stays on the frame and keeps alive what the function
    deletes afterwards, a batch of GPU tensors for example. It is emptied after use, except where somebody
    else holds the very same dict (from `locals()`, for example), or where it is the real namespace.
    """
    if frame is None:
        return MISSING
    code = frame.f_code
    if not _SNAPSHOT or not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals.get(name, MISSING)
    names = frame.f_locals
    value = names.get(name, MISSING)
    if sys.getrefcount(names) <= _OWN_REFERENCES:
        names.clear()
    return value

"""Who called: the module that opens a block, and the values of its local variables."""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
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


def frame_inside(
    found: FrameType | None, start: FrameType | None, own_module: str, modules: tuple[str, ...]
) -> FrameType | None:
    """`found`, which `calling_frame` found from `start` on, if its module is one of `modules` or lies below one.

    If it is not, and `own_module` is one of them, a caller in that counts as well: code whose timer, or whose
    generator, is in the module of the loop. None: the call comes from elsewhere.
    """
    if _is_inside(found, modules):
        return found
    if own_module and _is_among(own_module, modules):
        direct = calling_frame(start, "")
        return direct if _is_inside(direct, modules) else None
    return None


def _is_inside(frame: FrameType | None, modules: tuple[str, ...]) -> bool:
    if frame is None:
        return False
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and _is_among(name, modules)


@lru_cache(maxsize=1024)
def _is_among(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


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

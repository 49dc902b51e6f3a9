"""Frames of ours that `warnings` and `logging` pass over when they look for the caller.

`warnings.warn(text, stacklevel=2)` blames the caller of the function that warns: the place is printed, filters choose
by its module (`-W error::DeprecationWarning:__main__`), and it is warned of once. A wrapper must not be that caller.
Python passes over frames of its import system there, and knows them by the words "importlib" and "_bootstrap" in the
name of their file (`_is_internal_frame` in `warnings`, and in `logging` from Python 3.11). That is this folder's name,
and the code of our wrappers names its file by way of it: a traceback shows the same line of the same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

_FOLDER = os.path.dirname(__file__)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncounted_code(code: CodeType) -> CodeType:
    """The same code in a file that is not counted, and so the code of the functions in it."""
    return in_file(code, os.path.join(_FOLDER, os.path.relpath(code.co_filename, _FOLDER)))


def in_file(code: CodeType, file: str) -> CodeType:
    """The same code, and so the code of the functions in it, as if it were of `file`."""
    inner = tuple(in_file(c, file) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)


def uncounted(function: _Function) -> _Function:
    """Have `function`, and the functions that it makes, passed over: a decorator."""
    function.__code__ = uncounted_code(function.__code__)
    return function

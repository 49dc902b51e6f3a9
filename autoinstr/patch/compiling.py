"""Stepping aside while torch compiles: code inside a `torch.compile` region is left alone.

Dynamo traces into our wrappers as it does into any Python. It knows `torch.compiler.is_compiling`, which is true
for it and false at every other time, so a wrapper that asks first is compiled to nothing but the call of its
original: no graph break, `fullgraph=True` goes on working, and there is no span. Wrappers ask this way, at a
few nanoseconds where there is no torch:

    if compiling.torch_is is not None and compiling.torch_is():

TorchScript (`torch.jit.script`) reads a function's source and looks its names up in the function's globals. Of a
wrapper of ours it gets both from the function beneath, which is what it compiles.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from autoinstr.patch.importing import when_imported

torch_is: Callable[[], bool] | None = None
"""`torch.compiler.is_compiling`, once torch has been imported."""


def know_torch() -> Callable[[], None]:
    """Learn of torch when it is imported, never import it. Returns a function that ends the waiting."""

    undo: list[Callable[[], None]] = []

    def learn(torch: Any) -> None:
        global torch_is
        torch_is = getattr(getattr(torch, "compiler", None), "is_compiling", None)  # torch 2.1 and later
        names = getattr(torch, "_jit_internal", None)
        if hasattr(names, "get_closure"):
            undo.append(_let_script_look_beneath(names))

    cancel = when_imported("torch", learn)

    def end() -> None:
        cancel()
        while undo:
            undo.pop()()

    return end


def _let_script_look_beneath(names: Any) -> Callable[[], None]:
    from autoinstr.patch import functions

    original = names.get_closure

    @functools.wraps(original)
    def get_closure(fn: Any) -> Any:
        function = fn.__func__ if type(fn) is types.MethodType else fn
        if not functions.is_ours(function):
            return original(fn)
        while functions.is_ours(function):
            function = functions.beneath(function)
        return original(function)

    def undo() -> None:
        if names.get_closure is get_closure:
            names.get_closure = original

    names.get_closure = get_closure
    return undo

"""Stepping aside while torch compiles: code inside a `torch.compile` region is left alone.

Dynamo traces into our wrappers as it does into any Python. It knows `torch.compiler.is_compiling`, which is true
for it and false at every other time, so a wrapper that asks first is compiled to nothing but the call of its
original: no graph break, `fullgraph=True` goes on working, and there is no span. Wrappers ask this way, at a
few nanoseconds where there is no torch:

    if compiling.torch_is is not None and compiling.torch_is():
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoinstr.patch.importing import when_imported

torch_is: Callable[[], bool] | None = None
"""`torch.compiler.is_compiling`, once torch has been imported."""


def know_torch() -> Callable[[], None]:
    """Learn of torch when it is imported, never import it. Returns a function that ends the waiting."""

    def learn(torch: Any) -> None:
        global torch_is
        torch_is = getattr(getattr(torch, "compiler", None), "is_compiling", None)  # torch 2.1 and later

    return when_imported("torch", learn)

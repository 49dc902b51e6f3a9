"""Draws of OpenTelemetry's own that must not come from the random source of training."""

from __future__ import annotations

import random
import sys
import types


def leave_random_alone() -> None:
    """Give OpenTelemetry's modules a random source of their own, where they use the global one."""
    own = random.SystemRandom()
    for name, module in list(sys.modules.items()):
        if not name.startswith("opentelemetry.") or not isinstance(module, types.ModuleType):
            continue
        if vars(module).get("random") is random:
            module.random = own  # type: ignore[attr-defined]

"""Runs the user's own `sitecustomize`, which `opentelemetry-instrument` shadows with its own."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

from autoinstr.notices import say

_OURS = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")


def run_next() -> bool:
    """Run the next `sitecustomize` on `sys.path` after OpenTelemetry's, as Python would have. Never raises."""
    shadowing = getattr(sys.modules.get("sitecustomize"), "__file__", None)
    if not shadowing or _OURS not in shadowing:
        return False
    folder = os.path.dirname(os.path.abspath(shadowing))
    path = [p for p in sys.path if os.path.abspath(p or os.curdir) != folder]
    try:
        spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
        if spec is None or spec.loader is None or spec.origin is None:
            return False
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        origin = spec.origin if spec is not None else "sitecustomize"
        say(f"error in {origin}: {type(error).__name__}: {error} (Python would have gone on, and so does this run)")
        return False
    return True

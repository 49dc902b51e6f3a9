"""Pytest plugin of `parity.py`: when each test ran and, with `PARITY_IN_TREE=1`, NeMo RL's own telemetry switched on.

The in-tree telemetry keeps a span's group to itself, so it is put on the span here, as the attribute
`parity.group`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

_windows = os.environ["PARITY_WINDOWS"]
_in_tree = os.environ.get("PARITY_IN_TREE") == "1"

if _in_tree:
    # before nemo_rl is imported, which takes the function by name
    import nemo.lens
    import nemo.lens.helpers

    _managed_span = nemo.lens.helpers.managed_span

    @contextmanager
    def _with_group(group: str, name: str, tracer: Any = None, **attributes: Any) -> Iterator[Any]:
        with _managed_span(group, name, tracer=tracer, **attributes, **{"parity.group": str(group)}) as span:
            yield span

    nemo.lens.managed_span = nemo.lens.helpers.managed_span = _with_group


_set = pytest.MonkeyPatch.setattr


def _set_all_but_timers(self: Any, target: Any, name: Any, *args: Any, **kwargs: Any) -> None:
    """The tests of PPO put a dummy in the place of the timer, whose blocks are what autoinstr's maps name."""
    if name != "Timer":
        _set(self, target, name, *args, **kwargs)


pytest.MonkeyPatch.setattr = _set_all_but_timers  # type: ignore[method-assign]


def pytest_configure(config: Any) -> None:
    if _in_tree:
        from nemo_rl.telemetry.setup import init_telemetry_driver

        init_telemetry_driver(SimpleNamespace(telemetry=None), algorithm="parity")


def pytest_unconfigure(config: Any) -> None:
    if _in_tree:
        from nemo_rl.telemetry.setup import shutdown_telemetry

        shutdown_telemetry()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[Any]:
    started = time.time_ns()
    try:
        return (yield)
    finally:
        with open(_windows, "a") as file:
            file.write(json.dumps({"test": item.nodeid, "start": started, "end": time.time_ns()}) + "\n")

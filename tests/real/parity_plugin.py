"""Pytest plugin of `parity.py`: writes down which tests there are, when each ran, and how it ended.

With `PARITY_IN_TREE=1` it switches NeMo RL's own telemetry on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import wrapt

_tests = os.environ["PARITY_TESTS"]
_in_tree = os.environ.get("PARITY_IN_TREE") == "1"
_set = pytest.MonkeyPatch.setattr


def _set_all_but_timers(self: Any, target: Any, name: Any, *args: Any, **kwargs: Any) -> None:
    """The tests of PPO put a dummy in the place of the timer, whose blocks are what autoinstr's maps name."""
    if name != "Timer" or getattr(target, "__name__", None) != "nemo_rl.algorithms.ppo":
        _set(self, target, name, *args, **kwargs)


pytest.MonkeyPatch.setattr = _set_all_but_timers  # type: ignore[method-assign]


def _wait_for_ray(services: Any) -> None:
    """Ray gives its node 30 seconds to start, which a busy machine may need more than."""
    get_node = services.get_node

    def patient(*args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + 300
        while True:
            try:
                return get_node(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(1)

    services.get_node = patient


wrapt.register_post_import_hook(_wait_for_ray, "ray._private.services")


def _write(**line: Any) -> None:
    with open(_tests, "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_configure(config: Any) -> None:
    if _in_tree:
        from nemo_rl.telemetry.setup import init_telemetry_driver

        init_telemetry_driver(SimpleNamespace(telemetry=None), algorithm="parity")


def pytest_unconfigure(config: Any) -> None:
    if _in_tree:
        from nemo_rl.telemetry.setup import shutdown_telemetry

        shutdown_telemetry()


def pytest_itemcollected(item: Any) -> None:
    """Tests of a backend are left out by NeMo RL's conftest, which knows them by these marks."""
    marks = ("mcore", "automodel", "vllm", "sglang", "trtllm", "nemo_gym", "hf_gated")
    needed = [mark for mark in marks if item.get_closest_marker(mark)]
    how = ("left out", f"is marked {' and '.join(needed)}") if needed else ("not selected", None)
    _write(test=item.nodeid, outcome=how[0], why=how[1])


def pytest_collection_finish(session: Any) -> None:
    for item in session.items:
        _write(test=item.nodeid, outcome=None)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write(test=report.nodeid, outcome="not importable", why=_last_line(report))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[Any]:
    _write(test=item.nodeid, start=time.time_ns())
    return (yield)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        word = "error" if report.when != "call" and report.failed else report.outcome
        _write(test=report.nodeid, outcome=word, why=None if report.passed else _last_line(report))


def _last_line(report: Any) -> str:
    told = report.longrepr
    if isinstance(told, tuple):  # a skip: file, line, reason
        return str(told[2])
    crash = getattr(told, "reprcrash", None)
    return str(crash.message if crash else told).strip().splitlines()[-1]

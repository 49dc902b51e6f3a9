"""Packages for one test: written to a folder, importable, and forgotten afterwards."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., None]
_folders = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`write(toy="...", toy__work="...")`: modules by name, with `__` for the dot. A module with others below it
    is a package. Every module of theirs leaves `sys.modules` when the test is over."""
    before = set(sys.modules)

    def write_modules(**sources: str) -> None:
        folder = tmp_path / str(next(_folders))
        names = {name.replace("__", "."): source for name, source in sources.items()}
        packages = {name.rpartition(".")[0] for name in names if "." in name}
        for name, source in {**dict.fromkeys(packages, ""), **names}.items():
            path = folder.joinpath(*name.split("."))
            path = path / "__init__.py" if name in packages else path.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(folder)
        importlib.invalidate_caches()

    yield write_modules
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    for name in [n for n in sys.modules if n.partition(".")[0] == "toy"]:
        del sys.modules[name]


def spans_map(*spans: str) -> str:
    """A map of the package `toy` with these entries, one a line: `toy.x: {function: toy:f}`; the group is `job`."""
    lines = []
    for span in spans:
        name, _, entry = span.partition(": {")
        lines.append(f"  {name}: {{group: job, {entry}")
    return "\n".join(["map: toy", "package: toy", "spans:", *lines])


def states(recording: Any) -> dict[str, str]:
    """Target → state of every record; the reason too, where there is one."""
    return {
        record.target: record.state + (f": {record.why}" if record.why else "") for record in recording.ledger.records
    }

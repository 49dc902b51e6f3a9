"""Small modules that a test writes as text: on disk, imported, and forgotten again."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_numbers = itertools.count()

Make = Callable[..., types.ModuleType]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make(source)` is the module that the text makes; its name is new, or the one that is given."""
    made: list[str] = []

    def make_module(source: str, name: str | None = None) -> types.ModuleType:
        name = name or f"made{next(_numbers)}"
        *packages, last = name.split(".")
        folder = tmp_path
        for depth, package in enumerate(packages):
            folder = folder / package
            folder.mkdir(exist_ok=True)
            parent = ".".join(packages[: depth + 1])
            if parent not in sys.modules:
                sys.modules[parent] = types.ModuleType(parent)
                made.append(parent)
        path = folder / f"{last}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield make_module
    for name in made:
        sys.modules.pop(name, None)
    linecache.checkcache()


def span_map(module: types.ModuleType | str, spans: str) -> str:
    """A map of `module` with these entries; `{m}` in them is the module's name."""
    name = module if isinstance(module, str) else module.__name__
    head = f"map: test\npackage: {name.partition('.')[0]}\nspans:\n"
    return head + textwrap.indent(textwrap.dedent(spans).strip("\n"), "  ").replace("{m}", name)

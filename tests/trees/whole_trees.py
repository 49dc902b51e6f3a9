"""A run of the stand-in for NeMo RL in `tests/fake_training`, and the whole span tree that the maps give for it.

An expected tree is written once, for the preset `all`, with each span's group behind its name:

    rl.sft.step (step) rl.epoch=1 rl.iteration=1
      rl.sft.policy_training (policy_update) [productive] rl.iteration=1

What any other choice of groups gives follows from it: the spans of those groups remain, and what lay inside
another span moves up.
"""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from autoinstr.maps import groups as span_groups
from autoinstr.maps.catalog import Catalog
from autoinstr.testing import record

STAND_IN = Path(__file__).resolve().parent.parent / "fake_training"
_LINE = re.compile(r"(?P<indent> *)(?P<name>\S+) \((?P<group>\w+)\)")


@cache
def catalog() -> Catalog:
    """The maps for NeMo RL, read once."""
    found = Catalog(lambda mistake: None)
    found.add_builtin("nemo_rl")
    found.maps_for()
    return found


def spans_of(run: Callable[[], None], groups: str = "all") -> str:
    """The span tree of `run`, which imports `nemo_rl` itself: anew, so that the patches are there first."""
    with _fresh_stand_in(), record(builtin="nemo_rl", groups=groups) as spans:
        run()
    assert not spans.notices
    return str(spans.tree(groups=True))


def only(groups: str, tree: str) -> str:
    """What remains of an expected tree when just these groups (or presets) are selected."""
    selection = span_groups.select(groups, catalog().table)
    assert not selection.unknown
    remaining = []
    above: list[tuple[int, bool]] = []  # (depth, whether it remains) of the spans around a line
    for line in textwrap.dedent(tree).strip("\n").splitlines():
        match = _LINE.match(line)
        assert match is not None, f"no group in {line!r}"
        depth = len(match["indent"]) // 2
        above = [(d, remains) for d, remains in above if d < depth]
        remains = selection.selects_group(match["group"])
        if remains:
            remaining.append("  " * sum(r for _, r in above) + line.lstrip())
        above.append((depth, remains))
    return "\n".join(remaining)


def choices(tree: str) -> list[str]:
    """Every preset, and every single group that the tree has."""
    return ["all", "per_step", "default", *sorted({match["group"] for match in _LINE.finditer(tree)})]


def names(tree: str) -> set[str]:
    return {match["name"] for match in _LINE.finditer(tree)}


@contextmanager
def _fresh_stand_in() -> Iterator[None]:
    before = _take_out()
    sys.path.insert(0, str(STAND_IN))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # else it is compiled anew for every tree
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(STAND_IN))
        _take_out()
        sys.modules.update(before)


def _take_out() -> dict[str, object]:
    found = [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]
    return {name: sys.modules.pop(name) for name in found}


def every_tree() -> Iterator[tuple[str, str]]:
    """(test file, tree) for each expected tree beside this file."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name, value in vars(importlib.import_module(path.stem)).items():
            if name.endswith("TREE"):
                yield path.name, value


def lines_below(tree: str, top: str) -> Iterator[str]:
    """The lines inside the spans whose own line matches `top`."""
    depth = None
    for line in textwrap.dedent(tree).strip("\n").splitlines():
        indent = len(line) - len(line.lstrip())
        if depth is not None and indent > depth:
            yield line
        else:
            depth = indent if re.search(top, line) else None

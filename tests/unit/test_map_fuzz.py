"""Random maps, and shipped maps with random damage: reading never raises, and training never notices."""

from __future__ import annotations

import copy
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoinstr.maps import keys, loader, values
from autoinstr.maps.catalog import Catalog, builtin_folder, yaml_files
from autoinstr.testing import MapMistakes, record

TABLE = Catalog(lambda mistake: pytest.fail(str(mistake))).table
SHIPPED = [path.read_text(encoding="utf-8") for path in yaml_files(builtin_folder())]
ALL_KEYS = sorted({key.name for table in keys.TABLES.values() for key in table})

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
TREES_SHIPPED = [yaml.safe_load(text) for text in SHIPPED]

bounded = settings(
    max_examples=100, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
few = settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))

# words that mean something to the loader, so that damage goes deep
WORDS = st.sampled_from(
    [
        *ALL_KEYS, *TABLE.groups, *TABLE.presets, "all", "idle", "none", "a:b", "fuzzed.loop:train",
        "a.b:C.m(x=1|'y')",
        "args.x", "self.a[0] | len", "caller.b | add(1)", "return | default('z')", "'text'", "1e-6", "<<", "*",
        "&a", "~",
        "trl>=1", "", " ", "\t", ":", "-", "!!int x", "\0", "9" * 30, "yes", "2020-01-01", "😀",
    ]
)  # fmt: skip
SCALARS = st.one_of(
    WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4), st.dates()
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=20,
)


def dump(tree: Any) -> str:
    return str(yaml.dump(tree, Dumper=DUMPER))


def read(text: str) -> loader.Loaded:
    """Load, and hold what is true of every map."""
    loaded = loader.load_map(text, "m.yaml", TABLE)
    for mistake in loaded.mistakes:
        line = str(mistake)
        assert line.startswith("m.yaml")
        assert mistake.consequence
        assert "\n" not in line
    if loaded.map is None:
        assert loaded.mistakes
    else:
        for entry in loaded.map.spans:
            assert entry.targets()
            assert entry.place.line >= 1
            assert all(paths for _, paths in entry.attributes)
    return loaded


# -- reading ---------------------------------------------------------------------------------------------


@bounded
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    read(text)


@bounded
@given(st.lists(st.one_of(WORDS, st.sampled_from(["\n", "\n  ", ": ", "- ", "{", "}", "[", "]", ", ", "'", '"', "#"]))))
def test_any_words(words: list[str]) -> None:
    read("".join(words))


@bounded
@given(TREES)
def test_any_tree(tree: Any) -> None:
    read(dump(tree))


@bounded
@given(st.dictionaries(st.sampled_from([key.name for key in keys.SPAN_KEYS]), TREES, max_size=6), TREES)
def test_any_span_beside_a_good_one(span: dict[str, Any], scope: Any) -> None:
    document = {
        "map": "m",
        "package": "p",
        "spans": {
            "s": {"group": "step", "function": "a:b", **span, "scope": scope},
            "good": {"group": "job", "each": "a:b"},
        },
    }
    loaded = read(dump(document))
    if not any("this is not YAML" in mistake.text for mistake in loaded.mistakes):
        assert loaded.map is not None
        assert "good" in [entry.name for entry in loaded.map.spans]


@bounded
@given(st.text(max_size=60))
def test_any_groups_file(text: str) -> None:
    loader.load_groups(text, "groups.yaml")


@bounded
@given(st.one_of(st.text(max_size=40), st.lists(st.one_of(WORDS, st.sampled_from([".", "[0]", " | ", "(", ")", "'"])))))
def test_any_value_path(path: str | list[str]) -> None:
    try:
        parsed = values.parse(path if isinstance(path, str) else "".join(path))
    except values.PathError:
        return
    parsed.walk({"a": 1})


# -- the shipped maps, damaged ---------------------------------------------------------------------------


@st.composite
def damaged_text(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(SHIPPED))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        text = text[:start] + draw(st.one_of(WORDS, st.text(max_size=6), st.just("\n"))) + text[end:]
    return text


@bounded
@given(damaged_text())
def test_damaged_text(text: str) -> None:
    read(text)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from _places(value, (*path, key))


def damage(draw: st.DrawFn, tree: Any) -> Any:
    """One value replaced, removed, or put under another key."""
    path = draw(st.sampled_from([p for p in _places(tree) if p]))
    above = tree
    for key in path[:-1]:
        above = above[key]
    how = draw(st.sampled_from(["replace", "remove", "rename"]))
    if how == "replace":
        above[path[-1]] = draw(TREES)
    elif how == "remove" or isinstance(above, list):
        del above[path[-1]]
    else:
        above[draw(WORDS)] = above.pop(path[-1])
    return tree


@st.composite
def damaged_tree(draw: st.DrawFn) -> Any:
    tree = copy.deepcopy(draw(st.sampled_from(TREES_SHIPPED)))
    for _ in range(draw(st.integers(1, 3))):
        tree = damage(draw, tree)
        if not tree:
            break
    return tree


@bounded
@given(damaged_tree())
def test_damaged_structure(tree: Any) -> None:
    read(dump(tree))


# -- running under them ----------------------------------------------------------------------------------

TIMER = """
import contextlib

class Timer:
    def __init__(self): self.names = []
    @contextlib.contextmanager
    def time(self, label, step=None):
        self.names.append(label)
        yield len(self.names)
    def start(self, label): self.names.append("+" + label)
    def stop(self, label): self.names.append("-" + label)
"""

LOOP = """
from fuzzed.timer import Timer

def items(n):
    for i in range(n): yield i * i

def update(batch, scale=2, **more):
    if batch == 9: raise ValueError(batch, scale)
    return {"loss": batch / scale, "more": sorted(more)}

def train(steps, config):
    timer, seen = Timer(), []
    for step, batch in enumerate(items(steps)):
        with timer.time("total", step=step) as n:
            timer.start("wait")
            try: seen.append((n, update(batch, scale=config["scale"], step=step)))
            except ValueError as error: seen.append(repr(error))
            timer.stop("wait")
    return seen, timer.names
"""

MAP = {
    "map": "fuzzed.map",
    "package": "fuzzed",
    "inside": ["fuzzed.loop"],
    "spans": {
        "f.job": {
            "group": "job",
            "function": "fuzzed.loop:train",
            "attributes": {"steps": "args.steps", "scale": "args.config.scale | float", "n": "return[0] | len"},
            "scope": {"bucket": "overhead", "groups": {"step": "evaluate"}},
        },
        "f.step": {
            "group": "step",
            "block": "fuzzed.timer:Timer.time(label=total|x*)",
            "attributes": {"i": ["caller.step | add(1)", "args.step"], "names": "self.names | len"},
        },
        "f.wait": {
            "group": "efficiency",
            "between": {"begin": "fuzzed.timer:Timer.start", "end": "fuzzed.timer:Timer.stop", "match": "args.label"},
        },
        "f.item": {"group": "rollout", "each": "fuzzed.loop:items", "inside": []},
        "f.update": [
            {"group": "policy_update", "function": {"first_of": ["fuzzed.loop:gone", "fuzzed.loop:update"]}},
            {"group": "reward", "function": "fuzzed.loop:update(batch=4)", "bucket": "wasted"},
        ],
    },
}


@contextmanager
def program() -> Iterator[Any]:
    """The module `fuzzed.loop` and what it needs, fresh, and gone afterwards."""
    made = {name: types.ModuleType(name) for name in ("fuzzed", "fuzzed.timer", "fuzzed.loop")}
    made["fuzzed"].__path__ = []  # type: ignore[attr-defined]
    sys.modules.update(made)
    try:
        exec(TIMER, made["fuzzed.timer"].__dict__)
        exec(LOOP, made["fuzzed.loop"].__dict__)
        yield made["fuzzed.loop"]
    finally:
        for name in made:
            del sys.modules[name]


def output(module: Any) -> str:
    return json.dumps(module.train(5, {"scale": 4}))


with program() as _plain_program:
    EXPECTED = output(_plain_program)


def run_under(text: str) -> None:
    """As a run does it: what has mistakes is left out, the rest is patched, the program does what it did."""
    with program() as module:
        originals = dict(vars(module))
        methods = dict(vars(module.Timer))
        loaded = read(text)
        good = ""
        if loaded.map is not None:
            # `record` takes no map with mistakes: it is given what a run would be left with
            tree = yaml.safe_load(text)
            spans = tree.get("spans") or {}
            keep = {entry.name for entry in loaded.map.spans}
            tree["spans"] = {name: span for name, span in spans.items() if name in keep}
            good = dump(tree)
        try:
            with record(text=good, groups="all") as recording:
                assert output(module) == EXPECTED
            assert not [span for span in recording.spans if span.end_time is None]
        except MapMistakes:
            pass
        assert output(module) == EXPECTED
        assert {name: vars(module)[name] for name in originals} == originals
        assert {name: vars(module.Timer)[name] for name in methods} == methods


def test_the_program_is_traced_at_all() -> None:
    with program() as module, record(text=dump(MAP), groups="all") as recording:
        assert output(module) == EXPECTED
    assert {"f.job", "f.step", "f.wait", "f.item", "f.update"} == {span.name for span in recording.spans}


@st.composite
def damaged_map(draw: st.DrawFn) -> Any:
    tree = copy.deepcopy(MAP)
    for _ in range(draw(st.integers(1, 3))):
        tree = damage(draw, tree)
        if not tree:
            break
    return tree


@few
@given(damaged_map())
def test_a_damaged_map_changes_nothing_in_the_program(tree: Any) -> None:
    run_under(dump(tree))


TARGETS = st.sampled_from(
    ["loop:train", "loop:update", "loop:items", "loop:gone", "timer:Timer.time", "timer:Timer.start", "timer:Timer"]
).map(lambda place: f"fuzzed.{place}")
PATHS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["args.batch", "args.label", "self", "return", "caller.step", "caller.timer", "env.HOME"]),
        st.sampled_from(["", ".names", "[0]", "[-1]", ".__class__", "['a']"]),
        st.sampled_from(["", " | len", " | sum", " | str", " | type", " | add(1)", " | default(0)", " | mean"]),
    ),
)
ENTRIES = st.fixed_dictionaries(
    {"group": st.sampled_from(sorted(TABLE.groups))},
    optional={
        "attributes": st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(PATHS, st.lists(PATHS, max_size=2))),
        "inside": st.sampled_from([[], ["fuzzed.loop"], ["fuzzed"], ["elsewhere"]]),
        "bucket": st.sampled_from(["idle", "none"]),
        "scope": st.sampled_from([{"bucket": "idle"}, {"groups": {"step": "evaluate"}}]),
        "subclasses": st.booleans(),
        "threads": st.booleans(),
        "content": st.booleans(),
        "start_from": TARGETS,
    },
)
JOINS = st.one_of(
    st.builds(lambda kind, target: {kind: target}, st.sampled_from(["function", "block", "each"]), TARGETS),
    st.builds(lambda a, b, end, once: {"between": {"begin": a, end: b, "once": once}},
              TARGETS, TARGETS, st.sampled_from(["end", "until"]), st.booleans()),
)  # fmt: skip


@few
@given(st.lists(st.builds(lambda entry, join: {**entry, **join}, ENTRIES, JOINS), min_size=1, max_size=5))
def test_any_good_map_changes_nothing_in_the_program(entries: list[dict[str, Any]]) -> None:
    document = {"map": "m", "package": "fuzzed", "spans": {f"s.{i}": entry for i, entry in enumerate(entries)}}
    run_under(dump(document))

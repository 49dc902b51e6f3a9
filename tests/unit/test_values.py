"""Value paths: how each spelling is read. What walking them gives is in the second half."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autoinstr.maps import values
from autoinstr.maps.values import MISSING, PathError, literal, parse, split


@pytest.mark.parametrize(
    ("text", "root", "name", "steps"),
    [
        ("args.x", "args", "x", ()),
        ("args.x.y", "args", "x", ("y",)),
        ("args.x[0]", "args", "x", (0,)),
        ("args.x[-1].y", "args", "x", (-1, "y")),
        ("args.x['a b'].y", "args", "x", ("a b", "y")),
        ('args.x["a.b"]', "args", "x", ("a.b",)),
        ("args['x']", "args", "x", ()),
        ("caller.step", "caller", "step", ()),
        ("caller.config.grpo.n", "caller", "config", ("grpo", "n")),
        ("env.HOME", "env", "HOME", ()),
        ("self", "self", None, ()),
        ("self.a.b", "self", None, ("a", "b")),
        ("self[0]", "self", None, (0,)),
        ("return", "return", None, ()),
        ("return.x[0]", "return", None, ("x", 0)),
        ("  args.x  ", "args", "x", ()),
        ("args.x['|']", "args", "x", ("|",)),
        ("args._private", "args", "_private", ()),
    ],
)
def test_roots_and_steps(text: str, root: str, name: str | None, steps: tuple[Any, ...]) -> None:
    path = parse(text)
    assert (path.root, path.name, path.steps, path.reducers) == (root, name, steps, ())


@pytest.mark.parametrize("reducer", ["len", "sum", "mean", "max", "min", "int", "float", "str", "type"])
def test_reducers(reducer: str) -> None:
    assert parse(f"args.x | {reducer}").reducers == ((reducer, None),)
    assert parse(f"args.x|{reducer}|  str ").reducers == ((reducer, None), ("str", None))
    with pytest.raises(PathError, match=f"the reducer '{reducer}' is written {reducer}"):
        parse(f"args.x | {reducer}(1)")


def test_every_reducer_is_tried_here() -> None:
    tried = {
        "len",
        "lens",
        "sum",
        "mean",
        "max",
        "min",
        "int",
        "float",
        "str",
        "type",
        "nbytes",
        "keys",
        "then",
        "add",
        "div",
        "default",
    }
    assert tried == set(values.REDUCERS)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("+7", 7),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("False", False),
        ("None", None),
        ("word", "word"),
        ("'3'", "3"),
        ('"a|b"', "a|b"),
        ("''", ""),
        ("'true'", "true"),
        # no numbers, though Python would read them as such
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("٣", "٣"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_literals(raw: str, value: Any) -> None:
    assert literal(raw) == value
    assert type(literal(f" {raw} ")) is type(value)
    assert parse(f"args.x | default({raw})").reducers == (("default", value),)


def test_default_in_quotes_may_hold_anything() -> None:
    assert parse("args.x | default('a | b)') | str").reducers == (("default", "a | b)"), ("str", None))


@pytest.mark.parametrize(("raw", "value"), [("1", 1), ("-2", -2), ("0.5", 0.5), ("1e2", 100.0)])
def test_add_takes_numbers(raw: str, value: float) -> None:
    assert parse(f"args.x | add({raw})").reducers == (("add", value),)


@pytest.mark.parametrize("raw", ["one", "true", "'1'", "", "inf", "nan", "1_0"])
def test_add_takes_nothing_else(raw: str) -> None:
    with pytest.raises(PathError, match=r"add\(...\) takes a number"):
        parse(f"args.x | add({raw})")


@pytest.mark.parametrize(
    ("text", "value"), [("'a b'", "a b"), ('"a"', "a"), ("''", ""), ("'args.x'", "args.x"), ("1e-6", 1e-6)]
)
def test_constants(text: str, value: Any) -> None:
    path = parse(text)
    assert (path.root, path.constant, path.walk(path.constant)) == ("const", value, value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'' is no value path"),
        ("| len", "'| len' is no value path"),
        ("1x", "'1x' is no value path"),
        ("'open", '"\'open" is no value path'),
        ("'a' | len", "\"'a' | len\" is no value path"),
        (
            "argss.x",
            "a value path starts with args, self, return, outcome, caller, env, not 'argss', did you mean 'args'?",
        ),
        (
            "train",
            "a value path starts with args, self, return, outcome, caller, env, not 'train'; "
            "a constant text has two pairs of quotes: \"'text'\"",
        ),
        ("args", "'args' needs a name, as in args.step"),
        ("args[0]", "'args' needs a name, as in args.step"),
        ("env | len", "'env' needs a name, as in env.step"),
        ("args.x.", "can't read '.' in the value path 'args.x.'"),
        ("args.x..y", "can't read '..y' in the value path 'args.x..y'"),
        ("args.x[y]", "can't read '[y]' in the value path 'args.x[y]'"),
        ("args.x[0", "can't read '[0' in the value path 'args.x[0'"),
        ("args.x()", "can't read '()' in the value path 'args.x()'"),
        ("args.x y", "can't read ' y' in the value path 'args.x y'"),
        ("args.x | lne", "unknown reducer 'lne' in 'args.x | lne', did you mean 'len'?"),
        ("args.x |", "can't read the reducer '' in 'args.x |'"),
        ("args.x | len len", "can't read the reducer 'len len' in 'args.x | len len'"),
        ("args.x | default", "the reducer 'default' is written default(value)"),
        ("args.x | add", "the reducer 'add' is written add(value)"),
        ("args.x | len()", "the reducer 'len' is written len"),
    ],
)
def test_what_is_no_path(text: str, told: str) -> None:
    with pytest.raises(PathError) as raised:
        parse(text)
    assert str(raised.value) == told


def test_splitting_leaves_quotes_alone() -> None:
    assert split("a | 'b|c' | \"d|'e\"", "|") == ["a", "'b|c'", '"d|\'e"']
    assert split("", ",") == [""]
    assert split("a,'b", ",") == ["a", "'b"]


# -- walking ---------------------------------------------------------------------------------------------


class Explosive:
    @property
    def x(self) -> int:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("text", "start", "value"),
    [
        ("self.a.b", SimpleNamespace(a={"b": 3}), 3),
        ("self['a b'][1]", {"a b": [1, 2]}, 2),
        ("self[-1]", [1, 2], 2),
        ("self.missing", SimpleNamespace(), MISSING),
        ("self | keys(tag_*)", {"CPU": 2, "tag_b": 1, "tag_a": 1, 5: 1}, ["tag_b", "tag_a"]),
        ("self | keys(tag_*) | len | default(0)", {"CPU": 2}, 0),
        ("self | keys(tag_*)", ["tag_a"], MISSING),
        ("self | keys(tag_*) | then(tagged) | default(untagged)", {"tag_a": 1}, "tagged"),
        ("self | keys(tag_*) | then(tagged) | default(untagged)", {"CPU": 2}, "untagged"),
        ("self.a | then('there')", {"a": 0}, "there"),
        ("self.a | then('there')", {"a": None}, MISSING),
        ("self.missing | default(7)", SimpleNamespace(), 7),
        ("self.a | default(7)", {"a": None}, 7),
        ("self[5] | default('none')", [1], "none"),
        ("self.x", Explosive(), MISSING),
        ("self.x | default(1)", Explosive(), 1),
        ("self | len", [1, 2, 3], 3),
        ("self[*] | max", [1, 3, 2], 3),
        ("self[*].ids | lens | sum", [{"ids": [1, 2]}, {"ids": (3,)}], 3),
        ("self[*].outputs[*].ids | lens | sum", [{"outputs": [{"ids": [1, 2]}, {"ids": []}]}, {"outputs": []}], 2),
        ("self.by_name[*].n | sum", {"by_name": {"a": {"n": 1}, "b": {"n": 2}}}, 3),
        ("self[*].n | len", [{"n": 1}, {}], MISSING),
        ("self[*].n | default(0)", 7, 0),
        ("self.values", {"values": 1}, 1),  # a key, not the dict's method
        ("self | sum", {"a": 1, "b": 2}, 3),
        ("self | mean", [1, 2, 3], 2.0),
        ("self | max", [1, 5, 3], 5),
        ("self | min", [4, 5, 3], 3),
        ("self | mean", [], MISSING),
        ("self | int", "12", 12),
        ("self | float", "1.5", 1.5),
        ("self | int", 3.9, 3),
        ("self | str", 12, "12"),
        ("self | str", SimpleNamespace(), MISSING),
        ("self | type", [], "list"),
        ("self | add(1)", 2, 3),
        ("self | add(1) | str", 2, "3"),
        ("self | add(1)", "x", MISSING),
        ("self.a | add(1) | default(0)", SimpleNamespace(), 0),
        ("self | div(4)", 12, 3),
        ("self | div(8)", 12, 1.5),
        ("self | div(0)", 12, MISSING),
        ("self | div(2.5)", 5, 2.0),
        ("self.a | div(2)", SimpleNamespace(), MISSING),
        ("self | nbytes", b"abc", 3),
        ("self | nbytes", {"a": SimpleNamespace(nbytes=8), "b": [b"x", "text", 7]}, 9),
        ("self | nbytes", None, MISSING),
        ("self | nbytes", "text", 0),
        ("self | nbytes", Explosive(), 0),
        ("self | nbytes", [0] * 20_000, MISSING),  # too many to count while training waits
    ],
)
def test_walking(text: str, start: Any, value: Any) -> None:
    got = parse(text).walk(start)
    assert got is value if value is MISSING else got == value


class Loader:
    """Holds nothing: what it gives is made anew by every loop over it, at a cost."""

    loops = 0

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        Loader.loops += 1
        return iter([[1], [2]])


@pytest.mark.parametrize(
    "path", ["self | sum", "self | mean", "self | max", "self | min", "self | lens", "self[*].real"]
)
def test_what_can_be_looped_over_once_is_left_to_the_program(path: str) -> None:
    made = (number for number in [1, 2])
    assert parse(path).walk(made) is MISSING
    assert list(made) == [1, 2]
    assert parse(path).walk(Loader()) is MISSING
    assert Loader.loops == 0
    for held in (deque([1, 2]), {"a": 1}.values(), {1: 2}.keys(), range(2), frozenset([1])):
        assert parse(path.replace("lens", "sum")).walk(held) is not MISSING


def test_a_default_dict_is_not_added_to() -> None:
    counts: dict[Any, list[int]] = defaultdict(list)
    assert parse("self[0]").walk(counts) is MISSING
    assert parse("self.a").walk(counts) is MISSING
    assert counts == {}
    counts[0].append(1)
    assert parse("self[0]").walk(counts) == [1]


def test_a_division_of_two_values() -> None:
    path = parse("args.samples | div(args.group.size) | int")
    assert [operand.text for operand in path.operands] == ["args.group.size"]
    assert path.walk(12, {"args.group.size": 4}) == 3
    assert path.walk(12, {"args.group.size": MISSING}) is MISSING
    assert path.walk(12) is MISSING


def test_ctrl_c_is_the_users() -> None:
    class Interrupted:
        @property
        def x(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parse("self.x").walk(Interrupted())


def test_env_is_the_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_RANK", "3")
    path = parse("env.MY_RANK | int")
    assert path.walk(os.environ.get(path.name or "", MISSING)) == 3


def test_what_no_exporter_can_send_is_left_out_or_mended() -> None:
    assert values.to_attribute(2**63 - 1) == 2**63 - 1
    assert values.to_attribute(-(2**63)) == -(2**63)
    assert values.to_attribute(2**63) is MISSING
    assert values.to_attribute("a\ud800b") == "a?b"
    assert values.to_attribute("grün") == "grün"

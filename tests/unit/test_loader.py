"""The loader: what each mistake in a map says, and that it costs its own entry only."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

from autoinstr.maps import loader
from autoinstr.maps.catalog import Catalog, builtin_folder, yaml_files
from autoinstr.maps.keys import NAME_IN_WORDS
from autoinstr.maps.model import Mistake

HEAD = "map: m\npackage: p\nspans:\n"
GOOD = "  good: {group: step, function: 'a:b'}\n"


def _no_mistake(mistake: Mistake) -> None:
    raise AssertionError(str(mistake))


TABLE = Catalog(_no_mistake).table


def load(text: str) -> loader.Loaded:
    return loader.load_map(text, "m.yaml", TABLE)


def lines(loaded: loader.Loaded) -> list[str]:
    return [str(mistake) for mistake in loaded.mistakes]


def names(loaded: loader.Loaded) -> list[str]:
    assert loaded.map is not None
    return [entry.name for entry in loaded.map.spans]


def one(entry: str) -> loader.Loaded:
    """A map whose span `s` is `entry`, beside a good one."""
    return load(f"{HEAD}  s: {entry}\n{GOOD}")


def expected(place_and_text: str | list[str], consequence: str) -> list[str]:
    told = [place_and_text] if isinstance(place_and_text, str) else place_and_text
    return [f"m.yaml:{text}; {consequence}" for text in told]


# text of the map → `line:column: what` of each mistake
WHOLE = {
    "empty": ("", " the file is empty"),
    "only comments": ("# nothing\n", " the file is empty"),
    "bracket": ("map: [", "2:1: this is not YAML: a value is missing, or a bracket is not closed"),
    "second colon": (
        "map: m\npackage: p\nabout: a: b\n",
        "3:9: this is not YAML: a second ': ' in one line; put the text in quotes",
    ),
    "tab at start": ("\tmap: m", "1:1: this is not YAML: a tab; YAML is indented with spaces"),
    "tab later": ("map: m\n\tpackage: p", "2:1: this is not YAML: a tab; YAML is indented with spaces"),
    "two docs": (
        "map: m\npackage: p\n---\nmap: n\n",
        "3:1: this is not YAML: a second document begins here, and a file holds one map",
    ),
    "at sign": ("map: @m\n", "1:6: this is not YAML: a text can't begin with '@'; put it in quotes"),
    "nul": ("map: m\npackage: \x00p\n", "2:10: this is not YAML: the character #x0000 is not allowed"),
    "undefined alias": ("map: *m\n", "1:6: this is not YAML: found undefined alias"),
    "bad escape": ('map: "\\ud800"\n', "1:9: this is not YAML: found invalid Unicode character escape code"),
    "surrogate": ("map: \ud800", "1:6: this is not YAML: the character #xd800 is not allowed"),
    "open quote": ("map: 'm\n", "2:1: this is not YAML: the file ends inside a quoted text"),
    "unclosed brace": ("map: {a: 1\npackage: p\n", "2:8: this is not YAML: did not find expected ',' or '}'"),
    "list root": ("- map: m\n", "1:1: a map must be a mapping of keys, not a list"),
    "text root": ("map\n", "1:1: a map must be a mapping of keys, not a text"),
    "wrong map key": (
        "map: m\npackge: p\npackage: p\nspans:\n  good: {group: step, function: 'a:b'}\n",
        "2:1: unknown key 'packge' in a map, did you mean 'package'?",
    ),
    "two wrong map keys": (
        "mapp: m\npackge: p\n",
        [
            "1:1: unknown key 'mapp' in a map, did you mean 'map'?",
            "2:1: unknown key 'packge' in a map, did you mean 'package'?",
        ],  # noqa: E501
    ),
    "no map": ("package: p\n", "1:1: a map needs the key 'map'"),
    "no package": ("map: m\n", "1:1: a map needs the key 'package'"),
    "far key": (
        "map: m\npackage: p\nzzz: 1\n",
        "3:1: unknown key 'zzz' in a map; "
        "known: map, package, algorithm, service, resource, about, inside, groups, spans, metrics, arguments",
    ),
    "map number": ("map: 1\npackage: p\n", "1:6: map must be a text, not a number; put it in quotes"),
    "map name": ("map: my map\npackage: p\n", f"1:6: 'my map' is no name ({NAME_IN_WORDS})"),
    "package": ("map: m\npackage: my-pkg/x\n", "2:10: package: 'my-pkg/x' is no module; write package.module"),
    "map twice": ("map: m\npackage: p\nmap: n\n", "3:1: the key 'map' stands twice in a map, first in line 1"),
    "spans list": ("map: m\npackage: p\nspans: []\n", "3:8: spans must be a mapping of keys, not a list"),
    "spans nothing": ("map: m\npackage: p\nspans:\n", "3:7: spans must be a mapping of keys, not nothing"),
    "inside": (
        "map: m\npackage: p\ninside: [a.b, 'c d', 3]\n",
        [
            "3:15: inside: 'c d' is no module; write package.module",
            "3:22: inside must be a text, not a number; put it in quotes",
        ],  # noqa: E501
    ),
    "list key": ("map: m\npackage: p\n[1, 2]: x\n", "3:1: a key must be a text, not a list"),
    "groups list": ("map: m\npackage: p\ngroups: [g]\n", "3:9: groups must be a mapping of keys, not a list"),
}
"""What is wrong with the map as a whole: it is left out."""

SPANS = {
    "span key": (
        "{group: step, functon: 'a:b'}",
        "4:20: unknown key 'functon' in the span 's', did you mean 'function'?",
    ),
    "span nothing": ("", "4:5: the span 's' must be a mapping of keys, not nothing"),
    "span text": ("step", "4:6: the span 's' must be a mapping of keys, not a text"),
    "empty list": ("[]", "4:6: the list of 's' is empty"),
    "no group": ("{function: 'a:b'}", "4:3: the span 's' needs a group"),
    "group": ("{group: stp, function: 'a:b'}", "4:14: unknown group 'stp', did you mean 'step'?"),
    "group far": (
        "{group: xyz, function: 'a:b'}",
        "4:14: unknown group 'xyz'; known: job, setup, model_init, checkpoint, evaluate, step, rollout, generation, reward, policy_update, logprob, advantage, data_processing, data_plane, efficiency, per_prompt; a group of your own stands under 'groups'",  # noqa: E501
    ),
    "group case": ("{group: STEP, function: 'a:b'}", "4:14: unknown group 'STEP', did you mean 'step'?"),
    "group number": ("{group: 3, function: 'a:b'}", "4:14: group must be a text, not a number; put it in quotes"),
    "group date": ("{group: 2020-01-01, function: 'a:b'}", "4:14: group must be a text, not a date; put it in quotes"),
    "bucket": (
        "{group: step, function: 'a:b', bucket: overhed}",
        "4:45: unknown bucket 'overhed', did you mean 'overhead'?",
    ),
    "bucket far": (
        "{group: step, function: 'a:b', bucket: 1}",
        "4:45: bucket must be a text, not a number; put it in quotes",
    ),
    "no join": (
        "{group: step}",
        "4:3: the span 's' needs one of function, block, between, each, attributes_from (has none)",
    ),
    "two joins": (
        "{group: step, function: 'a:b', block: 'a:b'}",
        "4:3: the span 's' needs one of function, block, between, each, attributes_from (has function and block)",
    ),
    "target": ("{group: step, function: 'a b'}", "4:30: 'a b' is no target; write package.module:Class.method"),
    "target without a colon": (
        "{group: step, function: a.b.c}",
        "4:30: 'a.b.c' is no target, did you mean 'a.b:c'?",
    ),
    "target with a class, without a colon": (
        "{group: step, function: a.b.C.d(x=1)}",
        "4:30: 'a.b.C.d(x=1)' is no target, did you mean 'a.b:C.d(x=1)'?",
    ),
    "target dots": (
        "{group: step, function: 'a..b:c'}",
        "4:30: 'a..b:c' is no target; write package.module:Class.method",
    ),
    "target end": ("{group: step, function: 'a:b.'}", "4:30: 'a:b.' is no target; write package.module:Class.method"),
    "target in a script": (
        "{group: step, function: '__main__:train'}",
        "4:30: '__main__:train' is no target: a script is never imported; name what it calls",
    ),
    "target empty": ("{group: step, function: []}", "4:30: function names no target"),
    "target mapping": ("{group: step, function: {}}", "4:30: function names no target"),
    "firstof wrong": (
        "{group: step, function: {firstof: 'a:b'}}",
        "4:31: unknown key 'firstof' in function, did you mean 'first_of'?",
    ),
    "first_of empty": ("{group: step, function: {first_of: []}}", "4:41: first_of names no target"),
    "target nested list": ("{group: step, function: [['a:b']]}", "4:31: function must be a text, not a list"),
    "selector": (
        "{group: step, block: 'a:b(label)'}",
        "4:27: can't read 'label' in 'a:b(label)'; write (argument=value)",
    ),
    "selector empty": (
        "{group: step, block: 'a:b(label=)'}",
        "4:27: can't read 'label=' in 'a:b(label=)'; write (argument=value)",
    ),
    "selector hole": (
        "{group: step, block: 'a:b(label=x||y)'}",
        "4:27: can't read 'label=x||y' in 'a:b(label=x||y)'; write (argument=value)",
    ),
    "selector name": (
        "{group: step, block: 'a:b(la-bel=x)'}",
        "4:27: can't read 'la-bel=x' in 'a:b(la-bel=x)'; write (argument=value)",
    ),
    "selector twice": (
        "{group: step, block: 'a:b(l=x, l=y)'}",
        "4:27: 'l' stands twice in 'a:b(l=x, l=y)'; write (l=one|other)",
    ),
    "boolean": ("{group: step, function: 'a:b', optional: maybe}", "4:47: optional must be true or false, not a text"),
    "boolean number": (
        "{group: step, function: 'a:b', optional: 1}",
        "4:47: optional must be true or false, not a number",
    ),
    "versions": (
        "{group: step, function: 'a:b', versions: new}",
        "4:47: versions: 'new' is no requirement; write trl>=0.17,<1",
    ),
    "start_from": (
        "{group: step, each: 'a:b', start_from: 'a:c'}",
        "4:45: start_from goes with function and between, not with each",
    ),
    "about": (
        "{group: step, function: 'a:b', about: yes}",
        "4:44: about must be a text, not true or false; put it in quotes",
    ),
    "three at once": (
        "{groop: step, function: 'a', optional: 1}",
        [
            "4:7: unknown key 'groop' in the span 's', did you mean 'group'?",
            "4:30: 'a' is no target; write package.module:Class.method",
            "4:45: optional must be true or false, not a number",
        ],  # noqa: E501
    ),
    "no begin": ("{group: step, between: {end: 'a:c'}}", "4:29: between needs 'begin'"),
    "no end": (
        "{group: step, between: {begin: 'a:c'}}",
        "4:29: between needs 'end' (when it returns), 'until' (when it is called), or both",
    ),
    "between key": (
        "{group: step, between: {begin: 'a:c', ends: 'a:d'}}",
        "4:44: unknown key 'ends' in between, did you mean 'end'?",
    ),
    "between text": ("{group: step, between: 'a:b'}", "4:29: between must be a mapping of keys, not a text"),
    "coalesce each": (
        "{group: step, each: 'a:c', coalesce: {match: args.x}}",
        "4:3: coalesce goes with function and block, not with each",
    ),
    "coalesce match": (
        "{group: step, block: 'a:c', coalesce: {count: n}}",
        "4:44: coalesce needs 'match': values that are the same while it is one span",
    ),
    "coalesce root": (
        "{group: step, block: 'a:c', coalesce: {match: return.x}}",
        "4:44: match reads args, self, caller or env, not 'return.x'",
    ),
    "match root": (
        "{group: step, between: {begin: 'a:c', end: 'a:d', match: caller.x}}",
        "4:29: match reads args or self, not 'caller'",
    ),
    "match empty": ("{group: step, between: {begin: 'a:c', end: 'a:d', match: []}}", "4:63: match names no value path"),
    "once": (
        "{group: step, between: {begin: 'a:c', end: 'a:d', once: 'x'}}",
        "4:62: once must be true or false, not a text",
    ),
    "scope key": (
        "{group: step, function: 'a:b', scope: {buckets: idle}}",
        "4:45: unknown key 'buckets' in scope, did you mean 'bucket'?",
    ),
    "scope bucket": (
        "{group: step, function: 'a:b', scope: {bucket: none}}",
        "4:53: unknown bucket 'none'; known: productive, overhead, idle, wasted",
    ),
    "scope group": (
        "{group: step, function: 'a:b', scope: {groups: {stp: job, step: jobb}}}",
        ["4:54: unknown group 'stp', did you mean 'step'?", "4:70: unknown group 'jobb', did you mean 'job'?"],
    ),
    "scope empty": ("{group: step, function: 'a:b', scope: {}}", "4:44: scope needs 'bucket' or 'groups'"),
    "scope text": (
        "{group: step, function: 'a:b', scope: overhead}",
        "4:44: scope must be a mapping of keys, not a text",
    ),
    "attr list": (
        "{group: step, function: 'a:b', attributes: [args.x]}",
        "4:49: attributes must be a mapping of keys, not a list",
    ),
    "attr twice": (
        "{group: step, function: 'a:b', attributes: {k: args.x, k: args.y}}",
        "4:61: the key 'k' stands twice in attributes, first in line 4",
    ),
    "attr name": ("{group: step, function: 'a:b', attributes: {'': args.x}}", "4:50: an attribute needs a name"),
    "return in block": (
        "{group: step, block: 'a:b', attributes: {k: return.x}}",
        "4:3: the attribute 'k' reads 'return', which goes with function, not block",
    ),
    "merge text": (
        "{<<: x, group: step, function: 'a:b'}",
        "4:11: '<<' merges a mapping or a list of them, not a text",
    ),
    "python tag": (
        "!!python/object:os.system {group: step}",
        "4:6: the span 's' must be a mapping of keys, not a value with the tag !!python/object:os.system",
    ),
    "own tag": ("!mine {group: step}", "4:6: the span 's' must be a mapping of keys, not a value with the tag !mine"),
}
"""What is wrong with one span: it is left out, the other stays."""

PATHS = {
    "attr empty": ("[]", "the attribute 'k' names no value path"),
    "attr nothing": ("", "the attribute 'k' must be a value path or a constant, not nothing"),
    "attr mapping": ("{a: b}", "the attribute 'k' must be a value path or a constant, not a mapping"),
    "attr date": ("2020-01-01", "the attribute 'k' must be a value path or a constant, not a date"),
    "attr huge": (
        "999999999999999999999999999999",
        "the attribute 'k' must be a value path or a constant, not a number beyond 64 bits",
    ),
    "attr tag": ("!!int x", "the attribute 'k' must be a value path or a constant, not a number that can't be read"),
    "attr python": (
        "!!python/name:os.system ''",
        "the attribute 'k' must be a value path or a constant, not a value with the tag !!python/name:os.system",
    ),
    "root": (
        "arg.x",
        "a value path starts with args, self, return, outcome, caller, env, not 'arg', did you mean 'args'?",
    ),
    "root far": (
        "train",
        "a value path starts with args, self, return, outcome, caller, env, not 'train'; a constant text has two pairs of quotes: \"'text'\"",  # noqa: E501
    ),
    "call": ("len(args.x)", "'len(args.x)' is a call and no value path; write 'args.x | len'"),
    "no path": ("'| len'", "'| len' is no value path"),
    "step": ("args.x-y", "can't read '-y' in the value path 'args.x-y'"),
    "needs name": ("args", "'args' needs a name, as in args.step"),
    "needs name index": ("'caller[0]'", "'caller' needs a name, as in caller.step"),
    "reducer": ("args.x | lenn", "unknown reducer 'lenn' in 'args.x | lenn', did you mean 'len'?"),
    "reducer empty": ("'args.x |'", "can't read the reducer '' in 'args.x |'"),
    "reducer arg": ("args.x | len(3)", "the reducer 'len' is written len"),
    "reducer no arg": ("args.x | default", "the reducer 'default' is written default(value)"),
    "outcome of": (
        "outcome.x",
        "'outcome' is a text, 'ok', 'error' or 'timeout', and has nothing below it: 'outcome.x'",
    ),
    "div late": (
        "args.x | div(return.y)",
        "'args.x | div(return.y)' mixes what is known at the end with what is known at the start",
    ),
    "late div": (
        "return.x | div(args.y)",
        "'return.x | div(args.y)' mixes what is known at the end with what is known at the start",
    ),
    "add text": ("args.x | add(one)", "add(...) takes a number or a value path, not 'one'"),
}
"""What is wrong with a value path; each in its attribute at 4:53."""


@pytest.mark.parametrize("case", WHOLE)
def test_a_mistake_in_the_map(case: str) -> None:
    text, told = WHOLE[case]
    loaded = load(text)
    assert lines(loaded) == expected(told, "the map is left out")
    assert loaded.map is None


@pytest.mark.parametrize("case", SPANS)
def test_a_mistake_in_a_span(case: str) -> None:
    entry, told = SPANS[case]
    loaded = one(entry)
    assert lines(loaded) == expected(told, "the span 's' is left out")
    assert names(loaded) == ["good"]


@pytest.mark.parametrize("case", PATHS)
def test_a_mistake_in_a_value_path(case: str) -> None:
    path, told = PATHS[case]
    loaded = one(f"{{group: step, function: 'a:b', attributes: {{k: {path}}}}}")
    assert lines(loaded) == [f"m.yaml:4:53: {told}; the span 's' is left out"]
    assert names(loaded) == ["good"]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("s p", f"4:3: 's p' is no span name ({NAME_IN_WORDS}); the span 's p' is left out"),
        ("1", f"4:3: '1' is no span name ({NAME_IN_WORDS}); the span '1' is left out"),
        ("a..b", f"4:3: 'a..b' is no span name ({NAME_IN_WORDS}); the span 'a..b' is left out"),
        ("''", f"4:3: '' is no span name ({NAME_IN_WORDS}); the span '' is left out"),
        ("größe", f"4:3: 'größe' is no span name ({NAME_IN_WORDS}); the span 'größe' is left out"),
        ("rl.größe", f"4:3: 'rl.größe' is no span name ({NAME_IN_WORDS}); the span 'rl.größe' is left out"),
        ("[1]", "4:3: a key must be a text, not a list; this one is left out"),
        ("{a: b}", "4:3: a key must be a text, not a mapping; this one is left out"),
        ("good", "5:3: the key 'good' stands twice in spans, first in line 4; this one is left out"),
    ],
)
def test_a_mistake_in_a_span_name(key: str, told: str) -> None:
    loaded = load(f"{HEAD}  {key}: {{group: step, function: 'a:b'}}\n{GOOD}")
    assert lines(loaded) == [f"m.yaml:{told}"]
    assert names(loaded) == ["good"]


def test_return_is_read_later_than_all_else() -> None:
    loaded = one("{group: step, function: 'a:b', attributes: {k: [return.x, 3], l: [args.x, return.x]}}")
    assert lines(loaded) == [
        "m.yaml:4:3: the attribute 'l' mixes 'return' with 'args'; use one of them; the span 's' is left out",
    ]
    loaded = one("{group: step, block: 'a:b', attributes: {k: outcome}}")
    assert lines(loaded) == [
        "m.yaml:4:3: the attribute 'k' reads 'outcome', which goes with function, not block; the span 's' is left out",
    ]


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("{return.x: 1}", "4:49: only_when reads args, self, caller or env, not 'return.x'"),
        ("{arg.x: 1}", "4:49: a value path starts with args, self, return, outcome, caller, env, not 'arg', "
                       "did you mean 'args'?"),
        ("{args.x: []}", "4:57: only_when: 'args.x' has no value that it may have"),
        ("{args.x: {a: b}}", "4:57: only_when takes texts, numbers and booleans, not a mapping"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_condition(condition: str, told: str) -> None:
    loaded = one(f"{{group: step, function: 'a:b', only_when: {condition}}}")
    assert lines(loaded) == [f"m.yaml:{told}; the span 's' is left out"]


def test_every_mistake_is_told_in_the_order_of_the_file() -> None:
    loaded = load(
        "mapp: m\n"
        "package: p\n"
        "groups:\n"
        "  mine: {buckt: idle}\n"
        "spans:\n"
        "  a: {group: stp, functon: 'a:b', optional: 1}\n"
        "  b: {group: mine, function: 'a:b'}\n"
        "  c: {group: step, function: [a, 'a:b', c]}\n"
    )
    assert [line.partition(";")[0] for line in lines(loaded)] == [
        "m.yaml:1:1: unknown key 'mapp' in a map, did you mean 'map'?",
        "m.yaml:4:10: unknown key 'buckt' in the group 'mine', did you mean 'bucket'?",
        "m.yaml:6:14: unknown group 'stp', did you mean 'step'?",
        "m.yaml:6:19: unknown key 'functon' in the span 'a', did you mean 'function'?",
        "m.yaml:6:45: optional must be true or false, not a number",
        "m.yaml:8:31: 'a' is no target",
        "m.yaml:8:41: 'c' is no target",
    ]


def test_a_mistake_in_a_list_of_entries_costs_one_entry() -> None:
    loaded = one("\n    - {group: step, function: 'a:c'}\n    - {group: stp, function: 'a:d'}")
    assert lines(loaded) == [
        "m.yaml:6:15: unknown group 'stp', did you mean 'step'?; this entry of 's' is left out",
    ]
    assert names(loaded) == ["s", "good"]


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ("{g: {buckt: idle}}", "3:14: unknown key 'buckt' in the group 'g', did you mean 'bucket'?"),
        ("{g: {bucket: idl}}", "3:22: unknown bucket 'idl', did you mean 'idle'?"),
        ("{g: {scoped: 1}}", "3:22: scoped must be true or false, not a number"),
        ("{g: {about: 1}}", "3:21: about must be a text, not a number; put it in quotes"),
        ("{g: }", "3:13: the group 'g' must be a mapping of keys, not nothing"),
        ("{g: idle}", "3:13: the group 'g' must be a mapping of keys, not a text"),
    ],
)
def test_a_mistake_in_a_group_takes_its_spans_along(groups: str, told: str) -> None:
    loaded = load(f"map: m\npackage: p\ngroups: {groups}\nspans:\n  s: {{group: g, function: 'a:b'}}\n{GOOD}")
    assert lines(loaded) == [f"m.yaml:{told}; the group 'g' and its spans are left out"]
    assert names(loaded) == ["good"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("all", "the group 'all' has the name of a preset"),
        ("default", "the group 'default' has the name of a preset"),
        ("a.b", "'a.b' is no group name (a letter of A-Z or a-z, then letters, digits, _ and -; no dots)"),
        ("-a", "'-a' is no group name (a letter of A-Z or a-z, then letters, digits, _ and -; no dots)"),
    ],
)
def test_a_group_that_could_not_be_selected_is_a_mistake(name: str, told: str) -> None:
    loaded = load(f"map: m\npackage: p\ngroups: {{{name}: {{}}}}\n")
    assert lines(loaded) == [f"m.yaml:3:10: {told}; the group '{name}' and its spans are left out"]


def test_a_map_with_groups_of_its_own() -> None:
    loaded = load(
        "map: m\npackage: p\ngroups:\n  mine: {about: mine alone}\n  umbrella: {bucket: ~, scoped: false}\n"
        "spans:\n  s: {group: mine, function: 'a:b', scope: {groups: {step: umbrella}}}\n"
    )
    assert lines(loaded) == []
    assert loaded.map is not None
    mine, umbrella = loaded.map.groups
    assert (mine.name, mine.about, mine.bucket, mine.scoped) == ("mine", "mine alone", "overhead", True)
    assert (umbrella.name, umbrella.bucket, umbrella.scoped) == ("umbrella", None, False)
    assert mine.place.line == 4


def test_every_key_of_a_span() -> None:
    loaded = load(
        """
map: m
package: p
inside: p.loops
spans:
  a.function:
    about: every key that a function takes
    group: step
    function: ["p.a:f", {first_of: ["p.a:C.g", "p.b:g"]}]
    attributes: {one: args.x, two: [self.y, 3], three: return.z}
    bucket: none
    scope: {bucket: overhead, groups: {step: evaluate}}
    optional: true
    subclasses: true
    content: true
    threads: true
    start_from: p.a:earlier
    versions: trl>=0.17, <1
  a.block: {group: step, block: 'p.t:T.time(label=a|b*|"c, d"|3|true)'}
  a.pair: {group: step, inside: [], between: {begin: p.t:a, until: p.t:b, match: [self.x, args.k], once: true}}
  a.loop: {group: step, inside: [q, r.s], each: p.t:items}
  gone: {disabled: true}
"""
    )
    assert lines(loaded) == []
    assert loaded.map is not None
    function, block, pair, loop = loaded.map.spans
    assert [[str(t) for t in a.targets] for a in function.join.targets] == [["p.a:f"], ["p.a:C.g", "p.b:g"]]
    assert [(key, [p.text for p in paths]) for key, paths in function.attributes] == [
        ("one", ["args.x"]),
        ("two", ["self.y", "3"]),
        ("three", ["return.z"]),
    ]
    assert function.bucket == "none"
    assert function.scope is not None
    assert (function.scope.bucket, function.scope.groups) == ("overhead", (("step", "evaluate"),))
    assert function.optional
    assert function.subclasses
    assert function.content
    assert function.threads
    assert str(function.start_from) == "p.a:earlier"
    assert function.versions == "trl>=0.17, <1"
    assert function.inside == ()  # a map's `inside` is for blocks, pairs and loops
    (selector,) = block.targets()[0].selectors
    assert (selector.argument, selector.values) == ("label", ("a", "b*", "c, d", 3, True))
    assert block.inside == ("p.loops",)
    assert pair.join.untils
    assert not pair.join.ends
    assert pair.join.once
    assert [p.text for p in pair.join.match or ()] == ["self.x", "args.k"]
    assert pair.inside == ()
    assert loop.inside == ("q", "r.s")
    assert loaded.map.disabled == ("gone",)
    assert (function.place.line, block.place.line) == (6, 19)


# -- YAML ------------------------------------------------------------------------------------------------


def test_anchors_aliases_and_merge_keys() -> None:
    loaded = load(
        HEAD
        + "  a: &a {group: step, function: 'a:b', attributes: &both {k: args.x}, optional: true}\n"
        + "  b: {<<: *a, group: job, optional: false}\n"
        + "  c: {group: step, function: 'a:b', attributes: {<<: *both, l: args.y}}\n"
        + "  d: {<<: [{group: job}, *a]}\n"
        + "  e: *a\n"
    )
    assert lines(loaded) == []
    assert loaded.map is not None
    a, b, c, d, e = loaded.map.spans
    assert (b.group, b.optional, b.attributes) == ("job", False, a.attributes)
    assert [key for key, _ in c.attributes] == ["l", "k"]
    assert (d.group, d.optional) == ("job", True)
    assert e.join == a.join


def test_a_map_that_holds_itself_ends() -> None:
    loaded = load("map: m\npackage: p\nspans: &x\n  a: *x\n  b: &y {<<: *y, group: step, function: 'a:b'}\n")
    assert lines(loaded)[0].startswith("m.yaml:4:3: unknown key 'a' in the span 'a'; known: group, function")
    assert names(loaded) == ["b"]


def test_a_mistake_that_is_merged_is_told_where_it_stands() -> None:
    loaded = load(HEAD + "  a: &a {group: step, function: 'a:b', optional: 1}\n  b: {<<: *a, optional: true}\n" + GOOD)
    assert lines(loaded) == [
        "m.yaml:4:50: optional must be true or false, not a number; the span 'a' is left out",
    ]
    assert names(loaded) == ["b", "good"]


def test_keys_are_taken_as_they_are_written() -> None:
    # YAML 1.1 reads `on`, `no` and 1 as no texts
    loaded = one("{group: step, function: 'a:b', attributes: {on: args.x, 1: args.y, no: args.z}}")
    assert lines(loaded) == []
    assert loaded.map is not None
    assert [key for key, _ in loaded.map.spans[0].attributes] == ["on", "1", "no"]


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775807", "0.5", "1e3", ".nan", "true"])
def test_constants(number: str) -> None:
    assert lines(one(f"{{group: step, function: 'a:b', attributes: {{k: {number}}}}}")) == []


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 19, "-" + "9" * 400])
def test_a_huge_number_gives_a_short_message(number: str) -> None:
    loaded = one(f"{{group: step, function: 'a:b', attributes: {{k: {number}}}}}")
    (line,) = lines(loaded)
    assert line.startswith("m.yaml:4:53: the attribute 'k' must be a value path or a constant, not a number ")
    assert len(line) < 160
    assert names(loaded) == ["good"]


@pytest.mark.parametrize("path", ["args." + "x" * 5000 + " y", "args.x[" + "9" * 5000 + "]", "args.x | " + "y" * 5000])
def test_a_huge_word_gives_a_short_message(path: str) -> None:
    (line,) = lines(one(f"{{group: step, function: 'a:b', attributes: {{k: '{path}'}}}}"))
    assert len(line) < 400


@pytest.mark.parametrize("text", ["[" * 3000, "a: " + "{a: " * 3000, "- " * 3000])
def test_a_deep_nest_is_a_mistake(text: str) -> None:
    (line,) = lines(load(text))
    assert line.endswith("; the map is left out")


def test_an_empty_spans_key_is_fine_where_it_is_a_mapping() -> None:
    assert lines(load("map: m\npackage: p\nspans: {}\n")) == []
    assert lines(load("map: m\npackage: p\n")) == []


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(
        b"\xef\xbb\xbf" + (HEAD + GOOD + "  s: {group: stp, function: 'a:b'}\n").replace("\n", "\r\n").encode()
    )
    text, mistake = loader.read_file(path)
    assert mistake is None
    assert text is not None
    loaded = load(text)
    assert [str(m.place) for m in loaded.mistakes] == ["m.yaml:5:14"]
    assert names(loaded) == ["good"]


# -- files -----------------------------------------------------------------------------------------------


def test_an_absent_file(tmp_path: Path) -> None:
    (tmp_path / "my_map.yaml").touch()
    text, mistake = loader.read_file(tmp_path / "my_mpa.yaml")
    assert text is None
    assert str(mistake) == (
        f"{tmp_path}/my_mpa.yaml: there is no such file, did you mean 'my_map.yaml'?; the map is left out"
    )


def test_an_absent_folder(tmp_path: Path) -> None:
    _, mistake = loader.read_file(tmp_path / "nowhere" / "m.yaml")
    assert str(mistake) == f"{tmp_path}/nowhere/m.yaml: there is no folder {tmp_path}/nowhere; the map is left out"


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"map: caf\xe9\n")
    _, mistake = loader.read_file(path)
    assert str(mistake) == f"{path}: this is not UTF-8 text (byte 8); the map is left out"


def test_a_folder_in_a_files_place(tmp_path: Path) -> None:
    _, mistake = loader.read_file(tmp_path)
    assert str(mistake) == f"{tmp_path}: it can't be read: Is a directory; the map is left out"


def test_a_name_that_no_file_can_have() -> None:
    text, mistake = loader.read_file(Path("a\0b"))
    assert text is None
    assert "embedded null" in str(mistake)


# -- groups.yaml -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["g.yaml: the file is empty; it is left out"]),
        ("group: {}", ["g.yaml:1:1: unknown key 'group' in g.yaml, did you mean 'groups'?; it is left out"]),
        ("groups: []", ["g.yaml:1:9: groups must be a mapping of keys, not a list; it is left out"]),
        (
            "groups: {a: {}, b: {bucket: x}}\npresets: {p: [a], q: [a, c]}",
            [
                "g.yaml:1:29: unknown bucket 'x'; known: productive, overhead, idle, wasted, none; "
                "the group 'b' and its spans are left out",
                "g.yaml:2:26: unknown group 'c', did you mean 'a'?; the preset is left out",
            ],
        ),
    ],
)
def test_mistakes_in_groups_yaml(text: str, told: list[str]) -> None:
    table, mistakes = loader.load_groups(text, "g.yaml")
    assert [str(m).replace(", did you mean 'a'?", "").replace("; known: a", "") for m in mistakes] == [
        line.replace(", did you mean 'a'?", "") for line in told
    ]
    assert set(table.presets) <= {"p"}


# -- the shipped maps ------------------------------------------------------------------------------------

SHIPPED = yaml_files(builtin_folder())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_map_has_no_mistake_and_is_read_once_through(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        loaded = loader.load_map(text, str(path), TABLE)
    finally:
        sys.setprofile(None)
    assert lines(loaded) == []
    # 500 to 1,100 calls per KB (with libyaml): what reads a node more than once shows, whatever the machine is doing
    assert calls < 500 + 1500 * len(text) / 1024

"""The JSON Schema of maps: it is the loader's tables, it is shipped, and the shipped maps keep to it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from autoinstr.cli import main
from autoinstr.maps import keys, loader
from autoinstr.maps.catalog import Catalog, builtin_folder, yaml_files

SHIPPED = builtin_folder()
SCHEMA = json.loads((SHIPPED / "schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TABLE = Catalog(lambda mistake: pytest.fail(str(mistake))).table


def wrong(document: Any) -> bool:
    return not VALIDATOR.is_valid(document)


def a_map(**span: Any) -> dict[str, Any]:
    return {"map": "m", "package": "p", "spans": {"s": {"group": "step", "function": "a:b", **span}}}


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_shipped_file_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert (SHIPPED / "schema.json").read_text(encoding="utf-8") == printed, (
        "write it anew: autoinstr schema > span_maps/schema.json"
    )


@pytest.mark.parametrize("path", yaml_files(SHIPPED), ids=lambda p: p.stem)
def test_a_shipped_map_names_the_schema_and_keeps_to_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    relative = os.path.relpath(SHIPPED / "schema.json", path.parent)
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={relative}"
    VALIDATOR.validate(yaml.safe_load(text))


def test_every_key_has_a_description_that_an_editor_shows() -> None:
    tables = {
        "a map": SCHEMA,
        "a span": SCHEMA["$defs"]["entry"],
        "between": SCHEMA["$defs"]["between"],
        "targets": SCHEMA["$defs"]["one_target"]["anyOf"][1],
        "scope": SCHEMA["$defs"]["scope"],
        "coalesce": SCHEMA["$defs"]["coalesce"],
        "a group": SCHEMA["$defs"]["groups"]["additionalProperties"],
        "a metric tap": SCHEMA["$defs"]["tap"],
        "a series": SCHEMA["$defs"]["source"],
        "arguments": SCHEMA["$defs"]["arguments"]["additionalProperties"],
    }
    assert tables.keys() == keys.TABLES.keys()
    for name, table in keys.TABLES.items():
        shown = {key: value["description"] for key, value in tables[name]["properties"].items()}
        assert shown == {key.name: key.about for key in table}


def test_the_groups_are_completions_with_their_meaning() -> None:
    offered = {one["const"]: one["description"] for one in SCHEMA["$defs"]["group"]["anyOf"] if "const" in one}
    assert offered == {group.name: group.about for group in TABLE.groups.values()}
    assert not wrong(a_map(group="my_own"))


def test_every_kind_of_value_has_a_definition_and_a_reader() -> None:
    kinds = {key.kind for table in keys.TABLES.values() for key in table}
    assert kinds <= SCHEMA["$defs"].keys()
    assert kinds == loader._Reader("", TABLE)._by_kind.keys()


@pytest.mark.parametrize(
    "span",
    [
        {"function": ["a:b", {"first_of": ["a:c", "a.d:C.m"]}]},
        {"attributes": {"k": "args.x | len", "l": ["self.y", 3, True, 0.5, "'text'", "1e-6"]}},
        {"bucket": "none"},
        {"bucket": None},
        {"scope": {"bucket": "overhead"}},
        {"scope": {"groups": {"step": "evaluate"}}},
        {"inside": []},
        {"inside": "a.b"},
        {"versions": "trl>=0.17, <1"},
        {"start_from": "a:c(x=1)"},
        {"disabled": False},
    ],
)
def test_good_for_both(span: dict[str, Any]) -> None:
    document = a_map(**span)
    VALIDATOR.validate(document)
    assert loader.load_map(yaml.safe_dump(document), "m.yaml", TABLE).mistakes == []


@pytest.mark.parametrize(
    "span",
    [
        {"functon": "a:b"},
        {"function": "a.b"},
        {"function": []},
        {"function": {"first_of": []}},
        {"function": {"firstof": "a:b"}},
        {"block": "a:b"},
        {"group": 3},
        {"group": "a.b"},
        {"bucket": "idel"},
        {"attributes": []},
        {"attributes": {"k": None}},
        {"attributes": {"k": "arg.x"}},
        {"attributes": {"k": []}},
        {"scope": {}},
        {"scope": {"bucket": "none"}},
        {"scope": {"buckets": "idle"}},
        {"optional": "maybe"},
        {"about": 1},
        {"inside": ["a b"]},
        {"versions": "new"},
        {"start_from": ["a:b"]},
        {"between": {"begin": "a:b"}},
    ],
)
def test_wrong_for_both(span: dict[str, Any]) -> None:
    document = a_map(**span)
    assert wrong(document)
    assert loader.load_map(yaml.safe_dump(document), "m.yaml", TABLE).mistakes != []


@pytest.mark.parametrize(
    "between",
    [
        {},
        {"begin": "a:b"},
        {"end": "a:b"},
        {"begin": "a:b", "ends": "a:c"},
    ],
)
def test_wrong_pairs_for_both(between: dict[str, Any]) -> None:
    document = {"map": "m", "package": "p", "spans": {"s": {"group": "step", "between": between}}}
    assert wrong(document)
    assert loader.load_map(yaml.safe_dump(document), "m.yaml", TABLE).mistakes != []


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"map": "m"},
        {"map": 1, "package": "p"},
        {"map": "m", "package": "p", "spans": []},
        {"map": "m", "package": "p", "extra": 1},
        {"map": "m", "package": "p", "spans": {"s": []}},
        {"map": "m", "package": "p", "spans": {"s p": {"disabled": True}}},
        {"map": "m", "package": "p", "groups": {"a.b": {}}},
        {"map": "m", "package": "p", "groups": {"g": {"bucket": "x"}}},
    ],
)
def test_wrong_maps_for_both(document: Any) -> None:
    assert wrong(document)
    assert loader.load_map(yaml.safe_dump(document), "m.yaml", TABLE).mistakes != []


def test_a_disabled_span_needs_nothing_else() -> None:
    VALIDATOR.validate({"map": "m", "package": "p", "spans": {"s": {"disabled": True}}})
    assert wrong({"map": "m", "package": "p", "spans": {"s": {"disabled": False}}})


def test_what_adds_to_a_span_has_attributes_and_nothing_of_a_span_of_its_own() -> None:
    def adding(**more: Any) -> dict[str, Any]:
        entry = {"group": "step", "attributes_from": "a:b", "attributes": {"k": "return"}, **more}
        return {"map": "m", "package": "p", "spans": {"s": [{"group": "step", "function": "a:c"}, entry]}}

    assert not wrong(adding(keep=True, only_when={"args.x": None}, about="more of s"))
    without = adding()
    del without["spans"]["s"][1]["attributes"]
    assert wrong(without)
    own = {
        "resource": {"k": "args.x"},
        "bucket": "idle",
        "scope": {"bucket": "idle"},
        "coalesce": {"match": "args.x"},
        "threads": True,
        "start_from": "a:d",
        "also": "t",
    }
    assert set(own) == set(keys.SPANS_OWN)
    assert [key for key, value in own.items() if not wrong(adding(**{key: value}))] == []
    assert not wrong(a_map())
    assert wrong(a_map(keep=True))

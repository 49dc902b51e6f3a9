"""The JSON Schema of span maps (draft 2020-12), made from the loader's own tables, for editors and other tools.

It knows the shape of a map. What needs a look at other places, such as two keys that do not go together at one
join point, only the loader says.
"""

from __future__ import annotations

from typing import Any

from autoinstr.environment_variables import SWITCHES
from autoinstr.maps import keys, values
from autoinstr.maps.groups import GroupTable
from autoinstr.maps.keys import Key
from autoinstr.maps.metric_model import DURATION, KINDS, STAR
from autoinstr.maps.model import BUCKETS

Schema = dict[str, Any]

_BUCKETS_IN_WORDS = {
    "productive": "Time that makes the model better: generating, scoring, training.",
    "overhead": "Time that training needs but that makes nothing better.",
    "idle": "Time in which somebody waits.",
    "wasted": "Time whose work was thrown away.",
    "none": "No bucket: an umbrella, whose time is the time of what lies inside it.",
}

_KINDS_IN_WORDS = {
    "gauge": "The latest value counts.",
    "counter": "Each value is a delta; the series is their sum, which never shrinks.",
    "up_down_counter": "Each value is a delta; the series is their sum.",
    "histogram": "Values are counted by size.",
}


def map_schema(table: GroupTable) -> Schema:
    """The schema, with the groups of `table` as completions."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "autoinstr span map",
        "description": "Where spans are: at this place in the code, in this group, emit this span.",
        **_object(keys.MAP_KEYS, required=["map", "package"]),
        "$defs": _definitions(table),
    }


def _definitions(table: GroupTable) -> Schema:
    return {
        "alternatives": _one_or_list("target"),
        "attributes": {"type": "object", "additionalProperties": _ref("paths")},
        "between": {
            **_object(keys.BETWEEN_KEYS, required=["begin"]),
            "anyOf": [{"required": ["end"]}, {"required": ["until"]}],
        },
        "boolean": {"type": "boolean"},
        "bucket": {"anyOf": [_word(bucket, _BUCKETS_IN_WORDS[bucket]) for bucket in BUCKETS]},
        "bucket_or_none": {
            "anyOf": [
                *(_word(bucket, _BUCKETS_IN_WORDS[bucket]) for bucket in (*BUCKETS, "none")),
                {"type": "null"},
            ]
        },
        "entry": {
            **_object(keys.SPAN_KEYS),
            "if": {"properties": {"disabled": {"const": True}}, "required": ["disabled"]},
            "else": {
                "required": ["group"],
                "oneOf": [{"required": [kind]} for kind in keys.JOIN_KINDS],
                "if": {"required": ["attributes_from"]},
                "then": {"required": ["attributes"], "propertyNames": {"not": {"enum": list(keys.SPANS_OWN)}}},
                "else": {"not": {"required": ["keep"]}},
            },
        },
        "group": {
            "anyOf": [
                *(_word(group.name, group.about) for group in table.groups.values()),
                _text(keys.GROUP_NAME) | {"description": "A group of this map's own, see `groups`."},
            ]
        },
        "groups": {
            "type": "object",
            "propertyNames": _text(keys.GROUP_NAME),
            "additionalProperties": _object(keys.GROUP_KEYS),
        },
        "module": _text(keys.MODULE),
        "modules": {"anyOf": [_ref("module"), {"type": "array", "items": _ref("module")}]},
        "moves": {"type": "object", "additionalProperties": _ref("group")},
        "name": _text(keys.NAME),
        "names": _one_or_list("name"),
        "path": {
            "description": "A value path, as in `args.batch.size | int`, or a constant.",
            "anyOf": [
                _text(rf"\s*(?:{'|'.join(values.ROOTS)})(?![A-Za-z0-9_])[\s\S]*") | {"examples": _path_examples()},
                _text(r"""\s*(?:'[^']*'|"[^"]*")\s*"""),
                _text(r"\s*[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+\s*"),
                {"type": ["number", "boolean"]},
            ],
        },
        "paths": _one_or_list("path"),
        "process_attributes": {"type": "object", "additionalProperties": _ref("paths")},
        "run_attributes": {"type": "object", "additionalProperties": _ref("paths")},
        "coalesce": _object(keys.COALESCE_KEYS, required=["match"]),
        "scope": _object(keys.SCOPE_KEYS) | {"minProperties": 1},
        "spans": {
            "type": "object",
            "propertyNames": _text(keys.NAME),
            "additionalProperties": {
                "anyOf": [_ref("entry"), {"type": "array", "items": _ref("entry"), "minItems": 1}],
            },
        },
        "target": _text(keys.TARGET)
        | {"description": "A place in code: `package.module:Class.method`, or `module:function(argument=value)`."},
        "targets": {
            "anyOf": [
                {"$ref": "#/$defs/one_target"},
                {"type": "array", "items": {"$ref": "#/$defs/one_target"}, "minItems": 1},
            ]
        },
        "one_target": {"anyOf": [_ref("target"), _object(keys.TARGETS_KEYS, required=["first_of"])]},
        "text": {"type": "string"},
        "versions": _text(keys.VERSIONS),
        **_metric_definitions(),
        "arguments": {
            "type": "object",
            "propertyNames": _text(keys.TARGET),
            "additionalProperties": {
                **_object(keys.ARGUMENTS_KEYS),
                "allOf": [
                    {"anyOf": [{"required": ["set"]}, {"required": ["add"]}]},
                    {"oneOf": [{"required": ["group"]}, {"required": ["switch"]}]},
                ],
            },
        },
        "switch": {"enum": list(SWITCHES)},
        "words_by_name": {
            "type": "object",
            "additionalProperties": {"anyOf": [_word(word, about) for word, about in keys.WORDS.items()]},
        },
    }


def _metric_definitions() -> Schema:
    scalar: Schema = {"type": ["string", "number", "boolean", "null"]}
    return {
        "boundaries": {"type": "array", "items": {"type": "number"}, "minItems": 1},
        "logger_keys": {"anyOf": [_ref("logger_key"), {"type": "array", "items": _ref("logger_key"), "minItems": 1}]},
        "logger_key": {"type": "string", "pattern": r"^[^*]*\*?[^*]*$"},
        "measured": {
            "anyOf": [{"const": DURATION.text, "description": "The seconds that the call took."}, _ref("path")]
        },
        "metric_attributes": {
            "type": "object",
            "additionalProperties": {"anyOf": [_word(STAR, "What the `*` of `from` stands for."), _ref("paths")]},
        },
        "metric_kind": {"anyOf": [_word(kind, _KINDS_IN_WORDS[kind]) for kind in KINDS]},
        "metrics": {
            "type": "object",
            "propertyNames": _text(keys.TARGET),
            "additionalProperties": _one_or_list("tap"),
        },
        "only_when": {
            "type": "object",
            "additionalProperties": {"anyOf": [scalar, {"type": "array", "items": scalar, "minItems": 1}]},
        },
        "series": {
            "type": "object",
            "propertyNames": _text(keys.SERIES_NAME),
            "additionalProperties": _one_or_list("source"),
        },
        "series_names": _one_or_list("series_name"),
        "series_name": _text(keys.SERIES_NAME),
        "source": {
            **_object(keys.SERIES_KEYS),
            "if": {"properties": {"disabled": {"const": True}}, "required": ["disabled"]},
            "else": {"oneOf": [{"required": ["from"]}, {"required": ["value"]}]},
        },
        "table": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean"]},
            },
        },
        "tap": _object(keys.TAP_KEYS, required=["series"]),
        "unit": _text(keys.UNIT),
        "values": _text(r"\s*(?:args|self)(?![A-Za-z0-9_])[\s\S]*"),
    }


def _object(table: tuple[Key, ...], required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {key.name: {"description": key.about, **_ref(key.kind)} for key in table},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _one_or_list(kind: str) -> Schema:
    return {"anyOf": [_ref(kind), {"type": "array", "items": _ref(kind), "minItems": 1}]}


def _ref(kind: str) -> Schema:
    return {"$ref": f"#/$defs/{kind}"}


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _word(word: str, about: str) -> Schema:
    return {"const": word, "description": about}


def _path_examples() -> list[str]:
    return ["args.name", "self.name", "return.name", "caller.name", "env.NAME", "args.items | len"]

"""Every key of the span-map language, in one table: the loader reads by it, the JSON Schema is made from it.

A key's `kind` names the reader in `loader.py` and the definition in `schema.py`; `about` is what an editor shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Key:
    """One key: its name, the kind of its value, what it means."""

    name: str
    kind: str
    about: str


MAP_KEYS: Final = (
    Key("map", "name", "The map's name, as in AUTOINSTR_BUILTIN_MAPS and in messages."),
    Key("package", "module", "The package that the map speaks of. Nothing is done until it is imported."),
    Key("algorithm", "text", "The training algorithm that the map is about."),
    Key("service", "text", "The service.name of the process, where the environment sets none."),
    Key("resource", "process_attributes", "Resource attributes of a process that imports the package: constants, env."),
    Key("about", "text", "What the map is for, in a line."),
    Key("inside", "modules", "Modules that must be the caller, for every block, between and each of this map."),
    Key("groups", "groups", "Span groups of this map's own, beside the shipped ones."),
    Key("spans", "spans", "The spans, by name. A name may have a list of entries, for a span with several places."),
    Key("metrics", "metrics", "Metric series, by the function that is handed their values, or whose calls are values."),
    Key("arguments", "arguments", "Trace context that calls hand on: arguments that are set, by the function."),
)

SPAN_KEYS: Final = (
    Key("group", "group", "The span group. AUTOINSTR_SPAN_GROUPS selects by it, and it gives the goodput bucket."),
    Key("function", "targets", "A span for every call of this function or method; of each, in a list."),
    Key("block", "targets", "A span for every `with` block that this function or context-manager class makes."),
    Key("between", "between", "A span that one function begins and another ends."),
    Key("each", "targets", "A span for every item that a loop pulls from what this function returns."),
    Key("attributes_from", "targets", "No span: each call of this function adds to the open span of this name."),
    Key("inside", "modules", "Only calls that come from these modules or below. An empty list lifts the map's."),
    Key("only_when", "only_when", "Only calls in which these value paths have one of these values."),
    Key("attributes", "attributes", "Attribute names, each with a value path or a list: the first that gives one."),
    Key("keep", "boolean", "With attributes_from: attributes that the span has already stay. Default: false."),
    Key("resource", "run_attributes", "Resource attributes of the run, learned when the span begins: the model."),
    Key("bucket", "bucket_or_none", "The goodput bucket of this span, in place of its group's; no scope changes it."),
    Key("scope", "scope", "What holds for every span that is opened below this one."),
    Key("coalesce", "coalesce", "Blocks or calls that follow each other are one span: the polls of a wait, for one."),
    Key("optional", "boolean", "Say nothing where the target does not exist. Default: false."),
    Key("subclasses", "boolean", "Follow overrides in subclasses, those defined later included. Default: false."),
    Key("content", "boolean", "Let AUTOINSTR_CAPTURE_CONTENT record prompts and completions here. Default: false."),
    Key("threads", "boolean", "Threads started while the span is open continue it. Default: false."),
    Key("start_from", "target", "The span starts when this earlier function was last called."),
    Key("also", "names", "Other names under which instrumented code opens this span itself: then the two are one."),
    Key("versions", "versions", "Only with these versions of an installed distribution, as in `trl>=0.17,<1`."),
    Key("disabled", "boolean", "true removes the span of this name from all maps below this one."),
    Key("about", "text", "What the span stands for, in a line."),
)  # fmt: skip

JOIN_KINDS: Final = ("function", "block", "between", "each", "attributes_from")
"""Where a span is, or what adds to it: an entry has exactly one of these keys."""
SPANS_OWN: Final = ("resource", "bucket", "scope", "coalesce", "threads", "start_from", "also")
"""What `attributes_from` does not go with: it has no span of its own."""

BETWEEN_KEYS: Final = (
    Key("begin", "targets", "The span begins when this is called."),
    Key("end", "targets", "The span ends when this returns."),
    Key("until", "targets", "The span ends when this is called."),
    Key("match", "paths", "What tells one open pair from another, read from args or self at both ends."),
    Key("once", "boolean", "Only the first begin of the process counts. Default: false."),
)

TARGETS_KEYS: Final = (
    Key("first_of", "alternatives", "Alternatives: the first that exists is the target, the others are not missed."),
)

SCOPE_KEYS: Final = (
    Key("bucket", "bucket", "The goodput bucket of every span below, where its group does not keep its own."),
    Key("groups", "moves", "Groups that count as other groups below: `{step: evaluate}`."),
)

COALESCE_KEYS: Final = (
    Key(
        "match", "paths", "They are one span as long as these values stay the same. Without a value there is no other."
    ),
    Key("count", "text", "The attribute that says how many they were."),
)

GROUP_KEYS: Final = (
    Key("bucket", "bucket_or_none", "The goodput bucket of its spans; none for an umbrella. Default: overhead."),
    Key("about", "text", "What the group's spans have in common, in a line."),
    Key("scoped", "boolean", "false keeps the bucket as it is inside a scope. Default: true."),
)

TAP_KEYS: Final = (
    Key("values", "values", "The mapping of values that the function is handed, as in `args.metrics`."),
    Key("only_when", "only_when", "Only calls in which these value paths have one of these values."),
    Key("series", "series", "The series that this function feeds, by name; of each, one source or a list."),
    Key("optional", "boolean", "Say nothing where the function does not exist. Default: false."),
    Key("about", "text", "What the function reports, in a line."),
)

SERIES_KEYS: Final = (
    Key("from", "logger_keys", "The key of the values; of a list, the first that is there. One `*` takes any text."),
    Key("value", "measured", "A value path on the call, or `duration`: the seconds that it took (in place of `from`)."),
    Key("kind", "metric_kind", "gauge, counter (each value is a delta), up_down_counter or histogram. Default: gauge."),
    Key("unit", "unit", "The unit, as UCUM writes it: s, By, %, {token}."),
    Key("about", "text", "What the series tells, in a line: its description."),
    Key("attributes", "metric_attributes", "Attribute names, each with a value path, or `*`: what the `*` stands for."),
    Key("table", "table", "More attributes, by what the `*` stands for. What is not in the table is left out."),
    Key("boundaries", "boundaries", "The upper bounds of a histogram's buckets, rising."),
    Key("optional", "boolean", "autoinstr check says nothing of a release that writes no such key. Default: false."),
    Key("also", "series_names", "Other names under which the training code reports it itself; then it is theirs."),
    Key("disabled", "boolean", "true removes the series of this name from all maps below this one."),
)  # fmt: skip

ARGUMENTS_KEYS: Final = (
    Key("set", "words_by_name", "Arguments that get a value where the call gives none, or None."),
    Key("add", "words_by_name", "Arguments that hold headers, which get those that they lack."),
    Key("group", "group", "Only where AUTOINSTR_SPAN_GROUPS selects this group."),
    Key("switch", "switch", "Only where this environment variable is on."),
    Key("within", "names", "Only in calls that are made while a span of one of these names is open."),
    Key("where", "path", "Only in calls in which this value path, read from args or self, gives a value."),
    Key("needs", "modules", "Only where these modules can be imported."),
    Key("optional", "boolean", "Say nothing where the function or the argument does not exist. Default: false."),
    Key("about", "text", "What the arguments are for, in a line."),
)

WORDS: Final = {
    "trace_headers": "The W3C headers of the current span. Nothing, where there is none.",
    "traces_endpoint": "The OTLP endpoint of traces, as OTEL_EXPORTER_OTLP_* give it. Nothing, where there is none.",
}
"""What an argument may be set to, and nothing else: a map never changes what a program computes."""

TABLES: Final = {
    "a map": MAP_KEYS,
    "a span": SPAN_KEYS,
    "between": BETWEEN_KEYS,
    "targets": TARGETS_KEYS,
    "scope": SCOPE_KEYS,
    "coalesce": COALESCE_KEYS,
    "a group": GROUP_KEYS,
    "a metric tap": TAP_KEYS,
    "a series": SERIES_KEYS,
    "arguments": ARGUMENTS_KEYS,
}

# -- what words look like; whole words, so `re.fullmatch` or ^...$ --------------------------------------

IDENTIFIER: Final = r"[A-Za-z_]\w*"
MODULE: Final = rf"{IDENTIFIER}(?:\.{IDENTIFIER})*"
NAME: Final = r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
"""Names of maps and spans. ASCII, as JSON Schema's `\\w` is: an editor and the loader must say the same."""
NAME_IN_WORDS: Final = "a letter of A-Z or a-z, then letters, digits, _ and -; words joined by dots"
GROUP_NAME: Final = r"[A-Za-z][A-Za-z0-9_-]*"
"""A dot would make it a span's name in AUTOINSTR_SPAN_GROUPS."""
TARGET: Final = rf"\s*({MODULE})\s*:\s*({MODULE})\s*(?:\((.*)\))?\s*"
VERSIONS: Final = (
    r"\s*[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?\s*"
    r"(?:(?:===|==|!=|<=|>=|~=|<|>)\s*[\w.*+!-]+\s*(?:,\s*(?:===|==|!=|<=|>=|~=|<|>)\s*[\w.*+!-]+\s*)*)"
)
SERIES_NAME: Final = r"[A-Za-z][A-Za-z0-9_./-]{0,254}"
UNIT: Final = r"[ -~]{0,63}"

"""From a map's text to its model. Each entry stands alone: a mistake leaves out that entry, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autoinstr.maps import nodes, values
from autoinstr.maps.groups import GroupTable
from autoinstr.maps.model import (
    BUCKETS,
    Alternatives,
    Group,
    JoinPoint,
    Mistake,
    Place,
    Scope,
    Selector,
    SpanEntry,
    SpanMap,
    Target,
    did_you_mean,
)
from autoinstr.maps.nodes import Node

MAP_KEYS = ("map", "package", "algorithm", "service", "about", "inside", "groups", "spans")
SPAN_KEYS = (
    "group", "function", "block", "between", "each", "inside", "attributes", "bucket", "scope", "optional",
    "subclasses", "content", "threads", "start_from", "versions", "disabled", "about",
)  # fmt: skip
JOIN_KINDS = ("function", "block", "between", "each")
BETWEEN_KEYS = ("begin", "end", "until", "match", "once")
SCOPE_KEYS = ("bucket", "groups")
GROUP_KEYS = ("bucket", "about", "scoped")

_TARGET = re.compile(r"^\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(?:\((.*)\))?\s*$")
_SPAN_NAME = re.compile(r"^[A-Za-z][\w-]*(\.[\w-]+)*$")

T = TypeVar("T")


class _Wrong(Exception):
    """Ends the reading of one entry; the mistake is on record already."""


@dataclass
class Loaded:
    """What one file gave."""

    map: SpanMap | None
    mistakes: list[Mistake] = field(default_factory=list)


def load_map(text: str, file: str, table: GroupTable) -> Loaded:
    """Read one map. Never raises for what the file says."""
    return _MapReader(file, table).read(text)


def load_groups(text: str, file: str) -> tuple[GroupTable, list[Mistake]]:
    """Read `groups.yaml`: the keys `groups` and `presets`."""
    reader = _MapReader(file, GroupTable({}, {}))
    groups: dict[str, Group] = {}
    presets: dict[str, tuple[str, ...]] = {}
    try:
        root = reader.root(text)
        for key, _, value in reader.pairs(root, ("groups", "presets"), "groups.yaml"):
            if key == "groups":
                groups = {g.name: g for g in reader.groups(value)}
            else:
                for name, _, members in reader.pairs(value, None, "presets"):
                    presets[name] = tuple(reader.texts(members))
                    for member in presets[name]:
                        if member not in groups:
                            reader.mistake(members.place, f"preset {name!r} names an unknown group {member!r}")
    except _Wrong:
        pass
    return GroupTable(groups, presets), reader.mistakes


def read_file(path: Path) -> tuple[str | None, Mistake | None]:
    """The text of a map file, or the mistake that says why there is none."""
    try:
        return path.read_text(encoding="utf-8"), None
    except FileNotFoundError:
        folder = path.parent
        near = did_you_mean(path.name, [p.name for p in folder.iterdir()]) if folder.is_dir() else ""
        reason = f"there is no such file{near}" if folder.is_dir() else f"there is no folder {folder}"
    except UnicodeDecodeError as error:
        reason = f"this is not UTF-8 text (byte {error.start})"
    except OSError as error:
        reason = f"it can't be read: {error.strerror or error}"
    return None, Mistake(Place(str(path)), reason, "the map is left out")


class _MapReader:
    def __init__(self, file: str, table: GroupTable) -> None:
        self.file = file
        self.table = table
        self.mistakes: list[Mistake] = []
        self.consequence = "the map is left out"

    # -- pieces ---------------------------------------------------------------------------------------

    def mistake(self, place: Place, text: str) -> None:
        self.mistakes.append(Mistake(place, text, self.consequence))

    def wrong(self, place: Place, text: str) -> _Wrong:
        self.mistake(place, text)
        return _Wrong()

    def root(self, text: str) -> Node:
        try:
            root = nodes.read(text, self.file)
        except nodes.YamlError as error:
            raise self.wrong(error.place, str(error)) from None
        if root is None:
            raise self.wrong(Place(self.file), "the file is empty")
        return root

    def pairs(self, node: Node, known: tuple[str, ...] | None, what: str) -> list[tuple[str, Node, Node]]:
        """The pairs of a mapping. A key that is unknown or written twice ends the entry."""
        if not node.is_mapping:
            raise self.wrong(node.place, f"{what} must be a mapping of keys, not {node.kind}")
        seen: dict[str, Place] = {}
        found = []
        for key, key_node, value in node.items():
            if known is not None and key not in known:
                hint = did_you_mean(key, known) or f"; known: {', '.join(known)}"
                raise self.wrong(key_node.place, f"unknown key {key!r} in {what}{hint}")
            if key in seen:
                raise self.wrong(key_node.place, f"the key {key!r} stands twice in {what}, first at {seen[key]}")
            seen[key] = key_node.place
            found.append((key, key_node, value))
        return found

    def text(self, node: Node, what: str) -> str:
        if node.is_mapping or node.is_sequence or not isinstance(node.scalar, str):
            raise self.wrong(node.place, f"{what} must be a text, not {node.kind}")
        return str(node.scalar)

    def boolean(self, node: Node, what: str) -> bool:
        if node.is_mapping or node.is_sequence or not isinstance(node.scalar, bool):
            raise self.wrong(node.place, f"{what} must be true or false, not {node.kind}")
        return bool(node.scalar)

    def texts(self, node: Node, what: str = "this") -> list[str]:
        """A text, or a list of texts."""
        return [self.text(item, what) for item in (node if node.is_sequence else (node,))]

    def one_of(self, node: Node, known: tuple[str, ...], what: str) -> str:
        # YAML reads an unquoted `none` as text but `null` and `~` as nothing: all three mean none
        word = "none" if node.kind == "nothing" else self.text(node, what)
        if word not in known:
            hint = did_you_mean(word, known) or f"; known: {', '.join(known)}"
            raise self.wrong(node.place, f"unknown {what} {word!r}{hint}")
        return word

    # -- the map --------------------------------------------------------------------------------------

    def read(self, text: str) -> Loaded:
        try:
            root = self.root(text)
            fields = {key: value for key, _, value in self.pairs(root, MAP_KEYS, "a map")}
            for needed in ("map", "package"):
                if needed not in fields:
                    raise self.wrong(root.place, f"a map needs the key {needed!r}")
            name = self.text(fields["map"], "map")
            package = self.text(fields["package"], "package")
            algorithm = self.text(fields["algorithm"], "algorithm") if "algorithm" in fields else None
            service = self.text(fields["service"], "service") if "service" in fields else None
            about = self.text(fields["about"], "about") if "about" in fields else ""
            inside = tuple(self.texts(fields["inside"], "inside")) if "inside" in fields else ()
            groups = self.groups(fields["groups"]) if "groups" in fields else []
            span_nodes = self.pairs(fields["spans"], None, "spans") if "spans" in fields else []
        except _Wrong:
            return Loaded(None, self.mistakes)
        self.table = self.table.extended(groups)
        entries: list[SpanEntry] = []
        disabled: list[str] = []
        for span_name, key_node, value in span_nodes:
            self.consequence = f"the span {span_name!r} is left out"
            for node in value if value.is_sequence else (value,):
                try:
                    entry = self.span(span_name, name, key_node, node, inside)
                except _Wrong:
                    continue
                if entry is None:
                    disabled.append(span_name)
                else:
                    entries.append(entry)
        return Loaded(
            SpanMap(
                name,
                package,
                self.file,
                algorithm,
                service,
                about,
                tuple(entries),
                tuple(disabled),
                tuple(groups),
            ),
            self.mistakes,
        )

    def groups(self, node: Node) -> list[Group]:
        found = []
        for name, key_node, value in self.pairs(node, None, "groups"):
            fields = {k: v for k, _, v in self.pairs(value, GROUP_KEYS, f"the group {name!r}")}
            # an unknown leaf group counts as overhead, so a group says `none` where it is an umbrella
            bucket = self.one_of(fields["bucket"], (*BUCKETS, "none"), "bucket") if "bucket" in fields else "overhead"
            found.append(
                Group(
                    name,
                    self.text(fields["about"], "about") if "about" in fields else "",
                    None if bucket == "none" else bucket,
                    self.boolean(fields["scoped"], "scoped") if "scoped" in fields else True,
                    key_node.place,
                )
            )
        return found

    # -- one span -------------------------------------------------------------------------------------

    def span(self, name: str, map_name: str, key: Node, node: Node, inside: tuple[str, ...]) -> SpanEntry | None:
        """One entry, or None where it disables the span."""
        if not _SPAN_NAME.match(name):
            raise self.wrong(key.place, f"{name!r} is no span name (words joined by dots)")
        fields = {k: v for k, _, v in self.pairs(node, SPAN_KEYS, f"the span {name!r}")}

        def get(field_name: str, read: Callable[[Node, str], T], default: T) -> T:
            return read(fields[field_name], field_name) if field_name in fields else default

        if get("disabled", self.boolean, False):
            return None
        if "group" not in fields:
            raise self.wrong(key.place, f"the span {name!r} needs a group")
        group = self.text(fields["group"], "group")
        if group not in self.table.groups:
            known = self.table.groups
            hint = did_you_mean(group, known) or f"; known: {', '.join(known)}"
            raise self.wrong(fields["group"].place, f"unknown group {group!r}{hint}")
        join = self.join(name, key, fields)
        if "inside" in fields:
            inside = tuple(self.texts(fields["inside"], "inside"))
        elif join.kind == "function":
            inside = ()  # a map's `inside` says who opens the blocks; a function is a place of its own
        start_from = None
        if "start_from" in fields:
            start_from = self.target(fields["start_from"], "start_from")
        return SpanEntry(
            name=name,
            map=map_name,
            place=key.place,
            group=group,
            join=join,
            inside=inside,
            attributes=self.attributes(fields["attributes"]) if "attributes" in fields else (),
            bucket=self.one_of(fields["bucket"], (*BUCKETS, "none"), "bucket") if "bucket" in fields else None,
            scope=self.scope(fields["scope"]) if "scope" in fields else None,
            optional=get("optional", self.boolean, False),
            subclasses=get("subclasses", self.boolean, False),
            content=get("content", self.boolean, False),
            threads=get("threads", self.boolean, False),
            start_from=start_from,
            versions=get("versions", self.text, None),
            about=get("about", self.text, ""),
        )

    def join(self, name: str, key: Node, fields: dict[str, Node]) -> JoinPoint:
        kinds = [kind for kind in JOIN_KINDS if kind in fields]
        if len(kinds) != 1:
            said = "has " + " and ".join(kinds) if kinds else "has none"
            raise self.wrong(key.place, f"the span {name!r} needs one of {', '.join(JOIN_KINDS)} ({said})")
        kind, node = kinds[0], fields[kinds[0]]
        if kind != "between":
            return JoinPoint(kind, self.targets(node, kind))
        parts = {k: v for k, _, v in self.pairs(node, BETWEEN_KEYS, "between")}
        if "begin" not in parts:
            raise self.wrong(node.place, "between needs 'begin'")
        if ("end" in parts) == ("until" in parts):
            raise self.wrong(
                node.place,
                "between needs one of 'end' (ends when it returns) and 'until' (when it is called)",
            )
        until = "until" in parts
        match = None
        if "match" in parts:
            one = parts["match"]
            match = tuple(self.path(item) for item in (one if one.is_sequence else (one,)))
        return JoinPoint(
            kind,
            self.targets(parts["begin"], "begin"),
            self.targets(parts["until" if until else "end"], "end"),
            until,
            match,
            self.boolean(parts["once"], "once") if "once" in parts else False,
        )

    def targets(self, node: Node, what: str) -> tuple[Alternatives, ...]:
        """A target, or a list of them; `first_of: [...]` are alternatives."""
        found = []
        for item in node if node.is_sequence else (node,):
            if item.is_mapping:
                ((_, _, value), *_) = self.pairs(item, ("first_of",), what) or [("", node, node)]
                found.append(
                    Alternatives(tuple(self.target(t, what) for t in (value if value.is_sequence else (value,))))
                )
            else:
                found.append(Alternatives((self.target(item, what),)))
        if not found:
            raise self.wrong(node.place, f"{what} names no target")
        return tuple(found)

    def target(self, node: Node, what: str) -> Target:
        text = self.text(node, what)
        found = _TARGET.match(text)
        if not found:
            raise self.wrong(node.place, f"{text!r} is no target; write package.module:Class.method")
        module, qualname, arguments = found.groups()
        selectors = []
        for part in _split(arguments or ""):
            argument, equals, value = part.partition("=")
            if not equals or not argument.strip().isidentifier():
                raise self.wrong(node.place, f"can't read {part.strip()!r} in {text!r}; write (label=value)")
            options = tuple(_selector_value(v) for v in value.split("|"))
            selectors.append(Selector(argument.strip(), options))
        return Target(module, qualname, tuple(selectors), node.place)

    def attributes(self, node: Node) -> tuple[tuple[str, tuple[values.ValuePath, ...]], ...]:
        return tuple(
            (key, tuple(self.path(item) for item in (value if value.is_sequence else (value,))))
            for key, _, value in self.pairs(node, None, "attributes")
        )

    def path(self, node: Node) -> values.ValuePath:
        if node.is_mapping or node.is_sequence:
            raise self.wrong(node.place, f"a value path must be a text, not {node.kind}")
        scalar = node.scalar
        if not isinstance(scalar, str):
            if not isinstance(scalar, (bool, int, float)):
                raise self.wrong(node.place, f"a value path must be a text or a constant, not {node.kind}")
            return values.constant(scalar)
        try:
            return values.parse(scalar)
        except values.PathError as error:
            hint = did_you_mean(error.wrong, error.known) if error.wrong else ""
            raise self.wrong(node.place, f"{error}{hint}") from None

    def scope(self, node: Node) -> Scope:
        fields = {k: v for k, _, v in self.pairs(node, SCOPE_KEYS, "scope")}
        bucket = self.one_of(fields["bucket"], BUCKETS, "bucket") if "bucket" in fields else None
        moved = []
        for group, group_node, value in (
            self.pairs(fields["groups"], None, "scope groups") if "groups" in fields else ()
        ):
            other = self.text(value, "a group")
            for known, place in ((group, group_node.place), (other, value.place)):
                if known not in self.table.groups:
                    raise self.wrong(place, f"unknown group {known!r}{did_you_mean(known, self.table.groups)}")
            moved.append((group, other))
        return Scope(bucket, tuple(moved))


def _split(arguments: str) -> list[str]:
    return [part for part in arguments.split(",") if part.strip()]


def _selector_value(text: str) -> Any:
    word = text.strip()
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    if word in ("True", "False", "true", "false"):
        return word.lower() == "true"
    if word == "None":
        return None
    try:
        return int(word)
    except ValueError:
        return word

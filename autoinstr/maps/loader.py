"""From a map's text to its model. Each entry stands alone: a mistake leaves out that entry, and no other.

Reading goes on after a mistake, so that all of a file's mistakes are told at once. With libyaml a map takes
about 0.35 ms per KB, a third of it in the YAML parser; the largest shipped one takes 2 ms.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autoinstr.maps import argument_entries, keys, metric_entries, nodes, values
from autoinstr.maps.groups import GroupTable
from autoinstr.maps.model import (
    BUCKETS,
    Alternatives,
    Coalesce,
    Group,
    JoinPoint,
    Mistake,
    Place,
    Scope,
    Selector,
    SpanEntry,
    SpanMap,
    Target,
)
from autoinstr.maps.nodes import Node
from autoinstr.maps.words import did_you_mean, shown, suggest

_MODULE = re.compile(keys.MODULE)
_NAME = re.compile(keys.NAME)
_GROUP_NAME = re.compile(keys.GROUP_NAME)
_TARGET = re.compile(keys.TARGET, re.DOTALL)
_VERSIONS = re.compile(keys.VERSIONS)
_MAX_INT = 2**63 - 1

_NO_BUCKET = "none"
_BEFORE_THE_CALL = ("const", "env", "args", "self", "caller")

T = TypeVar("T")
Item = TypeVar("Item")
Pair = tuple[str, Node, Node]


class _Wrong(Exception):
    """Ends the reading of one piece; the mistake is on record already."""


@dataclass
class Loaded:
    """What one file gave. `map` is None where the file as a whole is wrong; mistakes are in the file's order."""

    map: SpanMap | None
    mistakes: list[Mistake] = field(default_factory=list)


def load_map(text: str, file: str, table: GroupTable) -> Loaded:
    """Read one map. Never raises for what the file says."""
    reader = _Reader(file, table)
    try:
        span_map = reader.map(text)
    except _Wrong:
        span_map = None
    return Loaded(span_map, sorted(reader.mistakes, key=lambda m: m.place))


def load_groups(text: str, file: str) -> tuple[GroupTable, list[Mistake]]:
    """Read `groups.yaml`: the keys `groups` and `presets`."""
    reader = _Reader(file, GroupTable({}, {}))
    groups: dict[str, Group] = {}
    presets: dict[str, tuple[str, ...]] = {}

    def preset(pair: Pair) -> None:
        name, _, value = pair
        with reader.consequence("the preset is left out"):
            presets[name] = tuple(reader.whole(value if value.is_sequence else (value,), member))

    def member(node: Node) -> str:
        word = reader.text(node, "a preset's group")
        if word not in groups:
            raise reader.wrong(node.place, f"unknown group {shown(word)}{suggest(word, groups)}")
        return word

    try:
        with reader.consequence("it is left out"):
            parts = {key: value for key, _, value in reader.pairs(reader.root(text), ("groups", "presets"), file)}
            groups = {g.name: g for g in (reader.groups(parts["groups"], "groups") if "groups" in parts else ())}
            if "presets" in parts:
                reader.possible(reader.pairs(parts["presets"], None, "presets"), preset)
    except _Wrong:
        pass
    return GroupTable(groups, presets), sorted(reader.mistakes, key=lambda m: m.place)


def read_file(path: Path) -> tuple[str | None, Mistake | None]:
    """The text of a map file, or the mistake that says why there is none."""
    try:
        if path.is_fifo():  # it would be waited for
            return None, Mistake(Place(str(path)), "this is a pipe and no file", "the map is left out")
        return path.read_text(encoding="utf-8").removeprefix("\ufeff"), None
    except FileNotFoundError:
        folder = path.parent
        near = did_you_mean(path.name, [p.name for p in folder.iterdir()]) if folder.is_dir() else ""
        reason = f"there is no such file{near}" if folder.is_dir() else f"there is no folder {folder}"
        if re.search(r"\.ya?ml[,; ]", str(path)):
            reason += f" (files are separated by {os.pathsep!r})"
    except UnicodeDecodeError as error:
        reason = f"this is not UTF-8 text (byte {error.start})"
    except (OSError, ValueError) as error:
        reason = f"it can't be read: {getattr(error, 'strerror', None) or error}"
    return None, Mistake(Place(str(path)), reason, "the map is left out")


class _Reader:
    """Reads one file. A method per kind of value, see `keys.Key.kind`; each raises `_Wrong` after a mistake."""

    def __init__(self, file: str, table: GroupTable) -> None:
        self.file = file
        self.table = table
        self.mistakes: list[Mistake] = []
        self._consequence = "the map is left out"
        self._lost_groups: set[str] = set()
        self._package = ""
        self._by_kind: dict[str, Callable[[Node, str], Any]] = {
            "alternatives": self.alternatives,
            "attributes": self.attributes,
            "between": self.between,
            "boolean": self.boolean,
            "bucket": self.bucket,
            "bucket_or_none": self.bucket_or_none,
            "coalesce": self.coalesce,
            "group": self.group,
            "groups": self.groups,
            "module": self.module,
            "modules": self.modules,
            "moves": self.moves,
            "name": self.name,
            "names": lambda node, what: self._listed(node, what, "names", lambda item: self.name(item, what)),
            "only_when": self.only_when,
            "path": self.path,
            "paths": self.paths,
            "process_attributes": lambda node, what: self.resource(node, what, ("const", "env"), "a map's resource"),
            "run_attributes": lambda node, what: self.resource(node, what, _BEFORE_THE_CALL, "a span's resource"),
            "scope": self.scope,
            "spans": lambda node, what: node,  # read last: it needs the map's other keys
            "target": self.target,
            "targets": self.targets,
            "text": self.text,
            "versions": self.versions,
            **metric_entries.kinds(self),
            **argument_entries.kinds(self),
        }

    # -- mistakes -------------------------------------------------------------------------------------

    def mistake(self, place: Place, text: str) -> None:
        self.mistakes.append(Mistake(place, text, self._consequence))

    def wrong(self, place: Place, text: str) -> _Wrong:
        self.mistake(place, text)
        return _Wrong()

    @contextmanager
    def consequence(self, text: str) -> Iterator[None]:
        """What the mistakes inside lead to."""
        before, self._consequence = self._consequence, text
        try:
            yield
        finally:
            self._consequence = before

    def possible(self, items: Iterable[Item], read: Callable[[Item], T]) -> tuple[list[T], bool]:
        """What can be read of `items`, and whether that is all."""
        found, complete = [], True
        try:
            for item in items:
                try:
                    found.append(read(item))
                except _Wrong:
                    complete = False
        except _Wrong:  # from `pairs`, which goes on after a wrong key
            complete = False
        return found, complete

    def whole(self, items: Iterable[Item], read: Callable[[Item], T]) -> list[T]:
        """All `items`, read to the last one so that every mistake is told, or `_Wrong`."""
        found, complete = self.possible(items, read)
        if not complete:
            raise _Wrong
        return found

    # -- pieces of YAML -------------------------------------------------------------------------------

    def root(self, text: str) -> Node:
        try:
            root = nodes.read(text, self.file)
        except nodes.YamlError as error:
            raise self.wrong(error.place, str(error)) from None
        if root is None:
            raise self.wrong(Place(self.file), "the file is empty")
        return root

    def pairs(self, node: Node, known: tuple[str, ...] | None, what: str) -> Iterator[Pair]:
        """The pairs of a mapping; a key that is unknown or written twice is passed over and ends it in `_Wrong`."""
        if not node.is_mapping:
            raise self.wrong(node.place, f"{what} must be a mapping of keys, not {node.kind}")
        seen: dict[str, Place] = {}
        complete = True
        try:
            for key, key_node, value in node.items():
                if not key_node.is_scalar:
                    self.mistake(key_node.place, f"a key must be a text, not {key_node.kind}")
                    complete = False
                elif known is not None and key not in known:
                    self.mistake(key_node.place, f"unknown key {shown(key)} in {what}{suggest(key, known)}")
                    complete = False
                elif key in seen:
                    first = seen[key]
                    self.mistake(
                        key_node.place,
                        f"the key {shown(key)} stands twice in {what}, first in line {first.line}",
                    )
                    complete = False
                else:
                    seen[key] = key_node.place
                    yield key, key_node, value
        except nodes.YamlError as error:
            raise self.wrong(error.place, str(error)) from None
        if not complete:
            raise _Wrong

    def fields(self, node: Node, table: tuple[keys.Key, ...], what: str) -> tuple[dict[str, Any], bool]:
        """The values of the keys of `table`, each read as its kind, and whether all could be read."""
        kinds = {key.name: key.kind for key in table}

        def read(pair: Pair) -> tuple[str, Any]:
            key, _, value = pair
            return key, self._by_kind[kinds[key]](value, key)

        found, complete = self.possible(self.pairs(node, tuple(kinds), what), read)
        return dict(found), complete

    def all_fields(self, node: Node, table: tuple[keys.Key, ...], what: str) -> dict[str, Any]:
        found, complete = self.fields(node, table, what)
        if not complete:
            raise _Wrong
        return found

    # -- plain values ---------------------------------------------------------------------------------

    def text(self, node: Node, what: str) -> str:
        if node.is_mapping or node.is_sequence or not isinstance(node.scalar, str):
            quotes = "" if node.is_mapping or node.is_sequence or node.kind == "nothing" else "; put it in quotes"
            raise self.wrong(node.place, f"{what} must be a text, not {node.kind}{quotes}")
        return str(node.scalar)

    def boolean(self, node: Node, what: str) -> bool:
        if node.is_mapping or node.is_sequence or not isinstance(node.scalar, bool):
            raise self.wrong(node.place, f"{what} must be true or false, not {node.kind}")
        return bool(node.scalar)

    def name(self, node: Node, what: str) -> str:
        word = self.text(node, what)
        if not _NAME.fullmatch(word):
            raise self.wrong(node.place, f"{shown(word)} is no name ({keys.NAME_IN_WORDS})")
        return word

    def module(self, node: Node, what: str) -> str:
        word = self.text(node, what)
        if not _MODULE.fullmatch(word):
            raise self.wrong(node.place, f"{what}: {shown(word)} is no module; write package.module")
        return word

    def modules(self, node: Node, what: str) -> tuple[str, ...]:
        """A module or a list; an empty list is meant: it lifts what the map says for all."""
        return tuple(self.whole(node if node.is_sequence else (node,), lambda item: self.module(item, what)))

    def versions(self, node: Node, what: str) -> str:
        word = self.text(node, what)
        if not _VERSIONS.fullmatch(word):
            raise self.wrong(node.place, f"{what}: {shown(word)} is no requirement; write trl>=0.17,<1")
        return word

    def bucket(self, node: Node, what: str) -> str:
        return self._bucket(node, BUCKETS)

    def bucket_or_none(self, node: Node, what: str) -> str:
        return self._bucket(node, (*BUCKETS, _NO_BUCKET))

    def _bucket(self, node: Node, known: tuple[str, ...]) -> str:
        # YAML reads an unquoted `none` as text but `null` and `~` as nothing: all three mean none
        word = _NO_BUCKET if node.kind == "nothing" else self.text(node, "bucket")
        if word not in known:
            raise self.wrong(node.place, f"unknown bucket {shown(word)}{suggest(word, known)}")
        return word

    def group(self, node: Node, what: str) -> str:
        word = self.text(node, what)
        if word in self._lost_groups:
            raise _Wrong  # said where the group is defined
        if word not in self.table.groups:
            meant = did_you_mean(word, self.table.groups)
            meant = meant or f"{suggest(word, self.table.groups)}; a group of your own stands under 'groups'"
            raise self.wrong(node.place, f"unknown group {shown(word)}{meant}")
        return word

    # -- the map --------------------------------------------------------------------------------------

    def map(self, text: str) -> SpanMap:
        root = self.root(text)
        if not root.is_mapping:
            raise self.wrong(root.place, f"a map must be a mapping of keys, not {root.kind}")
        found, complete = self.fields(root, keys.MAP_KEYS, "a map")
        for needed in ("map", "package"):
            if needed not in found and complete:
                self.mistake(root.place, f"a map needs the key {needed!r}")
                complete = False
        self._package = found.get("package", "")
        groups: list[Group] = found.get("groups", [])
        self.table = self.table.extended(groups)
        entries: list[SpanEntry] = []
        disabled: list[str] = []
        if "spans" in found:
            spans: Node = found["spans"]
            if not spans.is_mapping:
                raise self.wrong(spans.place, f"spans must be a mapping of keys, not {spans.kind}")
            inside: tuple[str, ...] = found.get("inside", ())

            def read(pair: Pair) -> None:
                self.span(pair, str(found.get("map", "")), inside, entries, disabled)

            with self.consequence("this one is left out"):
                self.possible(self.pairs(spans, None, "spans"), read)
        metrics = metric_entries.read(self, found["metrics"], str(found.get("map", ""))) if "metrics" in found else ()
        section = found.get("arguments")
        arguments = argument_entries.read(self, section, str(found.get("map", ""))) if section is not None else ()
        if not complete:  # the spans were read for their mistakes only
            raise _Wrong
        return SpanMap(
            name=found["map"],
            package=found["package"],
            file=self.file,
            algorithm=found.get("algorithm"),
            service=found.get("service"),
            resource=found.get("resource", ()),
            about=found.get("about", ""),
            spans=tuple(entries),
            disabled=tuple(disabled),
            groups=tuple(groups),
            metrics=metrics,
            arguments=arguments,
        )

    def groups(self, node: Node, what: str) -> list[Group]:
        """The groups that can be read; one that can't takes its spans along, and leaves the map standing."""

        def read(pair: Pair) -> Group:
            name, key_node, value = pair
            with self.consequence(f"the group {shown(name)} and its spans are left out"):
                try:
                    return self._one_group(name, key_node, value)
                except _Wrong:
                    self._lost_groups.add(name)
                    raise

        if not node.is_mapping:
            raise self.wrong(node.place, f"{what} must be a mapping of keys, not {node.kind}")
        with self.consequence("this one is left out"):
            found, _ = self.possible(self.pairs(node, None, what), read)
        return found

    def _one_group(self, name: str, key_node: Node, value: Node) -> Group:
        if not _GROUP_NAME.fullmatch(name):
            raise self.wrong(
                key_node.place,
                f"{shown(name)} is no group name (a letter of A-Z or a-z, then letters, digits, _ and -; no dots)",
            )
        if name == "all" or name in self.table.presets:
            raise self.wrong(key_node.place, f"the group {name!r} has the name of a preset")
        found = self.all_fields(value, keys.GROUP_KEYS, f"the group {name!r}")
        # a leaf that nobody gave a bucket counts as overhead, so an umbrella says `none`
        bucket = found.get("bucket", "overhead")
        return Group(
            name,
            found.get("about", ""),
            None if bucket == _NO_BUCKET else bucket,
            found.get("scoped", True),
            key_node.place,
        )

    # -- one span -------------------------------------------------------------------------------------

    def span(
        self, pair: Pair, map_name: str, inside: tuple[str, ...], entries: list[SpanEntry], disabled: list[str]
    ) -> None:
        """All entries of one name."""
        name, key_node, value = pair
        with self.consequence(f"the span {shown(name)} is left out"):
            if not _NAME.fullmatch(name):
                raise self.wrong(key_node.place, f"{shown(name)} is no span name ({keys.NAME_IN_WORDS})")
            if not value.is_sequence:
                listed = [value]
            else:
                listed = list(value)
                if not listed:
                    raise self.wrong(value.place, f"the list of {name!r} is empty")

        def read(node: Node) -> None:
            # in a list, the key is the place of all entries: each is told by its own
            place = key_node.place if node is value else node.place
            entry = self.entry(name, map_name, place, node, inside)
            if entry is None:
                disabled.append(name)
            else:
                entries.append(entry)

        alone = len(listed) == 1
        with self.consequence(f"the span {name!r} is left out" if alone else f"this entry of {name!r} is left out"):
            self.possible(listed, read)

    def entry(self, name: str, map_name: str, place: Place, node: Node, inside: tuple[str, ...]) -> SpanEntry | None:
        """One entry, or None where it disables the span."""
        found = self.all_fields(node, keys.SPAN_KEYS, f"the span {name!r}")
        if found.get("disabled", False):
            return None
        if "group" not in found:
            raise self.wrong(place, f"the span {name!r} needs a group")
        kinds = [kind for kind in keys.JOIN_KINDS if kind in found]
        if len(kinds) != 1:
            said = "has " + " and ".join(kinds) if kinds else "has none"
            raise self.wrong(place, f"the span {name!r} needs one of {', '.join(keys.JOIN_KINDS)} ({said})")
        kind = kinds[0]
        join: JoinPoint = found["between"] if kind == "between" else JoinPoint(kind, found[kind])
        attributes: tuple[tuple[str, tuple[values.ValuePath, ...]], ...] = found.get("attributes", ())
        self._check_fit(place, kind, found, attributes)
        if "inside" in found:
            inside = found["inside"]
        elif kind in ("function", "attributes_from"):
            inside = ()  # a map's `inside` says who opens the blocks; a function is a place of its own
        return SpanEntry(
            name=name,
            map=map_name,
            package=self._package,
            place=place,
            group=found["group"],
            join=join,
            inside=inside,
            attributes=attributes,
            resource=found.get("resource", ()),
            only_when=found.get("only_when", ()),
            bucket=found.get("bucket"),
            scope=found.get("scope"),
            coalesce=found.get("coalesce"),
            keep=found.get("keep", False),
            optional=found.get("optional", False),
            subclasses=found.get("subclasses", False),
            content=found.get("content", False),
            threads=found.get("threads", False),
            start_from=found.get("start_from"),
            versions=found.get("versions"),
            also=found.get("also", ()),
            about=found.get("about", ""),
        )

    def _check_fit(self, place: Place, kind: str, found: dict[str, Any], attributes: Any) -> None:
        """What can be read but means nothing at this join point is a mistake, not silence."""
        if kind == "attributes_from":
            strange = [key for key in keys.SPANS_OWN if key in found]
            if strange:
                raise self.wrong(place, f"{strange[0]} does not go with attributes_from, which opens no span")
            if not attributes:
                raise self.wrong(place, "attributes_from needs 'attributes': what the open span gets")
        elif "keep" in found:
            raise self.wrong(place, f"keep goes with attributes_from, not with {kind}")
        if "start_from" in found and kind not in ("function", "between"):
            raise self.wrong(found["start_from"].place, f"start_from goes with function and between, not with {kind}")
        if "coalesce" in found and kind not in ("function", "block"):
            raise self.wrong(place, f"coalesce goes with function and block, not with {kind}")
        for key, paths in attributes:
            roots = {path.root for path in paths if path.root != "const"}
            late = sorted(roots & values.AT_END)
            if not late:
                continue
            if kind not in ("function", "attributes_from"):
                raise self.wrong(
                    place, f"the attribute {key!r} reads {late[0]!r}, which goes with function, not {kind}"
                )
            if len(roots) > 1:  # one is read when the function has returned, the others before it runs
                others = ", ".join(repr(root) for root in sorted(roots - {late[0]}))
                raise self.wrong(place, f"the attribute {key!r} mixes {late[0]!r} with {others}; use one of them")

    # -- join points ----------------------------------------------------------------------------------

    def between(self, node: Node, what: str) -> JoinPoint:
        found = self.all_fields(node, keys.BETWEEN_KEYS, what)
        if "begin" not in found:
            raise self.wrong(node.place, "between needs 'begin'")
        if "end" not in found and "until" not in found:
            raise self.wrong(node.place, "between needs 'end' (when it returns), 'until' (when it is called), or both")
        match: tuple[values.ValuePath, ...] | None = found.get("match")
        for path in match or ():
            if path.root not in ("args", "self"):
                raise self.wrong(node.place, f"match reads args or self, not {path.root!r}")
            if path.operands:
                raise self.wrong(node.place, f"match reads one value at a time, not {shown(path.text)}")
        return JoinPoint(
            what, found["begin"], found.get("end", ()), found.get("until", ()), match, found.get("once", False)
        )

    def targets(self, node: Node, what: str) -> tuple[Alternatives, ...]:
        """A target, or a list of them; `first_of: [...]` are alternatives."""

        def read(item: Node) -> Alternatives:
            if not item.is_mapping:
                return Alternatives((self.target(item, what),))
            found = self.all_fields(item, keys.TARGETS_KEYS, what)
            if "first_of" not in found:
                raise self.wrong(item.place, f"{what} names no target")
            alternatives: Alternatives = found["first_of"]
            return alternatives

        return self._listed(node, what, "target", read)

    def alternatives(self, node: Node, what: str) -> Alternatives:
        return Alternatives(self._listed(node, what, "target", lambda item: self.target(item, what)))

    def _listed(self, node: Node, what: str, of: str, read: Callable[[Node], T]) -> tuple[T, ...]:
        """One item, or a list of at least one."""
        found = self.whole(node if node.is_sequence else (node,), read)
        if not found:
            raise self.wrong(node.place, f"{what} names no {of}")
        return tuple(found)

    def target(self, node: Node, what: str) -> Target:
        text = self.text(node, what)
        found = _TARGET.fullmatch(text)
        if not found:
            meant = _with_a_colon(text)
            instead = f", did you mean {shown(meant)}?" if meant else "; write package.module:Class.method"
            raise self.wrong(node.place, f"{shown(text)} is no target{instead}")
        module, qualname, arguments = found.groups()
        if module == "__main__":
            raise self.wrong(node.place, f"{shown(text)} is no target: a script is never imported; name what it calls")
        selectors = self.whole(
            [part for part in values.split(arguments or "", ",") if part], lambda part: self.selector(node, part, text)
        )
        names = [selector.argument for selector in selectors]
        for name in names:
            if names.count(name) > 1:
                raise self.wrong(node.place, f"{name!r} stands twice in {shown(text)}; write ({name}=one|other)")
        return Target(module, qualname, tuple(selectors), node.place)

    def selector(self, node: Node, part: str, text: str) -> Selector:
        argument, equals, value = part.partition("=")
        options = values.split(value, "|")
        if not equals or not argument.strip().isidentifier() or not all(options):
            raise self.wrong(node.place, f"can't read {shown(part)} in {shown(text)}; write (argument=value)")
        return Selector(argument.strip(), tuple(values.literal(option) for option in options))

    # -- values ---------------------------------------------------------------------------------------

    def attributes(self, node: Node, what: str) -> tuple[tuple[str, tuple[values.ValuePath, ...]], ...]:
        def read(pair: Pair) -> tuple[str, tuple[values.ValuePath, ...]]:
            name, key_node, value = pair
            if not name.strip():
                raise self.wrong(key_node.place, "an attribute needs a name")
            return name, self.paths(value, f"the attribute {shown(name)}")

        return tuple(self.whole(self.pairs(node, None, what), read))

    def resource(
        self, node: Node, what: str, roots: tuple[str, ...], whose: str
    ) -> tuple[tuple[str, tuple[values.ValuePath, ...]], ...]:
        """Attributes, from what is known there."""
        found = self.attributes(node, what)
        for key, paths in found:
            for path in paths:
                if path.root not in roots:
                    known = ", ".join(root for root in roots if root != "const")
                    raise self.wrong(
                        node.place, f"{whose} reads {known} and constants, not {path.root!r} (for {shown(key)})"
                    )
        return found

    def paths(self, node: Node, what: str) -> tuple[values.ValuePath, ...]:
        return self._listed(node, what, "value path", lambda item: self.path(item, what))

    def path(self, node: Node, what: str) -> values.ValuePath:
        scalar = None if node.is_mapping or node.is_sequence else node.scalar
        if isinstance(scalar, str):
            try:
                return values.parse(scalar)
            except values.PathError as error:
                raise self.wrong(node.place, str(error)) from None
        if isinstance(scalar, (bool, float)) or (isinstance(scalar, int) and -_MAX_INT <= scalar <= _MAX_INT):
            return values.constant(scalar)
        kind = node.kind
        if kind == "a number":
            kind += " beyond 64 bits" if isinstance(scalar, int) else " that can't be read"
        raise self.wrong(node.place, f"{what} must be a value path or a constant, not {kind}")

    def scalar(self, node: Node, what: str) -> Any:
        """A text, number, boolean or nothing, as YAML reads it."""
        value = node.scalar if node.is_scalar else node
        if not (value is None or isinstance(value, (str, bool, int, float))):
            raise self.wrong(node.place, f"{what} takes texts, numbers and booleans, not {node.kind}")
        return value

    def only_when(self, node: Node, what: str) -> tuple[tuple[values.ValuePath, Selector], ...]:
        def condition(pair: Pair) -> tuple[values.ValuePath, Selector]:
            text, key_node, value = pair
            path = self.path(key_node, what)
            if path.root == "const" or path.root in values.AT_END:
                raise self.wrong(key_node.place, f"only_when reads args, self, caller or env, not {shown(text)}")
            options = self.whole(value if value.is_sequence else (value,), lambda item: self.scalar(item, what))
            if not options:
                raise self.wrong(value.place, f"only_when: {shown(text)} has no value that it may have")
            return path, Selector(text, tuple(options))

        return tuple(self.whole(self.pairs(node, None, what), condition))

    def scope(self, node: Node, what: str) -> Scope:
        found = self.all_fields(node, keys.SCOPE_KEYS, what)
        if not found:
            raise self.wrong(node.place, "scope needs 'bucket' or 'groups'")
        return Scope(found.get("bucket"), found.get("groups", ()))

    def coalesce(self, node: Node, what: str) -> Coalesce:
        found = self.all_fields(node, keys.COALESCE_KEYS, what)
        if "match" not in found:
            raise self.wrong(node.place, "coalesce needs 'match': values that are the same while it is one span")
        for path in found["match"]:
            if path.root == "const" or path.root in values.AT_END:
                raise self.wrong(node.place, f"match reads args, self, caller or env, not {shown(path.text)}")
        return Coalesce(found["match"], found.get("count"))

    def moves(self, node: Node, what: str) -> tuple[tuple[str, str], ...]:
        def read(pair: Pair) -> tuple[str, str]:
            _, key_node, value = pair
            moved, counts_as = self.whole((key_node, value), lambda one: self.group(one, "a group"))
            return moved, counts_as

        return tuple(self.whole(self.pairs(node, None, "scope groups"), read))


def _with_a_colon(text: str) -> str | None:
    """The target that a Python path was meant as: its classes are what is written with a capital."""
    path, bracket, arguments = text.partition("(")
    words = path.split(".")
    before = next((i for i, word in enumerate(words) if word[:1].isupper()), len(words) - 1)
    target = f"{'.'.join(words[:before])}:{'.'.join(words[before:])}{bracket}{arguments}"
    return target if ":" not in path and _TARGET.fullmatch(target) else None

"""Span groups and presets, and the spec that selects among them: `per_step,-job,rl.grpo.step`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoinstr.maps.model import Group
from autoinstr.maps.words import did_you_mean, suggest


@dataclass(frozen=True)
class GroupTable:
    """Every group and preset that is known; `all` is a preset that holds every group."""

    groups: Mapping[str, Group]
    presets: Mapping[str, tuple[str, ...]]

    def extended(self, groups: Iterable[Group]) -> GroupTable:
        """This table with the groups of maps added."""
        return GroupTable({**self.groups, **{g.name: g for g in groups}}, self.presets)

    def names(self) -> list[str]:
        return [*self.presets, "all", *self.groups]


@dataclass(frozen=True)
class Selection:
    """What a spec asks for: groups and span names, wanted and unwanted. The last mention of a name wins."""

    groups: frozenset[str]
    spans: frozenset[str]
    without_spans: frozenset[str]
    unknown: tuple[str, ...] = ()

    def selects(self, span: str, group: str) -> bool:
        """Whether the span is emitted: its own mention wins over its group's."""
        if span in self.without_spans:
            return False
        return span in self.spans or group in self.groups

    def selects_group(self, group: str) -> bool:
        return group in self.groups


def select(spec: str, table: GroupTable) -> Selection:
    """Read a spec. A name with a dot is a span's; other unknown names are listed in `unknown` and ignored.

    A spec that only subtracts starts from `default`.
    """
    groups: set[str] = set()
    spans: set[str] = set()
    without: set[str] = set()
    unknown: list[str] = []
    words = [word.strip() for word in spec.split(",") if word.strip()]
    if words and all(word.startswith("-") for word in words):
        words.insert(0, "default")
    for word in words:
        name, minus = word.lstrip("-").strip(), word.startswith("-")
        if name == "all":
            members: Iterable[str] = table.groups
        elif name in table.presets:
            members = table.presets[name]
        elif name in table.groups:
            members = (name,)
        elif "." in name:
            (without if minus else spans).add(name)
            (spans if minus else without).discard(name)
            continue
        else:
            unknown.append(name)
            continue
        (groups.difference_update if minus else groups.update)(members)
    return Selection(frozenset(groups), frozenset(spans), frozenset(without), tuple(unknown))


def explain_unknown_span(name: str, names: Iterable[str]) -> str:
    """One line for a span name in a spec that no active map has."""
    return f"no active map has the span {name!r}{did_you_mean(name, names)}; it is left out"


def explain_unknown(name: str, table: GroupTable) -> str:
    """One line for an unknown name in a spec."""
    return f"unknown span group {name!r}{suggest(name, table.names())}; it is left out"

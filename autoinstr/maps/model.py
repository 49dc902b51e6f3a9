"""What a span map says, once it has been read: plain frozen data, each piece with its place in the file."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoinstr.maps.values import ValuePath
from autoinstr.maps.words import did_you_mean as did_you_mean

if TYPE_CHECKING:
    from autoinstr.maps.metric_model import MetricTap

BUCKETS = ("productive", "overhead", "idle", "wasted")
"""The goodput buckets, in the order of a report."""


@dataclass(frozen=True, order=True)
class Place:
    """A place in a file, counted from 1; line 0 is the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True)
class Mistake:
    """Something wrong in a map, and what happens now (`consequence`)."""

    place: Place
    text: str
    consequence: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" + (f"; {self.consequence}" if self.consequence else "")


@dataclass(frozen=True)
class Group:
    """A span group. `bucket` is None for an umbrella; `scoped` says whether a bucket scope applies to it."""

    name: str
    about: str
    bucket: str | None
    scoped: bool
    place: Place


@dataclass(frozen=True)
class Selector:
    """One argument that must have one of these values; values with `*`, `?` or `[` are patterns."""

    argument: str
    values: tuple[Any, ...]

    def accepts(self, value: Any) -> bool:
        """Whether `value` is one of the values or matches a pattern; what can't be compared is not accepted."""
        for wanted in self.values:
            if _is_pattern(wanted):
                if isinstance(value, str) and fnmatch.fnmatchcase(value, wanted):
                    return True
            elif type(value) is type(wanted) and value == wanted:
                return True
        return False


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and any(c in value for c in "*?[")


@dataclass(frozen=True)
class Target:
    """A place in code, `module:Qual.name`, with the arguments that pick calls of it."""

    module: str
    qualname: str
    selectors: tuple[Selector, ...]
    place: Place

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


@dataclass(frozen=True)
class Alternatives:
    """Targets of which the first that resolves is patched."""

    targets: tuple[Target, ...]


@dataclass(frozen=True)
class JoinPoint:
    """Where a span is: `kind` is function, block, between or each; or attributes_from, which is no span.

    `targets` are all patched; for `between`, `targets` begin the span; `ends` end it when
    they return, `untils` when they are called.
    """

    kind: str
    targets: tuple[Alternatives, ...]
    ends: tuple[Alternatives, ...] = ()
    untils: tuple[Alternatives, ...] = ()
    match: tuple[ValuePath, ...] | None = None
    once: bool = False


@dataclass(frozen=True)
class Scope:
    """What holds for every span opened below: a bucket for leaf spans, groups that count as others."""

    bucket: str | None = None
    groups: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Coalesce:
    """Blocks or calls that follow each other are one span, while the values of `match` stay the same.

    `count` is the attribute that says how many they were.
    """

    match: tuple[ValuePath, ...]
    count: str | None = None


@dataclass(frozen=True)
class SpanEntry:
    """One entry of a map: at this join point, in this group, emit this span."""

    name: str
    map: str
    package: str
    """The package that the map speaks of. Targets may lie in others."""
    place: Place
    group: str
    join: JoinPoint
    inside: tuple[str, ...] = ()
    attributes: tuple[tuple[str, tuple[ValuePath, ...]], ...] = ()
    resource: tuple[tuple[str, tuple[ValuePath, ...]], ...] = ()
    """Attributes of the run, which are learned when the span begins."""
    only_when: tuple[tuple[ValuePath, Selector], ...] = ()
    """Value paths, each with the values that it must have for a call to count."""
    bucket: str | None = None
    """The bucket written on the span, `none` for none; None leaves it to the group and the scope."""
    scope: Scope | None = None
    coalesce: Coalesce | None = None
    keep: bool = False
    """Whether attributes that the open span has stay as they are."""
    optional: bool = False
    subclasses: bool = False
    content: bool = False
    threads: bool = False
    start_from: Target | None = None
    versions: str | None = None
    also: tuple[str, ...] = ()
    about: str = ""

    @property
    def opens(self) -> bool:
        """Whether the entry opens spans; one that does not adds attributes to the span that others of its name open."""
        return self.join.kind != "attributes_from"

    def targets(self) -> tuple[Target, ...]:
        """Every target that this entry names."""
        return tuple(t for a in (*self.join.targets, *self.join.ends, *self.join.untils) for t in a.targets)


@dataclass(frozen=True)
class ArgumentsEntry:
    """Arguments of one function that calls are given: `set` where they have none, `add` to a mapping of headers.

    Each is an argument's name with a word of `keys.WORDS`.
    """

    target: Target
    map: str
    place: Place
    set: tuple[tuple[str, str], ...] = ()
    add: tuple[tuple[str, str], ...] = ()
    group: str | None = None
    switch: str | None = None
    within: tuple[str, ...] = ()
    where: ValuePath | None = None
    needs: tuple[str, ...] = ()
    optional: bool = False
    about: str = ""

    @property
    def name(self) -> str:
        """How it is told: by its function."""
        return str(self.target)


@dataclass(frozen=True)
class SpanMap:
    """One file. `disabled` holds the span names that it removes."""

    name: str
    package: str
    file: str
    algorithm: str | None = None
    service: str | None = None
    resource: tuple[tuple[str, tuple[ValuePath, ...]], ...] = ()
    """Attributes of a process that imports the package."""
    about: str = ""
    spans: tuple[SpanEntry, ...] = ()
    disabled: tuple[str, ...] = ()
    groups: tuple[Group, ...] = field(default=())
    metrics: tuple[MetricTap, ...] = ()
    arguments: tuple[ArgumentsEntry, ...] = ()

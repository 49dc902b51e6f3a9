"""What an entry asks of a target, before and after it was carried out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autoinstr.maps.model import Alternatives, SpanEntry, Target
from autoinstr.notices import say
from autoinstr.patch import functions, ledger, pairs
from autoinstr.spans.opening import SpanPlan


@dataclass(eq=False)
class Claim:
    """One role of one entry on one target. `group`: the claims of which one is enough."""

    entry: SpanEntry
    role: str
    target: Target
    record: ledger.Record
    group: list[Claim]
    shared: Shared

    @property
    def state(self) -> str:
        return self.record.state

    def settle(self, state: str, why: str = "") -> None:
        self.record.state, self.record.why = state, why

    def fits(self) -> bool:
        """Whether it is still to be carried out: it waits, and none of its alternatives has been."""
        return self.state == ledger.PENDING and not any(c.state == ledger.APPLIED for c in self.group)


@dataclass(eq=False)
class Shared:
    """What the claims of one entry share: its plan, its open pairs, the clock of its earlier join point."""

    entry: SpanEntry
    plan: SpanPlan
    claims: list[Claim] = field(default_factory=list)
    clock: functions.StartClock | None = None
    pairing: pairs.Pairing | None = None

    def __post_init__(self) -> None:
        entry = self.entry
        # made now, not at the first patch: two modules may be patched by two threads
        if entry.start_from is not None:
            self.clock = functions.StartClock()
        if entry.join.kind == "between":
            owners = {target.qualname.rpartition(".")[0] for target in entry.targets()}
            modules = {target.module for target in entry.targets()}
            one_class = len(owners) == 1 and owners != {""} and len(modules) == 1
            clock = self.clock.read if self.clock is not None else None
            self.pairing = pairs.Pairing(self.plan, entry, on_methods=one_class, clock=clock)

    def with_role(self, *roles: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.role in roles]


def claims_of(shared: Shared) -> Iterator[Claim]:
    """Every claim of an entry, alternatives beside each other."""
    for role, alternatives in _roles(shared.entry):
        group: list[Claim] = []
        for target in alternatives.targets:
            record = ledger.Record(shared.entry.name, str(target), target.place)
            group.append(Claim(shared.entry, role, target, record, group, shared))
        shared.claims += group
        yield from group


def _roles(entry: SpanEntry) -> Iterator[tuple[str, Alternatives]]:
    join = entry.join
    if entry.start_from is not None:
        yield "start_from", Alternatives((entry.start_from,))
    for alternatives in join.targets:
        yield ("begin" if join.kind == "between" else join.kind), alternatives
    for alternatives in join.ends:
        yield "end", alternatives
    for alternatives in join.untils:
        yield "until", alternatives


def misfit(entry: SpanEntry) -> str | None:
    """Why the installed distribution is none that `versions` names; None where it is, or can't be told."""
    if entry.versions is None:
        return None
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(entry.versions)
        installed = metadata.version(requirement.name)
    except InvalidRequirement:
        say(f"{entry.place}: versions: {entry.versions!r} is no requirement such as 'trl>=0.17'; it is ignored")
        return None
    except Exception:  # not installed as a distribution, or its metadata is broken
        return None
    try:
        if requirement.specifier.contains(installed, prereleases=True):
            return None
    except Exception:  # a version of a form of its own
        return None
    return f"{requirement.name} {installed} is installed, and it is for {requirement.specifier}"

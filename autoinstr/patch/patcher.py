"""From selected entries to installed patches.

For each module: resolve every target that entries name in it, build the wrappers, and only then touch
anything. An entry whose target is missing changes nothing and is said once; so does one that is refused.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from autoinstr.maps.groups import GroupTable, Selection
from autoinstr.maps.model import Alternatives, SpanEntry, Target
from autoinstr.notices import say
from autoinstr.patch import blocks, functions, iterables, ledger, pairs, targets
from autoinstr.patch.binding import Binding
from autoinstr.patch.importing import when_imported
from autoinstr.spans.opening import SpanPlan, Tracers

# who wraps whom on one attribute, innermost first: a span that ends when a loop is called must have ended
# before the loop's own span begins
_ORDER = {"block": 0, "function": 1, "each": 2, "start_from": 3, "begin": 4, "end": 5}


@dataclass
class _Claim:
    """One role of one entry on one target."""

    entry: SpanEntry
    role: str
    target: Target
    group: _Group
    record: ledger.Record
    shared: _Shared


@dataclass
class _Group:
    """Alternatives of which one is enough."""

    alternatives: Alternatives
    satisfied: bool = False
    tried: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass
class _Shared:
    """What the claims of one entry share: its plan, its open pairs, the clock of its earlier join point."""

    plan: SpanPlan
    pairing: pairs.Pairing | None = None
    clock: functions.StartClock | None = None


class Patcher:
    """Owns the claims of every entry and carries them out as modules are imported."""

    def __init__(
        self,
        table: GroupTable,
        selection: Selection,
        tracers: Tracers,
        capture_content: bool = False,
        on_missing: Callable[[str], None] | None = None,
    ) -> None:
        self.ledger = ledger.Ledger()
        self._table = table
        self._selection = selection
        self._tracers = tracers
        self._capture_content = capture_content
        self._claims: dict[str, list[_Claim]] = {}
        self._lock = threading.RLock()
        self._say = on_missing or say

    # -- entries --------------------------------------------------------------------------------------

    def use(self, table: GroupTable, selection: Selection) -> None:
        """Groups and selection for the entries added from now on (maps bring groups of their own)."""
        self._table, self._selection = table, selection

    def add(self, entries: Iterable[SpanEntry]) -> None:
        """Take up entries: selected ones wait for their modules; the others leave no trace."""
        new_modules: list[str] = []
        entries = list(entries)
        movable = {a: b for e in entries if e.scope for a, b in e.scope.groups}
        for entry in entries:
            selected = self._selection.selects(entry.name, entry.group)
            moved = movable.get(entry.group)
            if not selected and not (moved is not None and self._selection.selects_group(moved)):
                continue
            if not _fits_installed_version(entry):
                continue
            shared = _Shared(self._plan(entry, selected))
            for role, alternatives in _roles(entry):
                group = _Group(alternatives)
                for target in alternatives.targets:
                    record = ledger.Record(entry.name, str(target), target.place)
                    self.ledger.records.append(record)
                    if target.module not in self._claims:
                        new_modules.append(target.module)
                    self._claims.setdefault(target.module, []).append(
                        _Claim(entry, role, target, group, record, shared)
                    )
        for module in dict.fromkeys(new_modules):
            when_imported(module, self.patch_module)

    def _plan(self, entry: SpanEntry, selected: bool) -> SpanPlan:
        group = self._table.groups[entry.group]
        bucket = group.bucket if entry.bucket is None else (None if entry.bucket == "none" else entry.bucket)
        return SpanPlan(
            entry.name,
            entry.group,
            self._tracers,
            bucket=bucket,
            fixed_bucket=entry.bucket is not None or not group.scoped,
            scope=entry.scope,
            selects=self._selection.selects_group,
            selected=selected,
            once_per_instance=entry.subclasses,
        )

    # -- modules --------------------------------------------------------------------------------------

    def patch_module(self, module: types.ModuleType) -> None:
        """Carry out every claim on `module`: resolve all, then apply all."""
        name = module.__name__
        with self._lock:
            # a module that replaced itself in sys.modules may go by another name
            claims = [c for c in self._claims.get(name, []) if c.record.state == ledger.PENDING] or [
                c
                for key, waiting in self._claims.items()
                if sys.modules.get(key) is module
                for c in waiting
                if c.record.state == ledger.PENDING
            ]
            found = self._resolve(module, claims)
            self._drop_halves(found)
            by_place: dict[tuple[int, str], list[tuple[_Claim, targets.Found]]] = {}
            for claim, place in found:
                by_place.setdefault((id(place.owner), place.name), []).append((claim, place))
            for group in by_place.values():
                self._install(module, group)
            _report_stale(module, self.ledger.installed)

    def _resolve(self, module: types.ModuleType, claims: list[_Claim]) -> list[tuple[_Claim, targets.Found]]:
        found = []
        for claim in claims:
            group = claim.group
            group.tried += 1
            if group.satisfied:
                claim.record.state, claim.record.why = ledger.MISSING, "an alternative is there"
                continue
            try:
                place = targets.find(module, claim.target.qualname)
            except targets.TargetMissing as missing:
                claim.record.state, claim.record.why = ledger.MISSING, str(missing)
                group.reasons.append(str(missing))
                if group.tried == len(group.alternatives.targets) and not claim.entry.optional:
                    self._say(f"{claim.target.place}: {claim.entry.name}: {'; '.join(group.reasons)}; it is left out")
                continue
            group.satisfied = True
            found.append((claim, place))
        return found

    def _drop_halves(self, found: list[tuple[_Claim, targets.Found]]) -> None:
        """A begin whose end is missing in the same module would never end: neither is patched."""
        for claim, place in list(found):
            if claim.role != "begin":
                continue
            ends = [c for c in self._claims_of(claim.entry) if c.role == "end"]
            if ends and all(c.record.state == ledger.MISSING and not c.group.satisfied for c in ends):
                claim.record.state, claim.record.why = ledger.REFUSED, "its end is missing"
                found.remove((claim, place))

    def _claims_of(self, entry: SpanEntry) -> list[_Claim]:
        return [c for claims in self._claims.values() for c in claims if c.entry is entry]

    # -- one attribute --------------------------------------------------------------------------------

    def _install(self, module: types.ModuleType, group: list[tuple[_Claim, targets.Found]]) -> None:
        """Replace one attribute, for all the claims on it at once."""
        group.sort(key=lambda pair: _ORDER[pair[0].role])
        claims = [claim for claim, _ in group]
        place = group[0][1]
        try:
            if claims[0].role == "block" and isinstance(place.raw, type):
                self._install_class_block(module, claims, place)
                return
            new = targets.rebuilt(place.raw, lambda function: self._wrapped(function, claims, module.__name__))
            if new is not place.raw:  # a callable instance is changed in place
                place.replace(new)
        except Exception as error:
            why = str(error) if isinstance(error, targets.TargetRefused) else f"{type(error).__name__}: {error}"
            for claim in claims:
                claim.record.state, claim.record.why = ledger.REFUSED, why
                self._say(f"{claim.target.place}: {claim.entry.name}: {claim.target} is left alone: {why}")
            return
        self._note(place, new, claims)
        for claim in claims:
            if claim.entry.subclasses and isinstance(place.owner, type):
                self._follow_subclasses(module, place, [claim])

    def _note(self, place: targets.Found, new: Any, claims: list[_Claim]) -> None:
        for claim in claims:
            claim.record.state, claim.record.why = ledger.APPLIED, ""
        self.ledger.installed.append(
            ledger.Installed(place, new, [c.shared.plan for c in claims], [c.record for c in claims])
        )

    def _wrapped(self, function: Any, claims: list[_Claim], module: str) -> Any:
        current = function
        block_claims = [c for c in claims if c.role == "block"]
        if block_claims:
            chooser = self._chooser(current, module, block_claims)
            current = blocks.wrap_factory(current, chooser)
        for claim in claims:
            entry, shared = claim.entry, claim.shared
            if claim.role == "block":
                continue
            binding = Binding(entry, function, claim.target.selectors, self._capture_content)
            if claim.role == "function":
                clock = shared.clock.read if shared.clock is not None else None
                enter = functions.Entering(shared.plan, binding, entry.inside, "", clock)
                current = functions.wrap_function(current, enter, binding)
            elif claim.role == "each":
                enter = functions.Entering(shared.plan, binding, entry.inside, module, None)
                current = iterables.wrap_each(current, enter)
            elif claim.role == "start_from":
                if shared.clock is None:
                    shared.clock = functions.StartClock()
                current = functions.wrap_clock(current, shared.clock, binding)
            elif claim.role == "begin":
                shared.pairing = shared.pairing or self._pairing(claim)
                current = pairs.wrap_begin(current, shared.pairing, binding, entry, module)
            else:
                shared.pairing = shared.pairing or self._pairing(claim)
                current = pairs.wrap_end(current, shared.pairing, binding, entry, before=entry.join.until)
        return current

    def _pairing(self, claim: _Claim) -> pairs.Pairing:
        owners = {target.qualname.rpartition(".")[0] for target in claim.entry.targets()}
        modules = {target.module for target in claim.entry.targets()}
        one_class = len(owners) == 1 and owners != {""} and len(modules) == 1
        clock = claim.shared.clock.read if claim.shared.clock is not None else None
        return pairs.Pairing(claim.shared.plan, claim.entry, on_methods=one_class, clock=clock)

    def _chooser(self, factory: Any, module: str, claims: list[_Claim]) -> blocks.BlockChooser:
        return blocks.BlockChooser(
            factory,
            module,
            [
                blocks.BlockEntry(
                    c.shared.plan,
                    Binding(c.entry, factory, c.target.selectors, self._capture_content),
                    c.target.selectors,
                    c.entry.inside,
                )
                for c in claims
            ],
        )

    def _install_class_block(self, module: types.ModuleType, claims: list[_Claim], place: targets.Found) -> None:
        cls = place.raw
        replacements = blocks.wrap_class_methods(cls, lambda method: self._chooser(method, module.__name__, claims))
        if not replacements:
            raise targets.TargetRefused("the class is no context manager")
        for name, new in replacements.items():
            where = targets.find_in_class(cls, name)
            where.replace(new)
            self._note(where, new, claims)

    # -- subclasses -----------------------------------------------------------------------------------

    def _follow_subclasses(self, module: types.ModuleType, place: targets.Found, claims: list[_Claim]) -> None:
        """Patch the overrides of `place` too: those there are, and those that classes defined later bring."""

        def patch_override(cls: type) -> None:
            raw = vars(cls).get(place.name)
            if raw is None or functions.is_ours(targets.underlying(raw)):
                return
            override = targets.Found(cls, place.name, raw, inherited=False)
            try:
                new = targets.rebuilt(raw, lambda function: self._wrapped(function, claims, cls.__module__))
                override.replace(new)
            except Exception as error:
                say(f"{cls.__module__}.{cls.__qualname__}.{place.name} is left alone: {error}")
                return
            self._note(override, new, claims)

        def descend(cls: type) -> None:
            below: type
            for below in type.__subclasses__(cls):
                patch_override(below)
                descend(below)

        descend(place.owner)
        hook = targets.wrap_init_subclass(place.owner, patch_override)
        self._note(hook[0], hook[1], claims)

    # -- undo -----------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Put every original back; a patch that somebody else has wrapped stays, switched off."""
        with self._lock:
            for installed in reversed(self.ledger.installed):
                for plan in installed.plans:
                    plan.off = True
                if not targets.undo_instance(installed.found.raw):
                    installed.found.restore(installed.new)
                for record in installed.records:
                    record.state = ledger.UNDONE
            self.ledger.installed.clear()
            self._claims.clear()


def _roles(entry: SpanEntry) -> list[tuple[str, Alternatives]]:
    join = entry.join
    roles: list[tuple[str, Alternatives]] = []
    if entry.start_from is not None:
        roles.append(("start_from", Alternatives((entry.start_from,))))
    first = "begin" if join.kind == "between" else join.kind
    roles += [(first, a) for a in join.targets]
    roles += [("end", a) for a in join.ends]
    return roles


def _fits_installed_version(entry: SpanEntry) -> bool:
    """Whether the installed distribution is one that `versions` names; where it can't be told, yes."""
    if entry.versions is None:
        return True
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(entry.versions)
        return requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except InvalidRequirement:
        say(f"{entry.place}: versions: {entry.versions!r} is no requirement such as 'trl>=0.17'; it is ignored")
    except metadata.PackageNotFoundError:
        pass
    return True


def _report_stale(module: types.ModuleType, installed: list[ledger.Installed]) -> None:
    """Say which modules of the same package took a function by name before it was patched."""
    originals = {
        id(i.found.raw): i for i in installed if i.found.owner is module and isinstance(i.found.raw, types.FunctionType)
    }
    if not originals:
        return
    package = module.__name__.partition(".")[0]
    for name, other in list(sys.modules.items()):
        if other is module or not isinstance(other, types.ModuleType):
            continue
        if name.partition(".")[0] != package and name != "__main__":
            continue
        for key, value in list(vars(other).items()):
            patch = originals.get(id(value))
            # the module that defines a function holds it by right
            if patch is not None and value is patch.found.raw and name != value.__module__:
                reference = f"{name}.{key}"
                if reference not in patch.stale:
                    patch.stale.append(reference)
                    say(
                        f"{reference} was taken from {module.__name__} before it was patched: "
                        f"calls through it have no span"
                    )

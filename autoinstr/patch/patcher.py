"""From selected entries to installed patches.

For each module that has been imported: find every target that entries name in it, build the wrappers, and only
then touch anything. What that means for an entry with several targets:

- A list names several places, and each stands alone: the one that is missing is said and left out, the others
  are patched.
- Of alternatives (`first_of`) the first that is there and can be patched is; within a module in the map's order,
  among modules in the order of their import.
- `between` needs both halves: where every begin or every end is missing or refused, the other half is not
  touched, or is put back if it lies in a module that was patched earlier.
- Without its `start_from` a span is still made; it starts when it is called.

A module that is imported again or reloaded is patched again. A target that is reached by two names, or is
patched twice for the same entry, carries one wrapper.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from autoinstr.maps.groups import GroupTable, Selection
from autoinstr.maps.model import Scope, SpanEntry
from autoinstr.notices import describe, say
from autoinstr.patch import adding, arguments, blocks, compiling, functions, iterables, ledger, pairs, targets
from autoinstr.patch.binding import Binding, TellingBinding
from autoinstr.patch.claims import Claim, Shared, claims_of, misfit
from autoinstr.patch.importing import when_imported
from autoinstr.patch.stale import find_stale, give_back
from autoinstr.spans import joining
from autoinstr.spans.adding import AddingPlan
from autoinstr.spans.opening import SpanPlan, Tracers, end_at_rest

# who wraps whom on one attribute, innermost first: a span that ends when a loop is called must have ended
# before the loop's own span begins
_ORDER = {"attributes_from": 0, "block": 0, "function": 1, "each": 2, "start_from": 3, "begin": 4, "end": 5, "until": 6}

_Built = tuple[targets.Found, Any, list[Claim]]
"""An attribute, what is to stand there, and for whom."""


class Patcher:
    """Owns the claims of every entry and carries them out as modules are imported."""

    def __init__(
        self,
        table: GroupTable,
        selection: Selection,
        tracers: Tracers,
        capture_content: bool = False,
        on_missing: Callable[[str], None] | None = None,
        learn: Callable[[dict[str, Any]], None] = lambda found: None,
    ) -> None:
        """`learn` is told what calls say of the run: what maps read under `resource`."""
        self.ledger = ledger.Ledger()
        self._learn = learn
        self._table = table
        self._selection = selection
        self._tracers = tracers
        self._capture_content = capture_content
        self._claims: dict[str, list[Claim]] = {}
        self._entries: set[tuple[str, Any]] = set()
        self._cancel: list[Callable[[], None]] = []
        # Guards the lists, and is never held while code of the user's runs: finding a target in a lazy module
        # imports, and the thread that holds that import may be waiting to patch its own module.
        self._lock = threading.RLock()
        self._say_each = on_missing or say
        self._said: set[str] = set()

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say_each(text)

    # -- entries --------------------------------------------------------------------------------------

    def use(self, table: GroupTable, selection: Selection) -> None:
        """Groups and selection for the entries added from now on (maps bring groups of their own)."""
        self._table, self._selection = table, selection

    def add(self, entries: Iterable[SpanEntry]) -> None:
        """Take up entries: selected ones wait for their modules; the others leave no trace.

        An entry that was added before is passed over.
        """
        entries = list(entries)
        movable = {a: b for e in entries if e.scope for a, b in e.scope.groups}
        shown = {e.group for e in entries if self._selection.selects(e.name, e.group)} | self._selection.groups
        new_modules: dict[str, None] = {}
        in_threads = False
        with self._lock:
            for entry in entries:
                selected = self._selection.selects(entry.name, entry.group)
                moved = movable.get(entry.group)
                if not selected and moved not in shown and not self._scope_matters(entry.scope, shown):
                    continue
                if (entry.name, entry.place) in self._entries:
                    continue
                self._entries.add((entry.name, entry.place))
                in_threads = in_threads or entry.threads
                why_not = misfit(entry)
                for claim in claims_of(Shared(entry, self._plan(entry, selected))):
                    self.ledger.records.append(claim.record)
                    if why_not is not None:
                        claim.settle(ledger.MISSING, why_not)
                        continue
                    self._claims.setdefault(claim.target.module, []).append(claim)
                    new_modules[claim.target.module] = None
        if not self._cancel:
            self._cancel.append(compiling.know_torch())
            joining.install()
            self._cancel.append(joining.remove)
        if in_threads:
            from autoinstr.bridges import threads

            threads.install()
            self._cancel.append(threads.remove)
        for module in new_modules:
            cancel = when_imported(module, lambda loaded, name=module: self.patch_module(loaded, name))  # type: ignore[misc]
            with self._lock:
                self._cancel.append(cancel)

    def _scope_matters(self, scope: Scope | None, shown: Collection[str]) -> bool:
        """Whether a scope says anything of the spans of these groups, so that it must hold without its own span."""
        if scope is None:
            return False
        groups = self._table.groups
        reclassifies = scope.bucket is not None and any(
            groups[g].scoped and groups[g].bucket for g in shown if g in groups
        )
        return reclassifies or any(name in shown for pair in scope.groups for name in pair)

    def _plan(self, entry: SpanEntry, selected: bool) -> SpanPlan:
        if not entry.opens:
            return AddingPlan(entry.name, entry.group, self._tracers, keep=entry.keep)
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
            threads=entry.threads,
            also=entry.also,
            counts=entry.coalesce.count if entry.coalesce is not None else None,
        )

    # -- modules --------------------------------------------------------------------------------------

    def patch_module(self, module: Any, name: str | None = None) -> None:
        """Carry out every claim on `module`, which stands in `sys.modules` under `name` (its own name).

        Called again, it patches what has come anew, and leaves alone what is patched already.
        """
        name = name or module.__name__
        with self._lock:
            claims = list(self._claims.get(name, ()))
            before = len(self.ledger.installed)
            for claim in claims:
                claim.settle(ledger.PENDING)
                claim.shared.plan.off = False
        # a target that is refused makes room for its alternative, so there may be a next round
        while found := self._find(module, name, claims):
            built = self._build(name, found)
            for place, new, those in built:
                self._install(place, new, those)
            # only now: an override may have been a target of its own
            for place, _, those in built:
                following = [c for c in those if c.entry.subclasses and c.state == ledger.APPLIED]
                if following and isinstance(place.owner, type):
                    self._follow_subclasses(place, following)
        self._conclude(claims)
        # a library's own use of what it defines is no part of what a map of another package is about
        packages = {claim.entry.package for claim in claims}
        for reference in find_stale(module, self.ledger.installed[before:], packages):
            self._say(f"{reference} was taken from {name} before it was patched: calls through it have no span")

    def waiting(self) -> list[Claim]:
        """The claims whose modules have not been imported, and that no alternative has made good."""
        with self._lock:
            claims = [claim for listed in self._claims.values() for claim in listed]
        return [claim for claim in claims if claim.fits()]

    def patch_class(self, cls: type) -> None:
        """Carry out the claims on methods of `cls` and its bases, found by the classes' own modules and names.

        For a class that no module of this process holds, and one whose namespace holds copies of its bases' methods:
        what Ray hands to a worker is both.
        """
        found: list[tuple[Claim, targets.Found]] = []
        taken: set[int] = set()
        mro = [base for base in cls.__mro__ if base is not object]
        for base in mro:
            with self._lock:
                claims = list(self._claims.get(base.__module__, ()))
            for claim in claims:
                owner, _, name = claim.target.qualname.rpartition(".")
                if owner == base.__qualname__ and id(claim.group) not in taken and hasattr(base, name):
                    taken.add(id(claim.group))
                    found.append((claim, targets.find_in_class(base, name)))
        there = {id(claim) for claim, _ in found}
        for claim, place in list(found):
            others = claim.shared.with_role(*_OTHER_HALF.get(claim.role, ()))
            if others and not any(id(c) in there or c.state == ledger.APPLIED for c in others):
                found.remove((claim, place))
        for claim, _ in found:
            if claim.state != ledger.APPLIED:
                claim.settle(ledger.PENDING)
            claim.shared.plan.off = False
        self._install_all(found)
        # what stands in the bases now is what a copy is compared with
        self._install_all([(c, copy) for c, place in found for copy in _copies(mro, place, c.entry.subclasses)])

    def _install_all(self, found: list[tuple[Claim, targets.Found]]) -> None:
        """Install on places in classes, each in the name of its class's module."""
        for module in dict.fromkeys(place.owner.__module__ for _, place in found):
            for place, new, claims in self._build(module, [f for f in found if f[1].owner.__module__ == module]):
                self._install(place, new, claims)

    def _find(self, module: Any, name: str, claims: list[Claim]) -> list[tuple[Claim, targets.Found]]:
        found: list[tuple[Claim, targets.Found]] = []
        taken: set[int] = set()
        for claim in claims:
            if not claim.fits() or id(claim.group) in taken:
                continue
            try:
                place = targets.find(module, claim.target.qualname, name)
            except targets.TargetElsewhere as elsewhere:
                taken.add(id(claim.group))
                claim.settle(ledger.PENDING, str(elsewhere))
            except targets.TargetMissing as missing:
                claim.settle(ledger.MISSING, str(missing))
            else:
                taken.add(id(claim.group))
                found.append((claim, place))
        for claim, place in list(found):
            half = _missing_half(claim)
            if half is not None:
                claim.settle(ledger.REFUSED, half)
                found.remove((claim, place))
        return found

    def _conclude(self, claims: list[Claim]) -> None:
        """Say what is left out, and put back halves of a pair whose other half has turned out to be missing."""
        for claim in claims:
            group = claim.group
            if claim.state == ledger.PENDING and any(c.state == ledger.APPLIED for c in group):
                claim.settle(ledger.MISSING, "an alternative is there")
            reasons = [c.record.why for c in group if c.state == ledger.MISSING]
            if reasons and not claim.entry.optional and all(c.state in _FAILED for c in group):
                consequence = "it starts when it is called" if claim.role == "start_from" else "it is left out"
                place = group[-1].target.place
                self._say(f"{place}: {claim.entry.name}: {'; '.join(reasons)}; {consequence}")
                for one in group:
                    one.record.said = True
        for shared in {id(c.shared): c.shared for c in claims}.values():
            for claim in shared.claims:
                if claim.state == ledger.APPLIED and (half := _missing_half(claim)) is not None:
                    self._put_back(claim, half)

    def _put_back(self, claim: Claim, why: str) -> None:
        claim.shared.plan.off = True
        claim.settle(ledger.REFUSED, why)
        self._take_off([claim])

    def _take_off(self, claims: list[Claim]) -> None:
        """Put back the attributes that are patched for `claims` and nobody else."""
        ids = {id(claim.record) for claim in claims}
        with self._lock:
            theirs = [i for i in self.ledger.installed if ids.issuperset(map(id, i.records))]
            self.ledger.installed[:] = [i for i in self.ledger.installed if i not in theirs]
        for installed in reversed(theirs):
            installed.undo()

    # -- one attribute --------------------------------------------------------------------------------

    def _build(self, module: str, found: list[tuple[Claim, targets.Found]]) -> list[_Built]:
        """The wrappers, one per attribute for all the claims on it. Nothing is touched yet."""
        by_place: dict[tuple[int, str], tuple[targets.Found, list[Claim]]] = {}
        defined_here = {(id(place.raw), id(claim.shared)) for claim, place in found if not place.inherited}
        for claim, place in found:
            carried = ledger.carries(targets.underlying(place.raw), claim.shared.plan)
            if carried or (place.inherited and (id(place.raw), id(claim.shared)) in defined_here):
                claim.settle(ledger.APPLIED)
                continue
            by_place.setdefault(place.key, (place, []))[1].append(claim)
        built: list[_Built] = []
        for place, claims in by_place.values():
            claims.sort(key=lambda claim: _ORDER[claim.role])
            try:
                if claims[0].role == "block" and isinstance(place.raw, type):
                    built += self._class_block(module, claims, place)
                else:
                    built.append((place, self._replacement(place, claims, module), claims))
            except Exception as error:
                self._refuse(claims, error)
        return built

    def _replacement(self, place: targets.Found, claims: list[Claim], module: str) -> Any:
        return targets.rebuilt(place, lambda function: self._wrapped(function, claims, module))

    def _say_what_is_not_taken(self, place: targets.Found, claims: list[Claim]) -> None:
        """A line for each argument that a map names and the function does not take."""
        for claim in claims:
            # an optional row may be of another release than the one that is here; and the selectors of a class that
            # is a context manager ask its instances
            if claim.entry.optional or claim.target.qualname.rpartition(".")[2] != place.name:
                continue
            for text in arguments.not_taken_by(targets.underlying(place.raw), claim.entry, claim.target, claim.role):
                self._say(f"{claim.target.place}: {claim.entry.name}: {text}")

    def _class_block(self, module: str, claims: list[Claim], place: targets.Found) -> list[_Built]:
        cls = place.raw
        for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
            kind = type(inspect.getattr_static(cls, name, None))
            if issubclass(kind, (staticmethod, classmethod)):
                raise targets.TargetRefused(f"its {name} is a {kind.__name__}, which knows no instance")
        replacements = blocks.wrap_class_methods(cls, lambda method: self._chooser(method, module, claims))
        if not replacements:
            raise targets.TargetRefused("the class is no context manager")
        return [(targets.find_in_class(cls, name), new, claims) for name, new in replacements.items()]

    def _install(self, place: targets.Found, new: Any, claims: list[Claim]) -> None:
        if any(claim.state == ledger.REFUSED for claim in claims):  # of its `__enter__`, say, and this is `__exit__`
            return
        try:
            place.replace(new)
        except Exception as error:
            place.restore(new)
            self._refuse(claims, error)
            self._take_off(claims)
            return
        self._note(place, new, claims)
        self._say_what_is_not_taken(place, claims)

    def _refuse(self, claims: list[Claim], error: Exception) -> None:
        why = str(error) if isinstance(error, targets.TargetRefused) else describe(error)
        for claim in claims:
            claim.settle(ledger.REFUSED, why)
            self._say(f"{claim.target.place}: {claim.entry.name}: {claim.target} is left alone: {why}")

    def _note(self, place: targets.Found, new: Any, claims: list[Claim]) -> None:
        installed = ledger.Installed(
            place,
            new,
            [claim.shared.plan for claim in claims],
            [claim.record for claim in claims],
            targets.underlying(new),
        )
        with self._lock:
            undone = any(claim.state == ledger.UNDONE for claim in claims)
            if not undone:
                for claim in claims:
                    claim.settle(ledger.APPLIED)
                self.ledger.installed.append(installed)
        if undone:  # by another thread, while this one was patching
            installed.undo()

    def _wrapped(self, function: Any, claims: list[Claim], module: str) -> Any:
        current = function
        block_claims = [c for c in claims if c.role == "block"]
        if block_claims:
            current = blocks.wrap_factory(current, self._chooser(current, module, block_claims))
        for claim in claims:
            entry, shared = claim.entry, claim.shared
            if claim.role == "block":
                continue
            binding = self._bind(claim, function)
            if claim.role == "function":
                clock = shared.clock.read if shared.clock is not None else None
                enter = functions.Entering(shared.plan, binding, entry.inside, "", clock)
                current = functions.wrap_function(current, enter, binding)
            elif claim.role == "attributes_from":
                current = adding.wrap_adding(
                    current, functions.Entering(shared.plan, binding, entry.inside, "", None), binding
                )
            elif claim.role == "each":
                enter = functions.Entering(shared.plan, binding, entry.inside, module, None)
                current = iterables.wrap_each(current, enter)
            elif claim.role == "start_from":
                assert shared.clock is not None
                current = functions.wrap_clock(current, shared.clock, binding)
            elif claim.role == "begin":
                assert shared.pairing is not None
                current = pairs.wrap_begin(current, shared.pairing, binding, entry, module)
            else:
                assert shared.pairing is not None
                current = pairs.wrap_end(current, shared.pairing, binding, entry, before=claim.role == "until")
        return current

    def _bind(self, claim: Claim, function: Any) -> Binding:
        entry, selectors = claim.entry, claim.target.selectors
        if entry.resource and claim.role not in ("end", "until", "start_from"):
            return TellingBinding(entry, function, selectors, self._capture_content, self._learn)
        return Binding(entry, function, selectors, self._capture_content)

    def _chooser(self, factory: Any, module: str, claims: list[Claim]) -> blocks.BlockChooser:
        return blocks.BlockChooser(
            factory,
            module,
            [
                blocks.BlockEntry(
                    c.shared.plan,
                    self._bind(c, factory),
                    c.target.selectors,
                    c.entry.inside,
                )
                for c in claims
            ],
        )

    # -- subclasses -----------------------------------------------------------------------------------

    def _follow_subclasses(self, place: targets.Found, claims: list[Claim]) -> None:
        """Patch the overrides of `place` too: those there are, and those that classes defined later bring."""

        def patch_override(cls: type) -> None:
            raw = vars(cls).get(place.name)
            if raw is None or claims[0].state == ledger.UNDONE:
                return
            function = targets.underlying(raw)
            wanting = [c for c in claims if not ledger.carries(function, c.shared.plan)]
            if not wanting:
                self._note_copy(cls, place.name, raw, ledger.installed_as(function))
                return
            override = targets.Found(cls, place.name, raw, inherited=False)
            new: Any = None
            try:
                new = self._replacement(override, wanting, cls.__module__)
                override.replace(new)
            except Exception as error:
                override.restore(new)
                why = str(error) if isinstance(error, targets.TargetRefused) else describe(error)
                self._say(f"{cls.__module__}.{cls.__qualname__}.{place.name} is left alone: {why}")
                return
            self._note(override, new, wanting)

        def on_subclass(cls: type) -> None:
            try:
                patch_override(cls)
            except Exception as error:  # the class statement is the user's
                say(f"{place.name} of a subclass could not be patched: {describe(error)}", once=f"below {id(place)}")

        def descend(cls: type) -> None:
            below: type
            for below in type.__subclasses__(cls):
                on_subclass(below)
                descend(below)

        hook, new = targets.wrap_init_subclass(place.owner, on_subclass)
        hook.replace(new)
        self._note(hook, new, claims)
        descend(place.owner)

    def _note_copy(self, cls: type, name: str, wrapper: Any, installed: ledger.Installed | None) -> None:
        """A class body has taken a wrapper from another class (`run = Base.run`): undo gives it the original."""
        with self._lock:
            if installed is None or installed.found.owner is cls or installed not in self.ledger.installed:
                return
            copy = targets.Found(cls, name, installed.found.raw, inherited=False)
            self.ledger.installed.append(ledger.Installed(copy, wrapper, installed.plans, installed.records))

    # -- undo -----------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Put every original back; a patch that somebody else has wrapped stays, switched off."""
        with self._lock:
            installed, cancel = self.ledger.installed[::-1], self._cancel
            for records in self.ledger.records:
                records.state = ledger.UNDONE
            packages = {claim.entry.package for listed in self._claims.values() for claim in listed}
            self._claims.clear()
            self._entries.clear()
            self.ledger.installed.clear()
            self._cancel = []
        for stop in cancel:
            stop()
        for one in installed:
            for plan in one.plans:
                plan.off = True
        end_at_rest(plan for one in installed for plan in one.plans)
        restored: list[ledger.Installed] = []
        for one in installed:
            try:
                if one.undo():
                    restored.append(one)
            except Exception as error:
                say(f"{one.found.name} could not be put back, and is switched off: {describe(error)}")
        try:
            give_back(restored, packages)
        except Exception as error:
            say(f"a name of a patched function could not be put back, and is switched off: {describe(error)}")


def _copies(mro: list[type], place: targets.Found, overrides: bool) -> Iterator[targets.Found]:
    """Where classes above `place` in the order of resolution hold a copy of it, or an override if these count too."""
    above = mro[: mro.index(place.owner)]
    nearest = True
    for cls in reversed(above):
        if place.name not in vars(cls):
            continue
        if overrides or (nearest and "__ray_actor_class__" in vars(cls)):
            yield targets.find_in_class(cls, place.name)
        nearest = False


_OTHER_HALF = {"begin": ("end", "until"), "end": ("begin",), "until": ("begin",)}
_FAILED = (ledger.MISSING, ledger.REFUSED)


def _missing_half(claim: Claim) -> str | None:
    """Why one half of a pair is no use: all of the other are missing or refused. None where it is of use."""
    other = _OTHER_HALF.get(claim.role)
    if other is None:
        return None
    halves = claim.shared.with_role(*other)
    return f"its {other[0]} is missing" if all(c.state in _FAILED for c in halves) else None

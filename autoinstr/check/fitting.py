"""Does each row of the maps fit the facts: do its targets, labels, arguments and local variables exist?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from autoinstr.check.facts import Facts
from autoinstr.maps.model import Alternatives, Place, Selector, SpanEntry, Target
from autoinstr.maps.values import ValuePath
from autoinstr.maps.words import did_you_mean

THERE: Final = "there"
ABSENT: Final = "absent"
MISSING: Final = "missing"


@dataclass(frozen=True)
class Finding:
    """Something of a row that is not in the source, and where the map says it."""

    place: Place
    span: str
    text: str


@dataclass
class Row:
    """One entry of a map against one source.

    `state` is `there`, `absent` (the release has no such thing: its module does not exist, or the row is
    optional) or `missing`; the findings say why.
    """

    entry: SpanEntry
    state: str = THERE
    findings: list[Finding] = field(default_factory=list)
    targets: int = 0
    labels: int = 0
    arguments: int = 0


@dataclass
class Outcome:
    """Every row of some maps against one source."""

    rows: list[Row] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        return [finding for row in self.rows if row.state == MISSING for finding in row.findings]

    @property
    def absent(self) -> list[Finding]:
        return [finding for row in self.rows if row.state == ABSENT for finding in row.findings]

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many targets, labels and arguments were found."""
        there = [row for row in self.rows if row.state == THERE]
        return sum(r.targets for r in there), sum(r.labels for r in there), sum(r.arguments for r in there)


def callees_of(entries: Iterable[SpanEntry]) -> set[str]:
    """The names whose calls must be known to check these entries: factories, and functions picked by their caller."""
    found: set[str] = set()
    for entry in entries:
        by_caller = any(p.root == "caller" for _, paths in entry.attributes for p in paths)
        for target in entry.targets():
            if target.selectors or entry.inside or by_caller or entry.join.kind == "block":
                found.add(_callee(target))
    return found


def fit(entries: Iterable[SpanEntry], facts: Facts) -> Outcome:
    """Check the entries whose packages are among the facts; others are passed over."""
    outcome = Outcome()
    for entry in entries:
        if any(facts.knows(target.module) for target in entry.targets()):
            outcome.rows.append(_RowCheck(entry, facts).row())
    return outcome


def note_losses(outcome: Outcome, before: Outcome) -> None:
    """Make a row that is absent now, and was there in an earlier release, a missing one."""
    there = {id(row.entry) for row in before.rows if row.state == THERE}
    for row in outcome.rows:
        if row.state == ABSENT and id(row.entry) in there:
            row.state = MISSING


class _RowCheck:
    """The check of one entry. `_absent` and `_missing` hold what is not there, by how bad that is."""

    def __init__(self, entry: SpanEntry, facts: Facts) -> None:
        self._entry = entry
        self._facts = facts
        self._row = Row(entry)
        self._absent: list[Finding] = []
        self._missing: list[Finding] = []
        self._inside = facts.below(entry.inside)

    def row(self) -> Row:
        entry, row = self._entry, self._row
        begins = self._sides(entry.join.targets)
        ends = self._sides((*entry.join.ends, *entry.join.untils))
        if entry.start_from is not None:
            self._sides((Alternatives((entry.start_from,)),))
        there = bool(begins) and (bool(ends) or entry.join.kind != "between")
        known_inside = [module for module in entry.inside if self._facts.knows(module)]
        if known_inside and not self._inside:
            self._absent.append(self._at(entry.place, self._no_module(known_inside[0])))
            there = False
        if there:
            there = self._labels(begins + ends)
        if there:
            self._arguments(begins, begins + ends)
        row.targets = len(begins + ends)
        if self._missing:
            row.state, row.findings = MISSING, self._missing
        elif not there:
            row.state, row.findings = ABSENT, self._absent
        return row

    def _lost(self, place: Place, text: str) -> None:
        """Note what a row that is not optional must have."""
        (self._absent if self._entry.optional else self._missing).append(self._at(place, text))

    # -- targets --------------------------------------------------------------------------------------

    def _sides(self, groups: Iterable[Alternatives]) -> list[Target]:
        """The targets that exist, the first of each group of alternatives."""
        found = []
        for group in groups:
            there = next((t for t in group.targets if self._facts.find(t.module, t.qualname) is not None), None)
            if there is not None:
                found.append(there)
                continue
            in_module = [t for t in group.targets if t.module in self._facts.modules]
            if in_module:
                self._lost(in_module[0].place, self._no_name(in_module[0]))
            else:
                self._absent.append(self._at(group.targets[0].place, self._no_module(group.targets[0].module)))
        return found

    def _no_module(self, module: str) -> str:
        name = "." + module.rpartition(".")[2]
        moved = sorted(m for m in self._facts.modules if m.endswith(name))
        return f"there is no module {module}" + (f", did you mean {moved[0]!r}?" if moved else "")

    def _no_name(self, target: Target) -> str:
        owner, _, name = target.qualname.rpartition(".")
        if owner and self._facts.find(target.module, owner) is None:
            owner, _, name = owner.rpartition(".")
        where = f"{target.module}:{owner}" if owner else target.module
        return f"{where} has no {name!r}{did_you_mean(name, self._facts.members(target.module, owner))}"

    # -- labels ---------------------------------------------------------------------------------------

    def _labels(self, targets: list[Target]) -> bool:
        """Whether every label is opened somewhere; a value that several alternatives name need be there once."""
        there = True
        for target in targets:
            parameters = self._facts.parameters(target.module, target.qualname)
            for selector in target.selectors:
                self._selector(target, selector.argument, parameters)
                wanted = [v for v in selector.values if isinstance(v, str)]
                if not wanted or not self._is_noted(target):
                    continue
                opened = self._opened(target, selector)
                if any(_fits(value, label) for value in wanted for label in opened):
                    self._row.labels += 1
                    continue
                there = False
                where = " and ".join(self._entry.inside) or target.module.partition(".")[0]
                value = "|".join(wanted)
                hint = did_you_mean(wanted[0], opened)
                self._lost(target.place, f"{where}: no {target.qualname}({selector.argument}={value}){hint}")
        return there

    def _opened(self, target: Target, selector: Selector) -> list[str]:
        """The labels that the modules of `inside` hand to the target, directly or through its own module."""
        found = {label for _, _, labels in self._openers(target, selector) for label in labels}
        return sorted(label for label in found if not label.startswith("<"))

    def _openers(
        self, target: Target, selector: Selector | None, seen: frozenset[str] = frozenset()
    ) -> list[tuple[str, str, tuple[str, ...]]]:
        """Module, function, and labels of every call: of the target, and of what hands its argument on to it."""
        callee = _callee(target)
        if callee in seen:
            return []
        parameters = self._facts.parameters(target.module, target.qualname) or []
        where = _positions(parameters, selector.argument) if selector is not None else ()
        modules = self._inside if self._entry.inside else list(self._facts.modules)
        found = []
        for module in modules:
            for function, made in self._facts.modules[module].calls.items():
                if callee in made:
                    found.append((module, function, tuple(t for w in where for t in made[callee].get(w, ()))))
        if selector is not None and selector.argument:
            for function, made in self._facts.modules[target.module].calls.items():
                handed = [t for w in where for t in made.get(callee, {}).get(w, ())]
                if f"<{selector.argument}>" in handed:
                    through = Target(target.module, function, (), target.place)
                    found += self._openers(through, Selector(selector.argument, ()), seen | {callee})
        return found

    def _is_noted(self, target: Target) -> bool:
        return _callee(target) in self._facts.callees

    # -- arguments ------------------------------------------------------------------------------------

    def _arguments(self, begins: list[Target], found: list[Target]) -> None:
        for key, paths in self._entry.attributes:
            wrong = [text for text in (self._path(path, begins) for path in paths) if text is not None]
            if len(wrong) == len(paths):
                self._missing.append(self._at(self._entry.place, f"{key}: {wrong[0]}"))
        for path in self._entry.join.match or ():
            text = self._path(path, found)
            if text is not None:
                self._missing.append(self._at(self._entry.place, f"match: {text}"))

    def _path(self, path: ValuePath, targets: list[Target]) -> str | None:
        """What is wrong with one value path, or None."""
        name = path.name or ""
        if path.root == "args":
            known = [p for t in targets for p in self._facts.parameters(t.module, t.qualname) or ["**"]]
            if name in known or any(p.startswith("**") for p in known):
                self._row.arguments += 1
                return None
            return f"{targets[0].qualname} takes no {name!r}{did_you_mean(name, _plain_names(known))}"
        if path.root == "caller":
            openers, locals_ = self._callers(targets)
            if openers is None or name in locals_:
                self._row.arguments += openers is not None
                return None
            who = ", ".join(openers[:2]) if openers else "nobody"
            return f"no caller of {targets[0].qualname} has a local {name!r} ({who}){did_you_mean(name, locals_)}"
        return None

    def _callers(self, targets: list[Target]) -> tuple[list[str] | None, set[str]]:
        """The functions that call the targets with the right label, with their local variables; None if not noted."""
        if not any(map(self._is_noted, targets)):
            return None, set()
        functions: list[str] = []
        names: set[str] = set()
        for target in targets:
            selector = next((s for s in target.selectors if any(isinstance(v, str) for v in s.values)), None)
            for module, function, labels in self._openers(target, selector):
                wanted = [v for v in selector.values if isinstance(v, str)] if selector is not None else []
                if selector is None or any(_fits(value, label) for value in wanted for label in labels):
                    functions.append(function or module)
                    names |= self._facts.modules[module].locals.get(function, frozenset())
        return functions, names

    def _selector(self, target: Target, name: str, parameters: list[str] | None) -> None:
        if parameters is None or self._facts.is_class(target.module, target.qualname):
            return  # a class that is a context manager is asked for its instances' attributes
        if name in parameters or any(p.startswith("**") for p in parameters):
            self._row.arguments += 1
        else:
            hint = did_you_mean(name, _plain_names(parameters))
            self._missing.append(self._at(target.place, f"{target.qualname} takes no {name!r}{hint}"))

    def _at(self, place: Place, text: str) -> Finding:
        return Finding(place, self._entry.name, text)


def _callee(target: Target) -> str:
    """What stands before the brackets of a call: for a constructor, the class."""
    parts = target.qualname.split(".")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]


def _positions(parameters: list[str], argument: str) -> tuple[str, ...]:
    """Where a call may hand `argument`: by keyword, and by position, `self` not counted."""
    positional = []
    for name in parameters:
        if name.startswith("*"):
            break
        positional.append(name)
    if positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    return (argument, str(positional.index(argument))) if argument in positional else (argument,)


def _plain_names(parameters: Iterable[str]) -> list[str]:
    return [p for p in parameters if not p.startswith("*") and p not in ("self", "cls")]


def _fits(wanted: str, label: str) -> bool:
    """Whether a value of a map and a label of the source can be the same text; either may be a pattern."""
    if label.startswith("<"):
        return False
    if fnmatchcase(label, wanted):
        return True
    return "*" in label and fnmatchcase(wanted.replace("*", "x"), label.replace("[", "[[]"))

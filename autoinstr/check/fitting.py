"""Does each row of the maps fit the facts: do its targets, labels, arguments and local variables exist?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoinstr.check.facts import Facts
from autoinstr.check.handing import row_of
from autoinstr.check.lookup import Lookup, callee_of, fits, plain_names
from autoinstr.check.outcome import ABSENT, MISSING, Finding, Outcome, Part, Row
from autoinstr.check.series import rows_of
from autoinstr.maps.metric_model import MetricTap
from autoinstr.maps.model import Alternatives, ArgumentsEntry, Place, Selector, SpanEntry, Target
from autoinstr.maps.values import ValuePath
from autoinstr.maps.words import did_you_mean

Entry = SpanEntry | MetricTap | ArgumentsEntry


def callees_of(entries: Iterable[Entry]) -> set[str]:
    """The names whose calls must be known to check these entries: factories, and functions picked by their caller."""
    found: set[str] = set()
    for entry in entries:
        if isinstance(entry, ArgumentsEntry):
            continue
        if isinstance(entry, MetricTap):
            if entry.only_when:
                found.add(callee_of(entry.target))
            continue
        read = [path for _, paths in (*entry.attributes, *entry.resource) for path in paths]
        read += [path for path, _ in entry.only_when]
        read += entry.coalesce.match if entry.coalesce is not None else ()
        by_caller = any(one.root == "caller" for path in read for one in (path, *path.operands))
        for target in entry.targets():
            if target.selectors or entry.inside or by_caller or entry.join.kind == "block":
                found.add(callee_of(target))
    return found


def targets_of(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """The module and the qualified name of every target of these entries."""
    found = [t for e in entries for t in (e.targets() if isinstance(e, SpanEntry) else (e.target,))]
    return [(target.module, target.qualname) for target in found]


def fit(entries: Iterable[Entry], facts: Facts) -> Outcome:
    """Check the entries whose packages are among the facts; others are passed over."""
    outcome = Outcome()
    for entry in entries:
        if isinstance(entry, MetricTap):
            if facts.knows(entry.target.module) or entry.target.module in facts.modules:
                outcome.rows += rows_of(entry, facts)
        elif isinstance(entry, ArgumentsEntry):
            if facts.knows(entry.target.module):
                outcome.rows.append(row_of(entry, facts))
        elif any(facts.knows(target.module) for target in entry.targets()):
            outcome.rows.append(_RowCheck(entry, facts).row())
    return outcome


class _RowCheck:
    """The check of one entry. `_absent` and `_missing` hold what is not there, by how bad that is."""

    def __init__(self, entry: SpanEntry, facts: Facts) -> None:
        self._entry = entry
        self._facts = facts
        self._row = Row(entry)
        self._absent: list[Finding] = []
        self._missing: list[Finding] = []
        self._lookup = Lookup(facts, entry.inside)

    def row(self) -> Row:
        entry, row = self._entry, self._row
        begins = self._sides(entry.join.targets)
        ends = self._sides((*entry.join.ends, *entry.join.untils))
        if entry.start_from is not None:
            self._sides((Alternatives((entry.start_from,)),))
        there = bool(begins) and (bool(ends) or entry.join.kind != "between")
        known_inside = [module for module in entry.inside if self._facts.knows(module)]
        if known_inside and not self._lookup.modules:
            self._absent.append(self._at(entry.place, self._lookup.why_no_module(known_inside[0])))
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
            there = next((t for t in group.targets if self._lookup.exists(t)), None)
            if there is not None:
                found.append(there)
                gone = f"{there.module}:{there.qualname} was there before"
                self._row.parts[str(group.targets[0].place)] = Part(there.module, there.place, gone)
                continue
            in_module = [t for t in group.targets if t.module in self._facts.modules]
            unread = [home for t in in_module for home in self._facts.unread(t.module, t.qualname)]
            if unread:
                text = f"{in_module[0]} may be inherited from {unread[0]}, which was not read: it is not checked"
                self._absent.append(self._at(in_module[0].place, text))
            elif in_module:
                self._lost(in_module[0].place, self._lookup.why_no_name(in_module[0]))
            else:
                self._absent.append(
                    self._at(group.targets[0].place, self._lookup.why_no_module(group.targets[0].module))
                )
        return found

    # -- labels ---------------------------------------------------------------------------------------

    def _labels(self, targets: list[Target]) -> bool:
        """Whether every label is opened somewhere; a value that several alternatives name need be there once."""
        there = True
        for target in targets:
            parameters = self._facts.parameters(target.module, target.qualname)
            for selector in target.selectors:
                self._selector(target, selector.argument, parameters)
                wanted = [v for v in selector.values if isinstance(v, str)]
                if not wanted or not self._lookup.notes_calls_of(target):
                    continue
                opened = self._lookup.opened(target, selector)
                if any(fits(value, label) for value in wanted for label in opened):
                    self._row.labels += 1
                    self._note_openers(target, selector, wanted)
                    continue
                there = False
                where = " and ".join(self._entry.inside) or target.module.partition(".")[0]
                value = "|".join(wanted)
                hint = did_you_mean(wanted[0], opened)
                self._lost(target.place, f"{where}: no {target.qualname}({selector.argument}={value}){hint}")
        return there

    def _note_openers(self, target: Target, selector: Selector, wanted: list[str]) -> None:
        for module, function, labels in self._lookup.openers(target, selector):
            if any(fits(value, label) for value in wanted for label in labels):
                what = f"{target.qualname}({selector.argument}={'|'.join(wanted)})"
                gone = f"{module}:{function} opened {what} before"
                self._row.parts[f"{target.place} {module}:{function}"] = Part(module, target.place, gone)

    # -- arguments ------------------------------------------------------------------------------------

    def _arguments(self, begins: list[Target], found: list[Target]) -> None:
        for key, paths in (*self._entry.attributes, *self._entry.resource):
            wrong = [text for text in (self._path(path, begins) for path in paths) if text is not None]
            if len(wrong) == len(paths):
                self._missing.append(self._at(self._entry.place, f"{key}: {wrong[0]}"))
        for path, _ in self._entry.only_when:
            text = self._path(path, begins)
            if text is not None:
                self._missing.append(self._at(self._entry.place, f"only_when: {text}"))
        for path in self._entry.coalesce.match if self._entry.coalesce is not None else ():
            text = self._path(path, begins)
            if text is not None:
                self._missing.append(self._at(self._entry.place, f"coalesce: {text}"))
        for path in self._entry.join.match or ():
            text = self._path(path, found)
            if text is not None:
                self._missing.append(self._at(self._entry.place, f"match: {text}"))

    def _path(self, path: ValuePath, targets: list[Target]) -> str | None:
        """What is wrong with one value path, or None. A `default` says that what it reads may not be there."""
        for reducer, other in path.reducers:
            if reducer == "default":  # of two paths, one must be there
                without = replace(path, reducers=())
                known = not isinstance(other, ValuePath) or not self._path(other, targets)
                return None if known else self._path(without, targets)
        for operand in path.operands:
            wrong = self._path(operand, targets)
            if wrong is not None:
                return wrong
        name = path.name or ""
        if path.root == "args":
            wrong = self._lookup.why_no_argument(name, targets)
            self._row.arguments += wrong is None
            return wrong
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
        if not any(map(self._lookup.notes_calls_of, targets)):
            return None, set()
        functions: list[str] = []
        names: set[str] = set()
        for target in targets:
            selector = next((s for s in target.selectors if any(isinstance(v, str) for v in s.values)), None)
            for module, function, labels in self._lookup.openers(target, selector):
                wanted = [v for v in selector.values if isinstance(v, str)] if selector is not None else []
                if selector is None or any(fits(value, label) for value in wanted for label in labels):
                    functions.append(function or module)
                    names |= self._facts.modules[module].locals.get(function, frozenset())
        return functions, names

    def _selector(self, target: Target, name: str, parameters: list[str] | None) -> None:
        if parameters is None or self._facts.is_class(target.module, target.qualname):
            return  # a class that is a context manager is asked for its instances' attributes
        if name in parameters or any(p.startswith("**") for p in parameters):
            self._row.arguments += 1
        else:
            hint = did_you_mean(name, plain_names(parameters))
            self._missing.append(self._at(target.place, f"{target.qualname} takes no {name!r}{hint}"))

    def _at(self, place: Place, text: str) -> Finding:
        return Finding(place, self._entry.name, text)

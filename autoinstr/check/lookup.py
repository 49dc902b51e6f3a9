"""What the facts say of a target: whether it exists, who calls it with which labels, what it takes."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from autoinstr.check.facts import Facts
from autoinstr.maps.model import Selector, Target
from autoinstr.maps.words import did_you_mean


class Lookup:
    """Answers about targets, as seen from the modules of `inside` (all, where it is empty)."""

    def __init__(self, facts: Facts, inside: tuple[str, ...] = ()) -> None:
        self.facts = facts
        self.inside = inside
        self.modules = facts.below(inside) if inside else list(facts.modules)

    def exists(self, target: Target) -> bool:
        return self.facts.find(target.module, target.qualname) is not None

    def why_no_module(self, module: str) -> str:
        name = "." + module.rpartition(".")[2]
        moved = sorted(m for m in self.facts.modules if m.endswith(name))
        return f"there is no module {module}" + (f", did you mean {moved[0]!r}?" if moved else "")

    def why_no_name(self, target: Target) -> str:
        owner, _, name = target.qualname.rpartition(".")
        if owner and self.facts.find(target.module, owner) is None:
            owner, _, name = owner.rpartition(".")
        where = f"{target.module}:{owner}" if owner else target.module
        return f"{where} has no {name!r}{did_you_mean(name, self.facts.members(target.module, owner))}"

    def why_no_argument(self, name: str, targets: list[Target]) -> str | None:
        """What is wrong with the argument `name` of these targets; None where one takes it, or can't be told."""
        known = [p for t in targets for p in self.facts.parameters(t.module, t.qualname) or ["**"]]
        if name in known or any(p.startswith("**") for p in known):
            return None
        return f"{targets[0].qualname} takes no {name!r}{did_you_mean(name, plain_names(known))}"

    def notes_calls_of(self, target: Target) -> bool:
        """Whether the facts hold the calls of the target, so that a label that is not there is opened nowhere."""
        return callee_of(target) in self.facts.callees

    def opened(self, target: Target, selector: Selector) -> list[str]:
        """The labels that the modules of `inside` hand to the target, directly or through its own module."""
        found = {label for _, _, labels in self.openers(target, selector) for label in labels}
        return sorted(label for label in found if not label.startswith("<"))

    def openers(
        self, target: Target, selector: Selector | None, seen: frozenset[str] = frozenset()
    ) -> list[tuple[str, str, tuple[str, ...]]]:
        """Module, function, and labels of every call: of the target, and of what hands its argument on to it."""
        callee = callee_of(target)
        if callee in seen:
            return []
        parameters = self.facts.parameters(target.module, target.qualname) or []
        where = _positions(parameters, selector.argument) if selector is not None else ()
        found = []
        for module in self.modules:
            for function, made in self.facts.modules[module].calls.items():
                if callee in made:
                    found.append((module, function, tuple(t for w in where for t in made[callee].get(w, ()))))
        if selector is not None and selector.argument:
            for function, made in self.facts.modules[target.module].calls.items():
                handed = [t for w in where for t in made.get(callee, {}).get(w, ())]
                if f"<{selector.argument}>" in handed:
                    through = Target(target.module, function, (), target.place)
                    found += self.openers(through, Selector(selector.argument, ()), seen | {callee})
        return found


def callee_of(target: Target) -> str:
    """What stands before the brackets of a call: for a constructor, the class."""
    parts = target.qualname.split(".")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]


def plain_names(parameters: Iterable[str]) -> list[str]:
    return [p for p in parameters if not p.startswith("*") and p not in ("self", "cls")]


def fits(wanted: str, label: str) -> bool:
    """Whether a value of a map and a label of the source can be the same text; either may be a pattern."""
    if label.startswith("<"):
        return False
    if fnmatchcase(label, wanted):
        return True
    return "*" in label and fnmatchcase(wanted.replace("*", "x"), label.replace("[", "[[]"))


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

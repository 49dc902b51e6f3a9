"""The names of a package that maps can refer to: no code, only facts, and small enough to keep in a repository."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FORMAT: Final = 1


class SnapshotError(ValueError):
    """A file that is no snapshot, or one of a format that this version doesn't read."""


Literals = Mapping[str, tuple[str, ...]]
"""What a callee is handed: position (`"0"`) or keyword → texts. `*` stands for what an f-string fills in, and
`<name>` for the caller's own parameter, handed on."""


@dataclass
class ModuleFacts:
    """One module. Names are qualified as maps write them: `Class.method`."""

    functions: dict[str, str] = field(default_factory=dict)
    """Parameters as they are written, by name only: `self label * flag **rest`."""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The bases, as the module writes them."""
    names: tuple[str, ...] = ()
    """What is bound to anything else and may be called: `Worker = ray.remote(WorkerImpl)`."""
    imports: dict[str, str] = field(default_factory=dict)
    """Names taken from the same package: `module:name`, or `module` alone. Of classes only a package's, and those
    that are derived from, of other packages too."""
    calls: dict[str, dict[str, Literals]] = field(default_factory=dict)
    """Function → callee → what it is handed. Only for the callees that `Facts.callees` lists."""
    locals: dict[str, frozenset[str]] = field(default_factory=dict)
    """Function → local variables, for the functions in `calls`."""


@dataclass
class Facts:
    """Everything that is known of some packages. `release` says of which release."""

    release: str
    packages: tuple[str, ...]
    callees: frozenset[str]
    modules: dict[str, ModuleFacts] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    """Texts that are keys of a dict somewhere: what a logger may be handed."""

    def knows(self, module: str) -> bool:
        """Whether the module's package was read, so that a name that is not here does not exist."""
        return module.partition(".")[0] in self.packages

    def below(self, prefixes: Iterable[str]) -> list[str]:
        """The modules that are one of `prefixes` or lie below one."""
        wanted = tuple(prefixes)
        return [m for m in self.modules if any(m == p or m.startswith(p + ".") for p in wanted)]

    # -- what a name stands for -----------------------------------------------------------------------

    def find(self, module: str, qualname: str) -> tuple[str, str] | None:
        """Where `qualname` of `module` is defined, following imports and base classes; None if nowhere."""
        return self._find(module, qualname, 0)

    def unread(self, module: str, qualname: str) -> list[str]:
        """The modules of other packages, not read, that `qualname` may come from: by a base class, mostly."""
        lost: list[str] = []
        if self._find(module, qualname, 0, lost) is None:
            return [home for home in dict.fromkeys(lost) if not self.knows(home)]
        return []

    def parameters(self, module: str, qualname: str) -> list[str] | None:
        """The parameters of a function, method or class; None where they can't be told."""
        place = self.find(module, qualname)
        if place is None:
            return None
        home, name = place
        if name in self.modules[home].classes:
            init = self._find(home, name + ".__init__", 0)
            if init is None:
                return None
            home, name = init
        text = self.modules[home].functions.get(name)
        return None if text is None else text.split()

    def is_class(self, module: str, qualname: str) -> bool:
        place = self.find(module, qualname)
        return place is not None and place[1] in self.modules[place[0]].classes

    def members(self, module: str, owner: str) -> list[str]:
        """The names in a module (`owner` empty) or in a class and its bases: what a wrong name may have meant."""
        found: dict[str, None] = {}
        for home, name in self._lineage(module, owner) if owner else [(module, "")]:
            facts = self.modules.get(home)
            if facts is None:
                continue
            start = name + "." if name else ""
            for known in (*facts.functions, *facts.classes, *facts.names, *(() if name else facts.imports)):
                if known.startswith(start) and "." not in known[len(start) :]:
                    found[known[len(start) :]] = None
        return list(found)

    def _find(self, module: str, qualname: str, depth: int, lost: list[str] | None = None) -> tuple[str, str] | None:
        """`lost` is given the modules that are not among the facts."""
        facts = self.modules.get(module)
        if facts is None or depth > 32:
            if facts is None and lost is not None:
                lost.append(module)
            return None
        if qualname in facts.functions or qualname in facts.classes or qualname in facts.names:
            return module, qualname
        first, dot, rest = qualname.partition(".")
        if first in facts.imports:
            home, _, name = facts.imports[first].partition(":")
            target = ".".join(part for part in (name, rest) if part)
            return self._find(home, target, depth + 1, lost) if target else (home, "")
        if module + "." + first in self.modules:
            return self._find(module + "." + first, rest, depth + 1, lost) if dot else (module + "." + first, "")
        owner, _, last = qualname.rpartition(".")
        if owner:
            for home, name in self._bases(module, owner, lost):
                found = self._find(home, f"{name}.{last}", depth + 1, lost)
                if found is not None:
                    return found
        return None

    def _bases(self, module: str, owner: str, lost: list[str] | None = None) -> Iterator[tuple[str, str]]:
        for base in self.modules[module].classes.get(owner, ()):
            place = self._find(module, base, 0, lost)
            if place is not None and place != (module, owner):
                yield place

    def _lineage(self, module: str, owner: str) -> Iterator[tuple[str, str]]:
        place = self.find(module, owner)
        waiting, seen = [place] if place is not None else [], set()
        while waiting:
            home, name = waiting.pop(0)
            if (home, name) not in seen:
                seen.add((home, name))
                yield home, name
                waiting += self._bases(home, name)


# -- as a file ------------------------------------------------------------------------------------------


def to_json(facts: Facts) -> str:
    """The snapshot: sorted, so that two releases can be compared line by line; a line per module."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "release": facts.release,
        "packages": sorted(facts.packages),
        "callees": sorted(facts.callees),
        "keys": " ".join(sorted(facts.keys)),
    }
    lines = [f"{_line(key)}: {_line(value)}" for key, value in head.items()]
    modules = [f"{_line(name)}: {_line(_plain(module))}" for name, module in sorted(facts.modules.items())]
    return "{\n" + ",\n".join(lines) + ',\n"modules": {\n' + ",\n".join(modules) + "\n}}\n"


def from_json(text: str) -> Facts:
    """Read a snapshot.

    Raises:
        SnapshotError: for anything else.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SnapshotError(f"no snapshot of format {FORMAT}; write it again with 'autoinstr snapshot'")
        return Facts(
            release=str(data["release"]),
            packages=tuple(data["packages"]),
            callees=frozenset(data["callees"]),
            keys=frozenset(data["keys"].split()),
            modules={name: _module(plain) for name, plain in data["modules"].items()},
        )
    except SnapshotError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"no snapshot: {type(error).__name__}: {error}") from None


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(module: ModuleFacts) -> dict[str, Any]:
    """A module in JSON's terms; what is empty is left out, and names are joined to one text each."""
    plain = {
        "functions": _by_owner(module.functions),
        "classes": {name: " ".join(bases) for name, bases in module.classes.items()},
        "names": " ".join(sorted(module.names)),
        "imports": _by_home(module.imports),
        "calls": {
            opener: {callee: {where: list(texts) for where, texts in handed.items()} for callee, handed in made.items()}
            for opener, made in module.calls.items()
        },
        "locals": {
            opener: " ".join(sorted(names - _parameter_names(module, opener)))
            for opener, names in module.locals.items()
        },
    }
    return {key: value for key, value in plain.items() if value}


def _by_owner(functions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Functions by class, those of the module itself under the empty name; a first `self` is a dot."""
    found: dict[str, dict[str, str]] = {}
    for qualname, parameters in functions.items():
        owner, _, name = qualname.rpartition(".")
        found.setdefault(owner, {})[name] = re.sub(r"^self\b", ".", parameters)
    return found


def _by_home(imports: Mapping[str, str]) -> dict[str, str]:
    """Imported names by the module they come from: `name`, or `name=other` where they are called otherwise here."""
    found: dict[str, list[str]] = {}
    for name, source in imports.items():
        home, _, original = source.partition(":")
        found.setdefault(home, []).append(original if original == name else f"{original}={name}")
    return {home: " ".join(sorted(words)) for home, words in found.items()}


def _parameter_names(module: ModuleFacts, function: str) -> set[str]:
    """A function's parameters: local variables of it that `locals` in a file need not repeat."""
    return {name.lstrip("*") for name in module.functions.get(function, "").split()}


def _module(plain: dict[str, Any]) -> ModuleFacts:
    module = ModuleFacts(
        functions={
            f"{owner}.{name}" if owner else name: re.sub(r"^\.", "self", parameters)
            for owner, methods in plain.get("functions", {}).items()
            for name, parameters in methods.items()
        },
        classes={name: tuple(bases.split()) for name, bases in plain.get("classes", {}).items()},
        names=tuple(plain.get("names", "").split()),
        imports={
            name or original: f"{home}:{original}" if original else home
            for home, words in plain.get("imports", {}).items()
            for original, _, name in (word.partition("=") for word in words.split())
        },
        calls={
            opener: {callee: {where: tuple(t) for where, t in handed.items()} for callee, handed in made.items()}
            for opener, made in plain.get("calls", {}).items()
        },
    )
    for opener, names in plain.get("locals", {}).items():
        module.locals[opener] = frozenset(names.split()).union(_parameter_names(module, opener))
    return module

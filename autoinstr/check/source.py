"""From a package's source to its facts, by `ast`: nothing of it is imported or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from autoinstr.check.facts import Facts, ModuleFacts

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES: Final = (*_FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONSTANT_NAME: Final = re.compile(r"_*[A-Z][A-Z0-9_]*")
_UNNAMED: Final = re.compile(r"__(?!init__|call__|a?enter__|a?exit__|a?iter__|a?next__)\w+__")
"""Methods that no map has a reason to name."""
_MAY_BE_CALLED: Final = (ast.Call, ast.Name, ast.Attribute, ast.Lambda)
_LABEL: Final = re.compile(r"[\w./:*<>-]{1,100}")
_KEY: Final = re.compile(r"[\w./-]{1,80}")


def package_folder(folder: Path, package: str) -> Path | None:
    """The package's own folder in a checkout (`src` layouts too), or in `folder` itself; None if it is not there."""
    path = Path(*package.split("."))
    for candidate in (folder / path, folder / "src" / path, folder if folder.name == path.name else folder / path):
        if (candidate / "__init__.py").is_file() or any(candidate.glob("*.py")):
            return candidate
    return None


def installed_folder(package: str) -> Path | None:
    """Where an installed top-level package lies. It is found, not imported."""
    from importlib import util

    try:
        spec = util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return next((Path(f) for f in (spec.submodule_search_locations or ())), None) if spec is not None else None


def read_source(
    folders: dict[str, Path],
    callees: Iterable[str],
    release: str,
    unreadable: list[str] | None = None,
    targets: Iterable[tuple[str, str]] = (),
    elsewhere: Callable[[str], Path | None] = lambda package: None,
) -> Facts:
    """The facts of packages, given by name → folder. `callees` are the names whose calls are noted.

    Where one of the `targets` (module and qualified name) is inherited from another package, its modules on the way
    there are read too, from the folder that `elsewhere` gives for the package. Files that can't be parsed are named
    in `unreadable`, and their modules are not there.
    """
    files = [
        source for package, folder in sorted(folders.items()) for source in _parsed(package, folder, None, unreadable)
    ]
    names, targets = frozenset(callees), list(targets)
    own = len(files)
    sought: set[str] = set()
    while True:
        facts = Facts(release, tuple(sorted(folders)), names)
        for module, is_package, package, tree in files:
            reader = _ModuleReader(module, is_package, package, names)
            reader.read(tree)
            facts.modules[module] = reader.facts
            facts.keys |= reader.keys
        names_before, files_before = names, len(files)
        names |= frozenset(_handing_on(facts))
        inherited = {module for target in targets for module in facts.unread(*target)} - sought
        sought |= inherited
        for module in sorted(inherited):
            package = module.partition(".")[0]
            folder = elsewhere(package)
            if folder is not None:
                files += _parsed(package, folder, module, unreadable)
        if names == names_before and len(files) == files_before:
            break
    for module, _, _, _ in files[own:]:  # of other packages only what leads to what is inherited
        imports = facts.modules[module].imports
        facts.modules[module].imports = {
            name: home for name, home in imports.items() if home.partition(":")[0] in facts.modules
        }
    return facts


_Parsed = tuple[str, bool, str, ast.Module]


def _parsed(package: str, folder: Path, only: str | None, unreadable: list[str] | None) -> Iterator[_Parsed]:
    """The modules of a package, or `only` one of them: its name, whether it is a package, its package, its tree."""
    if only is None:
        paths = sorted(folder.rglob("*.py"))
    else:
        inner = folder.joinpath(*only.split(".")[1:])
        paths = [path for path in (inner / "__init__.py", inner.with_suffix(".py")) if path.is_file()][:1]
    for path in paths:
        parts = path.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join((package, *(parts[:-1] if is_package else parts)))
        try:
            yield module, is_package, package, ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            if unreadable is not None:
                unreadable.append(f"{path}: {error}")


def _handing_on(facts: Facts) -> Iterator[str]:
    """Methods that hand an argument on to a noted method of their own class, as a timer's `time` to `start`."""
    for module in facts.modules.values():
        for function, made in module.calls.items():
            owner, _, name = function.rpartition(".")
            for callee, handed in made.items():
                of_its_own = owner and name != callee and f"{owner}.{callee}" in module.functions
                if of_its_own and any(text.startswith("<") for texts in handed.values() for text in texts):
                    yield name


@dataclass
class _Scope:
    """A function (or the module, with no node) that is being read, and those around it."""

    qualname: str
    outer: _Scope | None
    parameters: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Variables that hold a label."""

    def label(self, name: str) -> list[str]:
        """The labels that a variable may hold; a parameter that is handed on is `<name>`."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.texts:
                return scope.texts[name]
            if name in scope.parameters:
                return [f"<{name}>"] if scope is self else []
            if name in scope.bound:
                return []
            scope = scope.outer
        return []


class _ModuleReader:
    def __init__(self, module: str, is_package: bool, package: str, callees: frozenset[str]) -> None:
        self.facts = ModuleFacts()
        self.keys: set[str] = set()
        self._module = module
        self._package = package
        self._parent = module if is_package else module.rpartition(".")[0]
        self._callees = callees
        self._names: set[str] = set()
        self._foreign: dict[str, str] = {}
        self._is_package = is_package

    def read(self, tree: ast.Module) -> None:
        top = _Scope("", None, texts=_texts(tree.body))
        self._body(tree.body, top, in_class="")
        self.facts.names = tuple(sorted(self._names))
        bases = {base.partition(".")[0] for bases in self.facts.classes.values() for base in bases}
        if not self._is_package:
            # a class is imported to be named in an annotation, mostly; a package offers it, others derive from it
            self.facts.imports = {
                name: home
                for name, home in self.facts.imports.items()
                if name in bases or (name.islower() and not name.startswith("_"))
            }
        for name in bases & self._foreign.keys() - self.facts.imports.keys():
            self.facts.imports[name] = self._foreign[name]
        nodes = list(ast.walk(tree))
        asks_for_fields = any(isinstance(n, ast.Call) and _callee(n) in ("asdict", "fields") for n in nodes)
        for node in nodes:
            for text in _field_names(node) if asks_for_fields else ():
                self.keys.add(text)
            for text in _written_keys(node):
                if _KEY.fullmatch(text.replace("*", "")) and len(text) > 1:
                    self.keys.add(text)

    # -- definitions ----------------------------------------------------------------------------------

    def _body(self, body: list[ast.stmt], scope: _Scope, in_class: str) -> None:
        """The statements of a module or class; `in_class` is the class's qualname with a dot, or empty."""
        for node in _flat(body):
            if isinstance(node, _FUNCTIONS):
                if not _UNNAMED.fullmatch(node.name):
                    self.facts.functions[in_class + node.name] = _parameters(node.args)
                self._function(node, scope, in_class + node.name)
            elif isinstance(node, ast.ClassDef):
                name = in_class + node.name
                self.facts.classes[name] = tuple(filter(None, map(_dotted, node.bases)))
                self._body(node.body, scope, name + ".")
            elif isinstance(node, ast.ImportFrom) and not in_class:
                self._import_from(node)
            elif isinstance(node, ast.Import) and not in_class:
                for alias in node.names:
                    if alias.asname and self._is_ours(alias.name):
                        self.facts.imports[alias.asname] = alias.name
                    elif not self._is_ours(alias.name):
                        name = alias.asname or alias.name.partition(".")[0]
                        self._foreign[name] = alias.name if alias.asname else name
            else:
                if isinstance(node, ast.Assign) and isinstance(node.value, _MAY_BE_CALLED):
                    for name in _bound([node]):
                        if not _CONSTANT_NAME.fullmatch(name) and not name.startswith("__"):
                            self._names.add(in_class + name)
                self._calls([node], scope)

    def _import_from(self, node: ast.ImportFrom) -> None:
        source = node.module or ""
        if node.level:
            base = self._parent.split(".")
            base = base[: len(base) - node.level + 1]
            source = ".".join([*base, source] if source else base)
        imports = self.facts.imports if self._is_ours(source) else self._foreign
        for alias in node.names:
            imports[alias.asname or alias.name] = f"{source}:{alias.name}"

    def _is_ours(self, module: str) -> bool:
        return module == self._package or module.startswith(self._package + ".")

    # -- bodies of functions --------------------------------------------------------------------------

    def _function(self, node: _Function, outer: _Scope, qualname: str) -> None:
        parameters = frozenset(a.arg for a in _arguments(node.args))
        scope = _Scope(qualname, outer, parameters, frozenset(_bound(node.body)), _texts(node.body))
        self._calls(node.body, scope)
        if qualname in self.facts.calls:
            free = {n.id for n in _own(node.body) if isinstance(n, ast.Name)}
            around: set[str] = set()
            above: _Scope | None = outer
            while above is not None and above.qualname:
                around |= above.parameters | above.bound
                above = above.outer
            self.facts.locals[qualname] = parameters | scope.bound | (free & around)
        for inner in _own(node.body):
            if isinstance(inner, _FUNCTIONS):
                self._function(inner, scope, f"{qualname}.{inner.name}")
            elif isinstance(inner, ast.ClassDef):
                for method in inner.body:
                    if isinstance(method, _FUNCTIONS):
                        self._function(method, scope, f"{qualname}.{inner.name}.{method.name}")

    def _calls(self, body: list[ast.stmt], scope: _Scope) -> None:
        for node in _own(body, lambdas=True):
            if not isinstance(node, ast.Call):
                continue
            callee = _callee(node)
            if callee is None or callee not in self._callees:
                continue
            handed: dict[str, list[str]] = {}
            for position, value in enumerate(node.args):
                handed[str(position)] = _label(value, scope)
            for keyword in node.keywords:
                if keyword.arg is not None:
                    handed[keyword.arg] = _label(keyword.value, scope)
            noted = self.facts.calls.setdefault(scope.qualname, {}).setdefault(callee, {})
            assert isinstance(noted, dict)
            for where, labels in handed.items():
                fitting = {text for text in labels if _LABEL.fullmatch(text)}
                if fitting:
                    noted[where] = tuple(sorted(fitting.union(noted.get(where, ()))))


# -- pieces of syntax -----------------------------------------------------------------------------------


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module or class is made, those of `if` and `try` included."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "handlers", "orelse", "finalbody"):
                for item in getattr(node, part, ()):
                    yield from _flat(item.body if isinstance(item, ast.ExceptHandler) else [item])
        else:
            yield node


def _own(body: Iterable[ast.AST], lambdas: bool = False) -> Iterator[ast.AST]:
    """Every node of a function's own body; a nested function or class is given, but not what is inside."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and (lambdas or not isinstance(node, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _bound(body: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements bind in their own scope; a comprehension's are its own."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _texts(body: Iterable[ast.AST]) -> dict[str, list[str]]:
    """The variables of a scope that are only ever given texts."""
    found: dict[str, list[str]] = {}
    other: set[str] = set()
    for node in _own(body):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        labels = _label(value, None)
        for target in targets:
            if isinstance(target, ast.Name):
                if labels:
                    found.setdefault(target.id, []).extend(labels)
                else:
                    other.add(target.id)
    return {name: labels for name, labels in found.items() if name not in other}


def _label(node: ast.expr | None, scope: _Scope | None) -> list[str]:
    """The texts that an expression may give; what an f-string fills in is `*`."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [str(v.value) if isinstance(v, ast.Constant) else "*" for v in node.values]
        return [re.sub(r"\*+", "*", "".join(parts))]
    if isinstance(node, ast.IfExp):
        return _label(node.body, scope) + _label(node.orelse, scope)
    if isinstance(node, ast.Name) and scope is not None:
        return scope.label(node.id)
    return []


def _written_keys(node: ast.AST) -> list[str]:
    """The keys of a dict that a piece of syntax writes; an f-string is a pattern, with `*` for what it fills in."""
    if isinstance(node, ast.Dict):
        return [text for key in node.keys for text in _label(key, None)]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _label(node.slice, None)
    if isinstance(node, ast.DictComp):
        return _label(node.key, None)
    if isinstance(node, ast.Call):
        name = _callee(node)
        if name in ("dict", "update"):
            return [keyword.arg for keyword in node.keywords if keyword.arg is not None]
        if name == "setdefault" and node.args:
            return _label(node.args[0], None)
        if name in ("append", "extend"):  # a dict of lists, which are averaged when they are logged
            lists = node.func.value if isinstance(node.func, ast.Attribute) else None
            return _label(lists.slice, None) if isinstance(lists, ast.Subscript) else []
    return []


def _field_names(node: ast.AST) -> list[str]:
    """The fields of a dataclass: keys, where a module makes dicts of its dataclasses."""
    if not isinstance(node, ast.ClassDef):
        return []
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    if not any(_dotted(decorator).rpartition(".")[2] == "dataclass" for decorator in decorators):
        return []
    return [f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]


def _callee(node: ast.Call) -> str | None:
    """The last name before the brackets of a call."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return every + [a for a in (arguments.vararg, arguments.kwarg) if a is not None]


def _parameters(arguments: ast.arguments) -> str:
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg is not None:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    names += [a.arg for a in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        names.append("**" + arguments.kwarg.arg)
    return " ".join(names)


def _dotted(node: ast.expr) -> str:
    """`a.b.C` as a text; a subscript (`Base[T]`) is its base, anything else is nothing."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""

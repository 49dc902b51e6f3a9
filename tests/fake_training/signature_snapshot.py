"""Compares the stand-in's function signatures with NeMo RL's.

    python signature_snapshot.py <NeMo RL source> > signatures.json

notes the parameters (names, order, defaults; no annotations) of every function and method that NeMo RL and
the stand-in share by name. `tests/test_fake_training.py` holds the stand-in to the noted ones, and so needs
no NeMo RL.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = function.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    asynchronous = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{asynchronous}({ast.unparse(arguments)})"


def real(root: Path) -> dict[str, str]:
    """`module:Qual.name` -> parameters, for every function and method in the source below `root`."""
    found = {}
    for path in sorted((root / "nemo_rl").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for name, function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            found[f"{module}:{name}"] = parameters(function)
    return found


def _functions(scope: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in scope.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def stand_in(target: str) -> str | None:
    """Parameters of `module:Qual.name` in the `nemo_rl` that Python finds; None when it is not there."""
    module_name, _, qualified_name = target.partition(":")
    try:
        value = importlib.import_module(module_name)
        for name in qualified_name.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError):
        return None
    # Else it is inherited, from `object` or the standard library, and says nothing of the stand-in.
    if not (inspect.isfunction(value) and value.__module__.startswith("nemo_rl")):
        return None
    source = inspect.getsource(value)
    node = ast.parse(textwrap.dedent(source)).body[0]
    return parameters(node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def main() -> None:
    shared = {target: noted for target, noted in real(Path(sys.argv[1])).items() if stand_in(target) is not None}
    json.dump(shared, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()

"""No test of a unit or a tree relies on a quick machine: it waits for an event, or for a turn of the event loop.

CI stands still for half a second at any moment. What was to happen within 20 ms has not happened then, or has
happened without what was to come before it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LONG = 300
"""Seconds after which a wait may give up: nothing takes so long, unless it hangs."""
WAITS = {"join", "wait", "wait_for", "result", "acquire", "Timer"}


def hurried(path: Path) -> Iterator[str]:
    """Each sleep of the file, and each wait that gives up early."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
        limits += node.args if node.func.attr in WAITS else []
        values = [limit.value for limit in limits if isinstance(limit, ast.Constant)]
        sleeps = node.func.attr == "sleep" and [getattr(arg, "value", None) for arg in node.args] != [0]
        if sleeps or any(type(value) in (int, float) and value < LONG for value in values):
            yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def test_no_test_waits_for_the_clock() -> None:
    files = [path for folder in ("unit", "trees") for path in sorted((TESTS / folder).glob("*.py"))]
    assert [line for path in files for line in hurried(path)] == []


def test_what_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    good = ["asyncio.sleep(0)", "thread.join()", "thread.join(300)", "event.wait()", "os.path.join('a', 'b')"]
    bad = [
        "time.sleep(0.1)",
        "asyncio.sleep(x)",
        "thread.join(5)",
        "subprocess.run([x], timeout=30)",
        "threading.Timer(0.1, f)",
    ]
    path.write_text("\n".join([*good, *bad]))
    assert [line.partition(": ")[2] for line in hurried(path)] == bad

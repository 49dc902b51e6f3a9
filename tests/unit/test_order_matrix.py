"""Importing and patching in every order, for a function, a method and a block at once, each in its own process.

A line reads: what happens, and what `call` (through the module), `held` (through names that another module took)
and `original` see, in turn. `1` is one span for each of the three, `0/1/0` is none for the function and the block
and one for the method, `1+1` is one in each of two recordings, `f` says that somebody else's wrappers ran.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STEPS = Path(__file__).parent / "order_steps.py"

ORDERS = {
    # the two plain ones
    "patch import call": "1",
    "import patch call": "1",
    # undo brings the very object back, and what was undone can be done again
    "import patch original unpatch call original": "no 0 yes",
    "patch import unpatch call original": "0 yes",
    "patch unpatch import call original": "0 yes",
    "import patch unpatch patch call unpatch original": "0+1 yes",
    "patch import unpatch patch call unpatch call original": "0+1 0+0 yes",
    "patch unpatch patch import call unpatch original": "0+1 yes",
    # names taken early go to the originals, except a class, which is the same object
    "from patch held call": "0/1/0 1",
    "patch from held call": "1 1",
    "import patch from held": "1",
    "import patch from unpatch held original": "0 yes",
    "patch from unpatch patch held call": "0+0/0+1/0+0 0+1",
    # imported again
    "patch import forget import call": "1",
    "import patch forget import call": "1",
    "patch import forget import forget import call unpatch call original": "1 0 yes",
    "patch import forget unpatch import call original": "0 yes",
    "import forget patch import call unpatch original": "1 yes",
    "import patch unpatch forget patch import call": "0+1",
    "patch from forget import held call unpatch held call": "1 1 0 0",
    # reloaded
    "patch import reload call": "1",
    "import patch reload call unpatch call original": "1 0 yes",
    "patch import reload reload call unpatch original": "1 yes",
    "import patch unpatch reload call original": "0 yes",
    "patch from reload held call": "1 1",
    "patch import forget import reload call unpatch original": "1 yes",
    # patched twice
    "import patch patch call unpatch call unpatch call original": "1+1 1+0 0+0 yes",
    "patch patch import call unpatch unpatch original": "1+1 yes",
    "patch import patch reload call unpatch unpatch original": "1+1 yes",
    "import patch patch unpatch_first call unpatch call original": "0+1 0+0 yes",
    "patch import patch forget import call unpatch_first call unpatch original": "1+1 0+1 yes",
    # somebody else wraps: before us, between, after us
    "import wrap patch call unpatch call unwrap original": "1f 0f yes",
    "import patch wrap call unpatch call": "1f 0f",
    "import patch wrap unwrap call unpatch original": "1 yes",
    "import patch wrap unpatch patch call": "0+1f",
    "import patch wrap patch call unpatch call unpatch call": "1+1f 1+0f 0+0f",
    "import patch wrap unpatch unwrap call patch call unpatch original": "0 0+1 yes",
    "patch import wrap reload call unpatch original": "1 yes",
}


def run(order: str) -> str:
    done = subprocess.run([sys.executable, str(STEPS), *order.split()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("order", ORDERS)
def test_order(order: str) -> None:
    assert run(order) == ORDERS[order]

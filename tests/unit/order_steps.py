"""Carries out one order of importing and patching, in the process that it is run as. See test_order_matrix.py.

    python order_steps.py STEP...

prints one word for every step that looks: for `call` and `held` the number of spans that a call of the function,
the method and the block made (one number where all three are equal), for `original` whether all three are the
very objects that the module made.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

from autoinstr.patch.ledger import Ledger
from autoinstr.testing import Recording, record

SOURCE = """
import contextlib

def train():
    return "trained"

class Trainer:
    def step(self):
        return "stepped"

@contextlib.contextmanager
def timer(label):
    yield label

MADE = train, vars(Trainer)["step"], timer
"""

MAP = """
map: toy
package: toy
spans:
  toy.train: {group: job, function: toy.work:train}
  toy.step: {group: step, function: toy.work:Trainer.step}
  toy.block: {group: rollout, block: toy.work:timer(label=here)}
"""

PACKAGE = {
    "toy": "",
    "toy.work": SOURCE,
    # takes the names while toy.work is there
    "toy.taker": "from toy.work import train, timer, Trainer",
}


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """The package, from text: no file is needed, and reloading always runs the text again."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname == "toy")

    def get_source(self, fullname: str) -> str:
        return PACKAGE[fullname]


class Steps:
    def __init__(self) -> None:
        self.recordings: list[tuple[Any, Recording]] = []
        self.all: list[Recording] = []
        self.ledgers: list[Ledger] = []
        self.held: Any = None
        self.before_foreign: tuple[Any, ...] = ()

    # -- what happens ---------------------------------------------------------------------------------

    def do_import(self) -> None:
        importlib.import_module("toy.work")

    def do_from(self) -> None:
        """Names taken by another module, which lives on."""
        self.held = importlib.import_module("toy.taker")

    def do_patch(self) -> None:
        manager = record(text=MAP)
        recording = manager.__enter__()
        self.recordings.append((manager, recording))
        self.all.append(recording)

    def do_unpatch(self) -> None:
        self.recordings.pop()[0].__exit__(None, None, None)

    def do_unpatch_first(self) -> None:
        """The older of two goes first."""
        self.recordings.pop(0)[0].__exit__(None, None, None)

    def do_forget(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
            del sys.modules[name]

    def do_reload(self) -> None:
        importlib.reload(sys.modules["toy.work"])

    def do_wrap(self) -> None:
        """Somebody else wraps all three."""
        work = sys.modules["toy.work"]
        self.before_foreign = work.train, vars(work.Trainer)["step"], work.timer
        train, step, timer = (foreign(function) for function in self.before_foreign)
        work.train, work.Trainer.step, work.timer = train, step, timer

    def do_unwrap(self) -> None:
        work = sys.modules["toy.work"]
        work.train, work.Trainer.step, work.timer = self.before_foreign

    # -- what is looked at ----------------------------------------------------------------------------

    def do_call(self) -> str:
        return self._calls(sys.modules["toy.work"])

    def do_held(self) -> str:
        return self._calls(self.held)

    def _calls(self, where: Any) -> str:
        for recording in self.all:
            recording.clear()
        foreign_calls.clear()
        assert where.train() == "trained"
        assert where.Trainer().step() == "stepped"
        with where.timer("here") as label:
            assert label == "here"
        counts = [
            "+".join(str(len(recording.named(name))) for recording in self.all)
            for name in ("toy.train", "toy.step", "toy.block")
        ]
        word = counts[0] if len(set(counts)) == 1 else "/".join(counts)
        return word + ("f" if len(foreign_calls) == 3 else "")

    def do_original(self) -> str:
        work = sys.modules["toy.work"]
        now = work.train, vars(work.Trainer)["step"], work.timer
        same = [a is b for a, b in zip(now, work.MADE, strict=True)]
        return "yes" if all(same) else "no" if not any(same) else "partly"


foreign_calls: list[str] = []


def foreign(function: Any) -> Any:
    @functools.wraps(function)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        foreign_calls.append(function.__name__)
        return function(*args, **kwargs)

    return theirs


def main(words: list[str]) -> None:
    sys.meta_path.append(Sources())
    steps = Steps()
    seen = []
    for word in words:
        said = getattr(steps, f"do_{word}")()
        if said is not None:
            seen.append(said)
    with contextlib.ExitStack() as left:
        for manager, _ in steps.recordings:
            left.push(manager)
    assert isinstance(sys.modules.get("toy.work", types), types.ModuleType)
    print(*seen)


if __name__ == "__main__":
    main(sys.argv[1:])

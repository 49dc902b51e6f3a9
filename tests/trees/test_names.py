"""The stand-in's names are NeMo RL's: functions and their parameters, and which function opens which timer label.

Held against the newest release (or, for what came later, the single files) that has the function; only
`signatures.json`, which has defaults too, is of one release.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

import pytest
from whole_trees import STAND_IN

from autoinstr.check.facts import Facts, from_json
from autoinstr.check.source import read_source

SNAPSHOTS = STAND_IN.parent / "snapshots"
NEWEST_FIRST = (
    "newest",
    "partial-sft-v2",
    "lens-with-goodput",
    "main-20260822",
    "v0.7.0",
    "v0.6.0",
    "v0.5.0",
    "v0.4.0",
)
NEWEST = NEWEST_FIRST[:2]
TIMER_CALLS = ("time", "start", "stop")


@cache
def release(name: str) -> Facts:
    return from_json((SNAPSHOTS / f"nemo_rl-{name}.json").read_text(encoding="utf-8"))


@cache
def stand_in() -> Facts:
    return read_source({"nemo_rl": STAND_IN / "nemo_rl"}, release("newest").callees, "stand-in")


def test_every_snapshot_is_held_against() -> None:
    assert {f"nemo_rl-{name}.json" for name in NEWEST_FIRST} == {path.name for path in SNAPSHOTS.glob("nemo_rl-*")}


def modules() -> list[str]:
    return [module for module in stand_in().modules if not any(part.startswith("_") for part in module.split("."))]


@pytest.mark.parametrize("module", modules())
def test_parameters(module: str) -> None:
    """Of each function that a release has too."""
    ours, theirs = {}, {}
    for function, parameters in stand_in().modules[module].functions.items():
        for facts in map(release, NEWEST_FIRST):
            known = facts.parameters(module, function)
            if known is not None:
                ours[function], theirs[function] = parameters.split(), known
                break
    assert ours == theirs


def opened(facts: Facts, module: str) -> dict[str, set[str]]:
    """Function → the labels that it opens itself; what an f-string fills in is a `*`."""
    found: dict[str, set[str]] = {}
    for opener, made in facts.modules[module].calls.items() if module in facts.modules else ():
        labels = {text for call in TIMER_CALLS for text in made.get(call, {}).get("0", ()) if not text.startswith("<")}
        if labels:
            found[opener] = labels
    return found


@pytest.mark.parametrize("module", [module for module in modules() if opened(stand_in(), module)])
def test_labels(module: str) -> None:
    """Opened by the function of the same name, or, where that is the stand-in's own, anywhere in the module.

    In the newest release, or in what came later: labels of the stand-in are no older than that.
    """
    wrong = []
    for opener, labels in opened(stand_in(), module).items():
        known: set[str] = set()
        for by_function in (opened(release(name), module) for name in NEWEST):
            known |= by_function.get(opener) or set().union(*by_function.values())
        wrong += [
            (opener, label)
            for label in labels
            if not any(fnmatchcase(label, k) or fnmatchcase(k, label) for k in known)
        ]
    assert wrong == []

"""The comparison of `tests/real/parity.py`, on sides made up here: what it lets pass, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

REAL = Path(__file__).parent / "real"
FILE = "tests/unit/algorithms/test_ppo.py"
TEST = f"{FILE}::test_a_step"


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REAL))
    import parity

    return parity


def span(name: str, *above: str, group: str = "step", bucket: str | None = None, **attributes: Any) -> dict[str, Any]:
    dotted = {key.replace("_", ".", 1): value for key, value in attributes.items()}
    found = {"name": name, "above": list(above), "group": group, "bucket": bucket, "attributes": dotted}
    return {**found, "error": False}


def side(*spans: dict[str, Any], test: str = TEST, ended: str = "passed") -> dict[str, Any]:
    return {"status": 0, "tests": {test: ended}, "why": {}, "spans": {test: list(spans)}}


def unexplained(parity: Any, in_tree: Any, autoinstr: Any, both: Any) -> list[str]:
    return parity.tell(FILE, {"in-tree": in_tree, "autoinstr": autoinstr, "both": both}).unexplained()  # type: ignore[no-any-return]


STEP = span("rl.ppo.step", "rl.ppo.job", rl_iteration=1)
JOB = span("rl.ppo.job", group="job")
UPDATE = {"group": "policy_update", "bucket": "productive"}
THEIRS = [JOB, STEP, span("rl.ppo.policy_update", "rl.ppo.step", "rl.ppo.job", **UPDATE)]
OURS = [JOB, STEP, span("rl.ppo.policy_training", "rl.ppo.step", "rl.ppo.job", **UPDATE)]


def test_a_name_that_the_maps_know_as_another_is_the_same_span(parity: Any) -> None:
    assert unexplained(parity, side(*THEIRS), side(*OURS), side(*THEIRS)) == []


def test_a_gap_that_is_listed_passes_and_what_lies_in_it_belongs_to_what_is_around_it(parity: Any) -> None:
    inside = span("rl.ppo.step", "rl.startup", "rl.ppo.job", rl_iteration=1)
    filled = [JOB, span("rl.startup", "rl.ppo.job", group="setup"), inside]
    assert unexplained(parity, side(JOB, STEP), side(*filled), side(*filled)) == []


def test_each_kind_of_difference_is_told(parity: Any) -> None:
    odd = [JOB, JOB, span("rl.ppo.step", group="rollout", bucket="idle", rl_iteration=2, rl_epoch=1)]
    assert unexplained(parity, side(*THEIRS), side(*odd), side(*THEIRS)) == [
        "`rl.ppo.job` (autoinstr): count: autoinstr 1 x span",
        f"`rl.ppo.policy_training` (autoinstr): count: in-tree 1 more in {TEST}",
        "`rl.ppo.step` (autoinstr): group: in-tree 1 x step; autoinstr 1 x rollout",
        "`rl.ppo.step` (autoinstr): bucket: in-tree 1 x None; autoinstr 1 x idle",
        "`rl.ppo.step` (autoinstr): parent: in-tree 1 x rl.ppo.job; autoinstr 1 x None",
        "`rl.ppo.step` (autoinstr): attribute rl.iteration: in-tree 1 x 1; autoinstr 1 x 2",
        "`rl.ppo.step` (autoinstr): attribute rl.epoch: autoinstr only",
    ]


def test_with_both_on_the_name_is_that_of_the_in_tree_telemetry(parity: Any) -> None:
    assert unexplained(parity, side(*THEIRS), side(*OURS), side(*OURS)) == [
        "`rl.ppo.policy_training` (both): spelt: in-tree 1 x rl.ppo.policy_update; both 1 x rl.ppo.policy_training"
    ]


def test_a_span_where_in_tree_has_none_needs_a_reason_and_is_the_same_on_both_trees(parity: Any) -> None:
    nothing, new = side(), span("rl.new.phase", group="reward")
    assert unexplained(parity, nothing, side(new), side({**new, "group": "step"})) == [
        f"`rl.new.phase` (autoinstr): gap: autoinstr 1 in {TEST}",
        f"`rl.new.phase` (both): gap: both 1 in {TEST}",
        "`rl.new.phase`: in gaps, group: autoinstr 1 x reward; both 1 x step",
    ]


def test_a_test_that_ends_otherwise_is_told_and_one_that_a_tree_has_not_is_left_out(parity: Any) -> None:
    failed = side(*OURS, ended="failed")
    ends = {"in-tree": "passed", "autoinstr": "failed", "both": "passed"}
    assert unexplained(parity, side(*THEIRS), failed, side(*THEIRS)) == [f"{TEST} ended differently: {ends}"]
    elsewhere = side(JOB, test=f"{FILE}::test_of_the_branch_only")
    assert unexplained(parity, elsewhere, side(*OURS), elsewhere) == []


def test_the_two_lines_of_a_written_span_are_one_and_a_span_belongs_to_the_test_that_had_started(
    parity: Any, tmp_path: Path
) -> None:
    import parity_observing as observing

    step = {"name": "rl.ppo.step", "id": "a", "parent": None, "start": 25, "attributes": {}, "error": False}
    ended = {**step, "attributes": {"rl.bucket": "idle", "parity.group": "step", "rl.epoch": 3}, "error": True}
    inner = {**step, "name": "rl.open", "id": "b", "parent": "a", "start": 26}
    (tmp_path / "7.jsonl").write_text("\n".join(map(json.dumps, (step, inner, ended))))
    tests = [{"test": "t1", "start": 10}, {"test": "t2", "start": 20}, {"test": "t3", "start": 30}]
    kept = {"group": "step", "bucket": "idle", "attributes": {"rl.epoch": 3}, "error": True, "above": []}
    assert observing.by_test(observing.written_spans(tmp_path), tests) == {
        "t2": [
            {"name": "rl.ppo.step", **kept},
            {
                "name": "rl.open",
                "group": None,
                "bucket": None,
                "attributes": {},
                "error": False,
                "above": ["rl.ppo.step"],
            },
        ]
    }

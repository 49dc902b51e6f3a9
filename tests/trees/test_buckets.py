"""What holds of buckets in every tree. The trees are what comes out, so this is a rule of the maps."""

from __future__ import annotations

import pytest
from whole_trees import catalog, every_tree, lines_below

TREES = [pytest.param(tree, id=f"{file}-{number}") for number, (file, tree) in enumerate(every_tree())]
ALGORITHMS_THAT_VALIDATE = {"sft", "dpo", "rm", "distillation", "xtoken_distillation", "grpo", "ppo"}


@pytest.mark.parametrize("tree", TREES)
def test_an_umbrella_has_no_bucket(tree: str) -> None:
    umbrellas = {f"({name})" for name, group in catalog().table.groups.items() if group.bucket is None}
    assert {"(job)", "(step)", "(rollout)", "(per_prompt)", "(evaluate)"} < umbrellas
    assert not [line for line in tree.splitlines() if "[" in line and line.split()[1] in umbrellas]


@pytest.mark.parametrize("tree", TREES)
def test_validation_is_overhead_or_idle(tree: str) -> None:
    below = [line for line in lines_below(tree, r"\(evaluate\)") if "[" in line]
    assert not [line for line in below if "[overhead]" not in line and "[idle]" not in line]


def test_every_algorithm_validates_in_a_tree() -> None:
    tops = {line.split()[0] for _, tree in every_tree() for line in tree.splitlines() if "(evaluate)" in line}
    assert tops == {f"rl.{algorithm}.evaluate" for algorithm in ALGORITHMS_THAT_VALIDATE}


def test_what_a_rollout_of_the_single_controller_puts_counts_with_the_prompts() -> None:
    below = [line for _, tree in every_tree() for line in lines_below(tree, r"rl\.sc\.generate_and_push")]
    puts = [line.split()[:2] for line in below if "rl.data_plane." in line]
    assert puts
    assert set(map(tuple, puts)) == {("rl.data_plane.put", "(per_prompt)")}
    assert not [line for line in below if "[" in line]

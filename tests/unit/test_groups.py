"""AUTOINSTR_SPAN_GROUPS: presets, groups and span names, added and taken away from left to right."""

from __future__ import annotations

import pytest

from autoinstr.maps.groups import GroupTable, explain_unknown, select
from autoinstr.maps.model import Group, Place

PLACE = Place("groups.yaml", 1, 1)
TABLE = GroupTable(
    {name: Group(name, "", None, True, PLACE) for name in ("job", "setup", "step", "rollout", "per_prompt")},
    {"default": ("job", "setup"), "per_step": ("job", "setup", "step", "rollout")},
)


def groups(spec: str) -> set[str]:
    selection = select(spec, TABLE)
    assert selection.unknown == ()
    return set(selection.groups)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("default", {"job", "setup"}),
        ("step", {"step"}),
        ("default,step", {"job", "setup", "step"}),
        (" default , step ,, ", {"job", "setup", "step"}),
        ("all", {"job", "setup", "step", "rollout", "per_prompt"}),
        ("all,-per_prompt", {"job", "setup", "step", "rollout"}),
        ("per_step,-default", {"step", "rollout"}),
        ("all,-all", set()),
        ("per_step, - job", {"setup", "step", "rollout"}),
        # from left to right: what is added later stays
        ("-job,job", {"job"}),
        ("job,-job", set()),
        ("-default,per_step", {"job", "setup", "step", "rollout"}),
        # only subtraction starts from the default
        ("-job", {"setup"}),
        ("-job,-setup", set()),
        ("-step", {"job", "setup"}),
    ],
)
def test_groups_and_presets(spec: str, expected: set[str]) -> None:
    assert groups(spec) == expected


def test_all_holds_the_groups_of_maps_too() -> None:
    table = TABLE.extended([Group("mine", "", None, True, PLACE)])
    assert "mine" in select("all", table).groups
    assert "mine" not in select("per_step", table).groups
    assert "mine" in select("default,mine", table).groups


def test_a_span_name_wins_over_its_group() -> None:
    selection = select("step,-rl.grpo.step,rl.sft.job", TABLE)
    assert not selection.selects("rl.grpo.step", "step")
    assert selection.selects("rl.dpo.step", "step")
    assert selection.selects("rl.sft.job", "job")
    assert not selection.selects("rl.grpo.job", "job")


def test_a_span_name_wins_over_its_group_in_any_order() -> None:
    assert select("rl.grpo.step,-step", TABLE).selects("rl.grpo.step", "step")
    assert not select("-rl.grpo.step,step", TABLE).selects("rl.grpo.step", "step")


def test_the_last_mention_of_a_span_name_wins() -> None:
    assert select("job,rl.x,-rl.x", TABLE).without_spans == {"rl.x"}
    assert select("job,-rl.x,rl.x", TABLE).spans == {"rl.x"}


def test_taking_only_a_span_away_starts_from_the_default() -> None:
    selection = select("-rl.grpo.job", TABLE)
    assert selection.groups == {"job", "setup"}
    assert not selection.selects("rl.grpo.job", "job")


@pytest.mark.parametrize(("spec", "unknown"), [("stp,job", ("stp",)), ("-nope,job", ("nope",)), ("none", ("none",))])
def test_unknown_names_are_listed_and_ignored(spec: str, unknown: tuple[str, ...]) -> None:
    selection = select(spec, TABLE)
    assert selection.unknown == unknown
    assert selection.groups <= {"job"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stpe", "unknown span group 'stpe', did you mean 'step'?; it is left out"),
        ("per-step", "unknown span group 'per-step', did you mean 'per_step'?; it is left out"),
        ("STEP", "unknown span group 'STEP', did you mean 'step'?; it is left out"),
        (
            "xyz",
            "unknown span group 'xyz'; known: default, per_step, all, job, setup, step, rollout, per_prompt; "
            "it is left out",
        ),
    ],
)
def test_unknown_names_are_explained(name: str, told: str) -> None:
    assert explain_unknown(name, TABLE) == told


def test_the_quick_look_at_the_groups_agrees_with_the_yaml() -> None:
    from autoinstr.maps import catalog

    table = catalog.Catalog(print).table
    assert catalog._group_words() == {*table.groups, *table.presets}


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ("default", True),
        ("per_step,-job, rl.grpo.step", True),
        ("all", True),
        ("", True),
        ("per_stp", False),
        ("rl.grpo.stp", False),
    ],
)
def test_the_quick_look_knows_a_spec(spec: str, known: bool) -> None:
    from autoinstr.maps import catalog

    maps = catalog.Catalog(print)
    maps.add_builtin("all")
    assert maps.knows(spec) is known

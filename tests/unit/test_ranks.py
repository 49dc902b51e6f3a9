"""AUTOINSTR_RANKS: which processes of a distributed run are traced at all."""

from __future__ import annotations

import pytest

from autoinstr import ranks

SIZE = 16
PER_NODE = 8


def traced(spec: str) -> list[int]:
    """The ranks of a run of two nodes that `spec` picks."""
    found = []
    for rank in range(SIZE):
        env = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(rank % PER_NODE)}
        selected, wrong = ranks.is_selected(spec, env)
        assert wrong is None
        if selected:
            found.append(rank)
    return found


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("all", list(range(SIZE))),
        ("first", [0]),
        ("last", [15]),
        ("first_per_node", [0, 8]),
        ("0", [0]),
        ("0,8,15", [0, 8, 15]),
        (" 0 , 8 ,", [0, 8]),
        ("99", []),
        ("sample:0", []),
        ("sample:0.0", []),
        ("sample:1", list(range(SIZE))),
    ],
)
def test_every_form(spec: str, expected: list[int]) -> None:
    assert traced(spec) == expected


def test_a_sample_is_about_its_fraction_the_same_in_every_run_and_grows() -> None:
    def sample(fraction: float) -> set[int]:
        spec = f"sample:{fraction}"
        return {rank for rank in range(2000) if ranks.is_selected(spec, {"RANK": str(rank)})[0]}

    tenth, fifth = sample(0.1), sample(0.2)
    assert 150 < len(tenth) < 250
    assert 330 < len(fifth) < 470
    assert tenth < fifth
    assert sorted(tenth)[:5] == sorted(sample(0.1))[:5] == [9, 39, 49, 51, 55]


@pytest.mark.parametrize("spec", ["all", "first", "last", "first_per_node", "3", "sample:0"])
@pytest.mark.parametrize("env", [{}, {"WORLD_SIZE": "8"}, {"LOCAL_RANK": "3"}, {"RANK": "not a number"}])
def test_a_process_without_a_rank_always_counts(spec: str, env: dict[str, str]) -> None:
    assert ranks.is_selected(spec, env) == (True, None)


@pytest.mark.parametrize(
    "spec",
    ["frist", "sample:", "sample:2", "sample:-0.1", "sample:ten", "0;8", "-1", "0-8", "", ",", "sample:nan", "²"],
)
@pytest.mark.parametrize("env", [{"RANK": "3", "WORLD_SIZE": "8"}, {}])
def test_what_is_not_understood_is_one_line_and_means_all(spec: str, env: dict[str, str]) -> None:
    """In the driver too, which has no rank: it is the one whose output is read."""
    selected, wrong = ranks.is_selected(spec, env)
    assert selected
    assert wrong == (
        f"AUTOINSTR_RANKS={spec!r} is none of all, first, last, first_per_node, 0,8,16 or sample:0.1; all is used"
    )


def test_what_the_launcher_does_not_say_is_not_held_against_the_process() -> None:
    assert ranks.is_selected("last", {"RANK": "3"}) == (True, None)
    assert ranks.is_selected("first_per_node", {"RANK": "3"}) == (True, None)

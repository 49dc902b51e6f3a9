"""Scopes: what an entry says of every span opened below it, through calls and coroutines, and not in raw threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from autoinstr.testing import record

Make = Callable[..., Any]

SOURCE = """
def generate(): pass
def wait(): pass
def put(): pass
def evaluate(inner): return inner()
def rollout(inner): return inner()
async def later(): put(); generate()
"""
MAP = """
map: s
package: {m}
spans:
  evaluate: {{group: evaluate, function: '{m}:evaluate', scope: {{bucket: overhead}}}}
  rollout: {{group: rollout, function: '{m}:rollout', scope: {{groups: {{data_plane: per_prompt}}}}}}
  generate: {{group: generation, function: '{m}:generate'}}
  wait: {{group: efficiency, function: '{m}:wait'}}
  put: {{group: data_plane, function: '{m}:put'}}
"""


def recording(module: Any, groups: str = "all") -> Any:
    return record(text=MAP.format(m=module.__name__), groups=groups)


def test_a_bucket_scope_makes_leaf_spans_overhead_and_leaves_idle_ones(make: Make) -> None:
    module = make(SOURCE)
    with recording(module) as spans:
        module.generate()
        module.evaluate(lambda: (module.generate(), module.wait(), module.rollout(module.generate)))
        module.generate()
    assert spans.tree() == (
        "generate [productive]\n"
        "evaluate\n"
        "  generate [overhead]\n"
        "  wait [idle]\n"
        "  rollout\n"
        "    generate [overhead]\n"
        "generate [productive]"
    )


def test_a_group_scope_moves_spans_to_a_group_that_has_no_bucket(make: Make) -> None:
    module = make(SOURCE)
    with recording(module) as spans:
        module.put()
        module.rollout(module.put)
    assert spans.tree() == "put [overhead]\nrollout\n  put"
    assert [node.group for node in spans.tree().roots] == ["data_plane", "rollout"]
    assert spans.tree().roots[1].children[0].group == "per_prompt"


def test_the_group_that_it_counts_as_decides_whether_it_is_on(make: Make) -> None:
    module = make(SOURCE)
    for groups, expected in (
        ("rollout,data_plane", "put [overhead]\nrollout"),
        ("rollout,per_prompt", "rollout\n  put"),
    ):
        with recording(module, groups) as spans:
            module.put()
            module.rollout(module.put)
        assert spans.tree() == expected


def test_a_scope_holds_although_its_own_span_is_off(make: Make) -> None:
    module = make(SOURCE)
    for groups, expected in (
        ("generation", "generate [overhead]\ngenerate [productive]"),
        ("data_plane", "put [overhead]"),
        ("generation,data_plane,per_prompt", "generate [overhead]\nput\ngenerate [productive]\nput [overhead]"),
    ):
        with recording(module, groups) as spans:
            module.evaluate(module.generate)
            module.rollout(module.put)
            module.generate()
            module.put()
        assert spans.tree() == expected


def test_what_passes_through_a_scope_without_a_span_is_recorded_once(make: Make) -> None:
    module = make(SOURCE + "def fail(): raise ValueError('no')\n")
    outer = MAP.replace("generate:", "generate: {{group: generation, function: '{m}:fail'}}\n  later:", 1)
    text = outer.format(m=module.__name__) + f"  job: {{group: job, function: '{module.__name__}:rollout'}}\n"
    with record(text=text, groups="job,generation") as spans:
        with pytest.raises(ValueError, match="no"):
            module.rollout(lambda: module.evaluate(module.fail))
    assert spans.tree() == "job !ValueError\n  generate [overhead] !ValueError"
    assert [len(span.events) for span in spans.spans] == [1, 0]


def test_a_scope_that_changes_nothing_patches_nothing(make: Make) -> None:
    module = make(SOURCE)
    evaluate, rollout = module.evaluate, module.rollout
    with recording(module, "job,efficiency"):
        assert module.evaluate is evaluate
        assert module.rollout is rollout
    with recording(module, "generation"):
        assert module.evaluate is not evaluate
        assert module.rollout is rollout


def test_scopes_follow_coroutines_and_not_raw_threads(make: Make) -> None:
    module = make(SOURCE)

    async def gathered() -> None:
        await asyncio.gather(module.later(), asyncio.create_task(module.later()))

    def in_a_thread() -> None:
        thread = threading.Thread(target=module.generate)
        thread.start()
        thread.join()

    with recording(module) as spans:
        module.evaluate(lambda: module.rollout(lambda: asyncio.run(gathered())))
        module.evaluate(in_a_thread)
    below = "    put\n    generate [overhead]\n"
    assert spans.tree() == "evaluate\n  rollout\n" + below * 2 + "evaluate\ngenerate [productive]"

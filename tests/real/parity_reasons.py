"""The differences between NeMo RL's own telemetry and autoinstr that `parity.py` takes for right, with the reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """Patterns of a span's name (autoinstr's), of what is said of it, and of a test's node id."""

    why: str
    spans: str = ".*"
    difference: str = ".*"
    tests: str = ".*"


_BOTH_TIMERS = "the loop has two such timers in a step; in-tree there is a span for one of them"
_MORE = r"count: \w+ \d+ x span"
DIFFERENCES = (
    Reason(
        "where an engine stays asleep for a save, the loop opens the timer for nothing, so that the label is there; "
        "in-tree leaves that one out, and here it is a span of no length",
        spans=r"rl\.idle\.refit_bubble",
        difference=_MORE,
    ),
    Reason(
        "the plain tree starts and stops the timer by hand, so an exception is not seen there, and the span is marked "
        "`autoinstr.lost_end`",
        spans=r"rl\.idle\.refit_bubble",
        difference=r"error: in-tree \d+ x True; autoinstr \d+ x False",
    ),
    Reason(
        "the test makes no actor of the collector's class, which the maps patch where Ray does, and puts a double in "
        "the place of the method that is the span's",
        spans=r"rl\.grpo\.generation",
        difference=r"count: in-tree 1 more in .*/test_async_utils\.py::\w+::test_process_batch_\w+",
    ),
    Reason(
        "the collector's actor ends while it is open, and nemo-lens gives a span its attributes after its start: what "
        "is on record of it is bare",
        spans=r"rl\.idle\.generation_limit_pause",
        difference=r"(group|attribute rl\.efficiency\.category): in-tree 1 x None; autoinstr 1 x .*",
    ),
    Reason(_BOTH_TIMERS, spans=r"rl\.(distillation|ppo)\.data_processing", difference=_MORE),
)
"""Where in-tree has a span of that name in the same test."""

_SYNC = r".*grpo_train_sync.*"
_ASYNC_PPO = r".*::(test_async_ppo_|test_ppo_train_.*\[True\]).*"
GAPS = (
    Reason("`grpo_sync.py` has no spans", spans=r"rl\.grpo\..*", tests=_SYNC),
    Reason("`async_ppo_train` has no spans", spans=r"rl\.(ppo\..*|idle\.refit_bubble)", tests=_ASYNC_PPO),
    Reason("a timer without a span", spans=r"rl\.ppo\.value_inference"),
    Reason("a measurement without a span", spans=r"rl\.init\.total"),
    Reason("set-up has no span", spans=r"rl\.(startup|setup\..*)"),
    Reason("weight transfer has no span", spans=r"rl\.weight_sync\.transfer"),
    Reason("rollouts have no span below a batch", spans=r"rl\.rollout\..*"),
    Reason(
        "the SingleController has no span",
        spans=r"rl\.(sc\..*|idle\..*)",
        tests=r".*/(single_controller|experience)/.*",
    ),
    Reason("the transfer queue's client has no span", spans=r"rl\.data_plane\..*"),
    Reason("evaluation has no span", spans=r"rl\.eval\..*"),
    Reason("NeMo-Gym has no span", spans=r"rl\.gym\..*"),
    Reason("on-policy distillation's teachers have no span", spans=r"rl\.opd\..*"),
    Reason("cross-tokenizer distillation has no span", spans=r"rl\.xtoken_distillation\..*"),
    Reason("calls for one sample have no span", spans=r"rl\.\w+\.generate(_text)?_async"),
)
"""Where in-tree has no span of that name in the test: what it does not cover."""

ATTRIBUTES = {
    ("rl.rm.step", "rl.epoch"): "that of DPO has it",
    ("rl.ppo.evaluate", "rl.step"): "that of GRPO has it",
    ("rl.ppo.generation", "rl.num_generations_per_prompt"): "that of GRPO has it",
    ("rl.distillation.generation", "rl.num_generations_per_prompt"): "that of GRPO has it",
    ("rl.ppo.policy_training", "rl.ppo_epoch"): "which of a step's epochs it is",
    ("rl.ppo.value_training", "rl.ppo_epoch"): "which of a step's epochs it is",
    ("rl.idle.refit_bubble", "autoinstr.lost_end"): "marks a block that was not closed by its own end",
}
"""A span and an attribute that in-tree does not set on it."""

OUTCOMES: tuple[Reason, ...] = ()
"""Tests that do not end alike on all sides."""


def of_difference(name: str, difference: str) -> str | None:
    return _first(r for r in DIFFERENCES if re.fullmatch(r.spans, name) and re.fullmatch(r.difference, difference))


def of_gap(name: str, test: str) -> str | None:
    return _first(r for r in GAPS if re.fullmatch(r.spans, name) and re.fullmatch(r.tests, test))


def of_attribute(name: str, key: str) -> str | None:
    return ATTRIBUTES.get((name, key))


def of_outcome(test: str) -> str | None:
    return _first(r for r in OUTCOMES if re.fullmatch(r.tests, test))


def _first(found: Iterable[Reason]) -> str | None:
    return next((reason.why for reason in found), None)

"""A series that the training code reports itself is left to it; the others of the same logger are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autoinstr.testing import record

Make = Callable[..., Any]

SOURCE = """
meter = None

class Logger:
    def log(self, metrics):
        if "wrong" in metrics:
            raise ValueError("wrong")
        if meter is not None:
            meter.create_gauge("toy.reward").set(metrics["reward"])
            meter.create_gauge("toy.old_loss").set(metrics["loss"])
        metrics.clear()

    def answer(self, tokens):
        if meter is not None:
            meter.create_histogram("toy.tokens").record(tokens)
        return {"seconds": 2}
"""
MAP = """
map: toy
package: {m}
metrics:
  '{m}:Logger.log':
    values: args.metrics
    series:
      toy.reward: {{from: reward}}
      toy.loss: {{from: loss, also: [toy.old_loss, toy.older_loss]}}
      toy.lr: {{from: lr}}
  '{m}:Logger.answer':
    series:
      toy.tokens: {{value: args.tokens, kind: histogram, boundaries: [10]}}
      toy.seconds: {{value: return.seconds}}
"""


def run(module: Any) -> None:
    logger = module.Logger()
    logger.log({"reward": 1.0, "loss": 2.0, "lr": 3.0})
    logger.answer(5)


@pytest.fixture
def module(make: Make) -> Any:
    return make(SOURCE)


def test_where_the_code_reports_a_series_itself_there_is_one_of_it(module: Any) -> None:
    with record(text=MAP.format(m=module.__name__)) as recorded:
        module.meter = recorded.meter_provider.get_meter("in_tree")
        run(module)
        run(module)
        by_scope = {
            scope.scope.name: sorted(metric.name for metric in scope.metrics)
            for resource in recorded.metric_reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
        }
    assert by_scope == {
        "in_tree": ["toy.old_loss", "toy.reward", "toy.tokens"],
        "autoinstr": ["toy.lr", "toy.seconds"],
    }


def test_where_it_does_not_all_are_ours(module: Any) -> None:
    with record(text=MAP.format(m=module.__name__)) as recorded:
        run(module)
        assert recorded.series() == "\n".join(
            [
                "toy.loss gauge 2.0",
                "toy.lr gauge 3.0",
                "toy.reward gauge 1.0",
                "toy.seconds gauge 2.0",
                "toy.tokens histogram count=1 sum=5.0",
            ]
        )


def test_what_a_logger_was_handed_counts_even_where_it_empties_it_or_raises(module: Any) -> None:
    with record(text=MAP.format(m=module.__name__)) as recorded:
        with pytest.raises(ValueError, match="wrong"):
            module.Logger().log({"reward": 1.0, "wrong": True})
        module.Logger().log({"loss": 2.0})
        assert recorded.series("toy.reward", "toy.loss") == "toy.loss gauge 2.0\ntoy.reward gauge 1.0"

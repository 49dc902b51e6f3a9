"""What a tapped logger costs: one logged training step, against the untapped call and against plain OpenTelemetry.

    python tests/bench/metrics.py [--rounds N] [--json FILE]

The logger is the fake package's `Logger` in memory, which does next to nothing; a step is 60 keys, of which 14 are
series of `span_maps/nemo_rl/metrics.yaml`. `by hand` sets the same 14 instruments with no tap between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from interleave import Side, compare
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from autoinstr.testing import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake_training"))

KEYS = ("reward", "kl_penalty", "loss", "critic/loss", "approx_entropy", "mean_gen_tokens_per_sample", "grad_norm",
        "lr", "vllm/prompt_tokens", "vllm/generation_tokens", "vllm/prompt_length_mean",
        "vllm/generation_length_mean", "vllm/generations_ok", "vllm/generations_failed")  # fmt: skip
STEP = {**dict.fromkeys(KEYS, 0.5), **{f"other/{n}": float(n) for n in range(46)}}
CALLS = 50
ROUNDS = 200


def logging(log: Callable[..., Any], history: list[Any]) -> Callable[[], float]:
    def sample() -> float:
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            log(STEP, 7, prefix="train")
        took = (time.perf_counter_ns() - start) / CALLS
        history.clear()
        return took

    return sample


def by_hand(log: Callable[..., Any], history: list[Any]) -> Callable[[], float]:
    meter = MeterProvider([InMemoryMetricReader()], exemplar_filter=AlwaysOffExemplarFilter()).get_meter("by hand")
    record_all = [(key, meter.create_gauge(key.replace("/", ".")).set) for key in KEYS]

    def logged(metrics: dict[str, Any], step: int, prefix: str) -> None:
        for key, record_one in record_all:
            record_one(metrics[key], {})
        log(metrics, step, prefix)

    return logging(logged, history)


def main() -> None:
    rows = report.Rows(report.parser(__doc__ or "", ROUNDS).parse_args())

    from nemo_rl.utils.logger import Logger

    plain = Logger({"log_dir": "unused"})
    untapped = plain.log_metrics  # bound before the tap: the original
    with record(builtin="nemo_rl.metrics") as run:
        tapped = Logger({"log_dir": "unused"})
        ours = Side("tapped", logging(tapped.log_metrics, tapped.history))
        by_itself = Side("untapped", logging(untapped, plain.history))
        manual = Side("by hand", by_hand(untapped, plain.history))
        what = f"logged step, {len(STEP)} keys, {len(KEYS)} series"
        rows.ratio(what, "set by hand", lambda rounds: compare(ours, manual, rounds))
        rows.difference(what, "untapped", lambda rounds: compare(ours, by_itself, rounds))
        assert len(run.series().lines) == len(KEYS)
    rows.finish()


if __name__ == "__main__":
    main()

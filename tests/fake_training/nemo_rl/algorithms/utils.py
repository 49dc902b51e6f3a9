"""Pieces that all loops use."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import EOS, PAD

WALL_CLOCK_EFFICIENCY_CATEGORIES = (
    "init/total",
    "idle/buffer_starvation",
    "idle/refit_bubble",
    "idle/validation",
    "idle/refit_event_wait",
    "idle/generation_limit_pause",
)
THREAD_ACCUMULATED_EFFICIENCY_CATEGORIES = ("idle/buffer_full_backoff", "wasted/failed_trajectory")


class DigitTokenizer:
    """One token per digit."""

    pad_token_id = PAD
    eos_token_id = EOS

    def encode(self, text: str) -> list[int]:
        return [int(digit) for digit in text]

    def decode(self, token_ids: Any) -> str:
        return "".join(str(int(token)) for token in token_ids if token < PAD)


def get_tokenizer(tokenizer_config: dict[str, Any], get_processor: bool = False) -> DigitTokenizer:
    _pace.work("tokenizer")
    return DigitTokenizer()


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


def calculate_baseline_and_std_per_prompt(
    prompts: np.ndarray,
    rewards: np.ndarray,
    valid_mask: np.ndarray,
    leave_one_out_baseline: bool = True,
    std_rewards: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """For each sample, the mean reward of the others with its prompt, and the deviation among all of them."""
    baseline, std = np.zeros_like(rewards), np.zeros_like(rewards)
    spread = rewards if std_rewards is None else std_rewards
    _, group_of = np.unique(prompts, axis=0, return_inverse=True)
    group_of = group_of.reshape(-1)
    for group in range(group_of.max() + 1):
        members = (group_of == group) & (valid_mask > 0)
        count = members.sum()
        total = rewards[members].sum()
        if leave_one_out_baseline and count > 1:
            baseline[members] = (total - rewards[members]) / (count - 1)
        else:
            baseline[members] = total / max(count, 1)
        std[members] = spread[members].std()
    return baseline, std


def print_performance_metrics(
    train_results: dict[str, Any],
    metrics: dict[str, Any],
    timing_metrics: dict[str, float],
    master_config: Any,
    *,
    num_prompts_per_step: int,
    num_generations_per_prompt: int,
    is_async_rl: bool,
) -> dict[str, float]:
    step_seconds = timing_metrics["total_step_time"]
    return {
        "samples_per_sec": num_prompts_per_step * num_generations_per_prompt / step_seconds,
        "tokens_per_sec": metrics["total_num_tokens"] / step_seconds,
    }


def print_efficiency_summary(
    efficiency_metrics: dict[str, float], total_wall_time_s: float, step: int
) -> dict[str, float]:
    """What was lost, in seconds and as a share of the wall time since training began."""
    loggable: dict[str, float] = {}
    for category in WALL_CLOCK_EFFICIENCY_CATEGORIES:
        lost = efficiency_metrics.get(category, 0.0)
        loggable[f"efficiency/{category}_s"] = lost
        loggable[f"efficiency/{category}_pct"] = 100 * lost / total_wall_time_s
    for category in THREAD_ACCUMULATED_EFFICIENCY_CATEGORIES:
        loggable[f"efficiency/{category}_s"] = efficiency_metrics.get(category, 0.0)
    waste = sum(efficiency_metrics.get(category, 0.0) for category in WALL_CLOCK_EFFICIENCY_CATEGORIES)
    waste = min(waste, total_wall_time_s)
    loggable["efficiency/total_waste_s"] = waste
    loggable["efficiency/productive_time_s"] = total_wall_time_s - waste
    loggable["efficiency/efficiency_pct"] = 100 * (1 - waste / total_wall_time_s)
    loggable["efficiency/total_wall_time_s"] = total_wall_time_s
    return loggable

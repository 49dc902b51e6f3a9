"""Advantages: how much better than the other answers to the same prompt."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.algorithms.utils import calculate_baseline_and_std_per_prompt


class GRPOAdvantageEstimator:
    def __init__(self, estimator_config: Any, loss_config: Any) -> None:
        pass

    def compute_advantage(
        self, prompt_ids: np.ndarray, rewards: np.ndarray, mask: np.ndarray, **kwargs: Any
    ) -> np.ndarray:
        baseline, std = calculate_baseline_and_std_per_prompt(prompt_ids, rewards, np.ones_like(rewards))
        # The small constant keeps a group that agrees (std 0) at advantage 0.
        return ((rewards - baseline) / (std + 1e-6))[:, None] * mask

"""The losses, with their gradients written out: there is no autograd here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class ClippedPGLossConfig:
    reference_policy_kl_penalty: float = 0.01
    ratio_clip_min: float = 0.2
    ratio_clip_max: float = 0.2
    use_importance_sampling_correction: bool = False


class ClippedPGLossFn:
    def __init__(self, cfg: ClippedPGLossConfig, use_fused_linear_logprobs: bool = False) -> None:
        self.cfg = cfg

    def __call__(
        self,
        next_token_logprobs: np.ndarray,
        data: Any,
        global_valid_seqs: float,
        global_valid_toks: float,
    ) -> tuple[float, dict[str, float]]:
        loss, _, metrics = self.evaluate(next_token_logprobs, data, global_valid_toks)
        return loss, metrics

    def evaluate(
        self, logprobs: np.ndarray, data: Any, valid_tokens: float
    ) -> tuple[float, np.ndarray, dict[str, float]]:
        """The loss, its derivative by each of `logprobs`, and metrics; means over the valid tokens."""
        mask = data["token_mask"] * data["sample_mask"][:, None]
        advantages, previous = data["advantages"], data["prev_logprobs"]
        ratio = np.exp(logprobs - previous)
        clipped = np.clip(ratio, 1 - self.cfg.ratio_clip_min, 1 + self.cfg.ratio_clip_max)
        weight = np.ones_like(ratio)
        if self.cfg.use_importance_sampling_correction:
            weight = np.exp(previous - data["generation_logprobs"])
        # Where clipping makes the objective smaller, it is constant there: no gradient.
        follows = ratio * advantages <= clipped * advantages
        # Schulman's low-variance estimator of the divergence, as GRPO uses it.
        log_ratio = data["reference_policy_logprobs"] - logprobs
        divergence = np.exp(log_ratio) - log_ratio - 1
        penalty = self.cfg.reference_policy_kl_penalty

        objective = np.minimum(ratio * advantages, clipped * advantages) * weight
        loss = float(np.sum(mask * (penalty * divergence - objective)) / valid_tokens)
        gradient = penalty * (1 - np.exp(log_ratio)) - follows * ratio * advantages * weight
        metrics = {
            "kl_penalty": float(np.sum(mask * divergence) / valid_tokens),
            "probs_ratio": float(np.sum(mask * ratio) / valid_tokens),
            "approx_entropy": float(-np.sum(mask * logprobs) / valid_tokens),
        }
        return loss, mask * gradient / valid_tokens, metrics


class _LikelihoodOfAnswers:
    """All supervised losses are this one here: the right answers become likely."""

    def evaluate(
        self, logprobs: np.ndarray, data: Any, valid_tokens: float
    ) -> tuple[float, np.ndarray, dict[str, float]]:
        mask = data["token_mask"] * data["sample_mask"][:, None]
        return float(-np.sum(mask * logprobs) / valid_tokens), -mask / valid_tokens, {}


class NLLLossFn(_LikelihoodOfAnswers):
    def __init__(self, use_fused_linear_logprobs: bool = False) -> None:
        pass


class PreferenceLossFn(_LikelihoodOfAnswers):
    pass


class DPOLossFn(PreferenceLossFn):
    def __init__(self, cfg: Any, use_fused_linear_logprobs: bool = False) -> None:
        self.cfg = cfg


class DistillationLossFn(_LikelihoodOfAnswers):
    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg


class CrossTokenizerDistillationLossFn(_LikelihoodOfAnswers):
    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg


class MseValueLossFn:
    """Of the value model."""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    def evaluate(self, values: np.ndarray, data: Any) -> tuple[float, np.ndarray]:
        """The loss, and its derivative by each of `values`: means over the samples."""
        error = values - data["returns"]
        return float(np.mean(error**2)), 2 * error / error.size

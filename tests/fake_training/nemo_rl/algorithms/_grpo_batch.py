"""What the loops do to a batch between two timer blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.distributed.batched_data_dict import BatchedDataDict


def mark_generated_tokens(message_logs: list[list[dict]]) -> None:
    """Only tokens that the policy generated count in the loss."""
    for log in message_logs:
        for message in log:
            generated = message["role"] == "assistant" and "generation_logprobs" in message
            message["token_loss_mask"] = np.full(len(message["token_ids"]), float(generated))


def train_data_of(flat: BatchedDataDict, input_lengths: np.ndarray, sample_mask: Any) -> BatchedDataDict:
    return BatchedDataDict(
        {
            "input_ids": flat["token_ids"],
            "input_lengths": input_lengths,
            "generation_logprobs": flat["generation_logprobs"],
            "token_mask": flat["token_loss_mask"],
            "sample_mask": np.asarray(sample_mask),
        }
    )


def train_metrics(
    train_results: dict[str, Any],
    rewards: np.ndarray,
    advantages: np.ndarray,
    token_mask: np.ndarray,
    prompt_lengths: np.ndarray,
    input_lengths: np.ndarray,
) -> dict[str, Any]:
    responses = advantages[token_mask > 0]
    return {
        "loss": train_results["loss"],
        "grad_norm": train_results["grad_norm"],
        "reward": float(np.mean(rewards)),
        "mean_prompt_length": float(np.mean(prompt_lengths)),
        "total_num_tokens": float(np.sum(input_lengths)),
        "advantages/mean": float(responses.mean()),
        "advantages/max": float(responses.max()),
        "advantages/min": float(responses.min()),
        **train_results["all_mb_metrics"],
    }

"""The columns that the data plane carries."""

from __future__ import annotations

LP_SEED_FIELDS = ("input_ids", "input_lengths", "token_mask", "sample_mask")
DP_TRAIN_FIELDS = (
    "input_ids",
    "input_lengths",
    "generation_logprobs",
    "prev_logprobs",
    "reference_policy_logprobs",
    "advantages",
    "token_mask",
    "sample_mask",
)

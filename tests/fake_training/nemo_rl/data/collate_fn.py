"""From samples to a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.data.llm_message_utils import add_loss_mask_to_message_log, batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict


def rl_collate_fn(data_batch: list[dict[str, Any]]) -> BatchedDataDict:
    return BatchedDataDict(
        {
            "message_log": [list(sample["message_log"]) for sample in data_batch],
            "length": np.array([sample["length"] for sample in data_batch]),
            "loss_multiplier": np.array([sample["loss_multiplier"] for sample in data_batch]),
            "task_name": [sample["task_name"] for sample in data_batch],
            "extra_env_info": [sample["extra_env_info"] for sample in data_batch],
            "idx": [sample["idx"] for sample in data_batch],
        }
    )


def preference_collate_fn(
    data_batch: list[dict[str, Any]],
    tokenizer: Any,
    make_sequence_length_divisible_by: int,
    add_loss_mask: bool,
) -> BatchedDataDict:
    """Rows of tokens, chosen and rejected in turn; of the rejected ones nothing counts."""
    both = [pair[kind] for pair in data_batch for kind in ("chosen", "rejected")]
    logs = [sample["message_log"] for sample in both]
    add_loss_mask_to_message_log(logs)
    flat, input_lengths = batched_message_log_to_flat_message(
        logs,
        pad_value_dict={"token_ids": tokenizer.pad_token_id},
        make_sequence_length_divisible_by=make_sequence_length_divisible_by,
    )
    return BatchedDataDict(
        {
            "input_ids": flat["token_ids"],
            "input_lengths": input_lengths,
            "token_mask": flat["token_loss_mask"],
            "sample_mask": np.tile([1.0, 0.0], len(data_batch)),
        }
    )

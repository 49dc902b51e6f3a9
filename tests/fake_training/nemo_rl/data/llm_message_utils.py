"""From conversations to padded arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.distributed.batched_data_dict import BatchedDataDict

# Written by the rollout and by the loop; a message without one counts as zeros.
_PER_TOKEN = ("generation_logprobs", "token_loss_mask")


def batched_message_log_to_flat_message(
    message_log_batch: list[list[dict[str, Any]]],
    pad_value_dict: dict[str, int] | None = None,
    make_sequence_length_divisible_by: int = 1,
) -> tuple[BatchedDataDict, np.ndarray]:
    """One row per conversation: its messages' tokens end to end, padded on the right. Also the lengths."""
    rows = [np.concatenate([message["token_ids"] for message in log]) for log in message_log_batch]
    lengths = np.array([len(row) for row in rows])
    width = -(-lengths.max() // make_sequence_length_divisible_by) * make_sequence_length_divisible_by
    flat = BatchedDataDict(
        {
            "token_ids": np.full((len(rows), width), (pad_value_dict or {}).get("token_ids", 0)),
            "content": [" ".join(message["content"] for message in log) for log in message_log_batch],
        }
    )
    for key in _PER_TOKEN:
        flat[key] = np.zeros((len(rows), width))
    for i, (row, log) in enumerate(zip(rows, message_log_batch, strict=True)):
        flat["token_ids"][i, : len(row)] = row
        for key in _PER_TOKEN:
            values = [message.get(key, np.zeros(len(message["token_ids"]))) for message in log]
            flat[key][i, : len(row)] = np.concatenate(values)
    return flat, lengths


def add_loss_mask_to_message_log(
    batch_message_log: list[list[dict[str, Any]]],
    roles_to_train_on: list[str] = ["assistant"],  # noqa: B006
    only_unmask_final: bool = False,
) -> None:
    """Only what these roles said counts in the loss."""
    for log in batch_message_log:
        for message in log:
            counts = message["role"] in roles_to_train_on
            message["token_loss_mask"] = np.full(len(message["token_ids"]), float(counts))

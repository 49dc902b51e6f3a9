"""From samples to a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

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

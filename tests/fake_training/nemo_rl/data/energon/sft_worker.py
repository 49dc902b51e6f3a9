"""A policy worker that reads its own batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nemo_rl.algorithms.sft import prepare_sft_batch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl


class SFTMegatronPolicyWorker(MegatronPolicyWorkerImpl):
    batches: Iterator[BatchedDataDict]

    def __init__(self, *args: Any, processor: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokenizer = args[1]

    def load_next_sft_batch(
        self, *, only_unmask_final: bool, make_sequence_length_divisible_by: int
    ) -> BatchedDataDict:
        return prepare_sft_batch(
            next(self.batches),
            tokenizer=self.tokenizer,
            only_unmask_final=only_unmask_final,
            make_sequence_length_divisible_by=make_sequence_length_divisible_by,
        )

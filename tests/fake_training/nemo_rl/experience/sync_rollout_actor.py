"""Rolls out where the engine is, and leaves the result in the data plane. In NeMo RL a Ray actor."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.data_plane import KVBatchMeta, build_data_plane_client
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.rollouts import run_async_multi_turn_rollout, run_multi_turn_rollout
from nemo_rl.models.generation.interfaces import should_use_async_rollouts

_BULK = ("input_ids", "input_lengths", "generation_logprobs", "token_mask", "sample_mask")


class SyncRolloutActor:
    def __init__(
        self,
        policy_generation: Any,
        tokenizer: Any,
        task_to_env: dict[str, Any],
        master_config: Any,
        dp_cfg: dict[str, Any],
    ) -> None:
        self.policy_generation = policy_generation
        self.tokenizer = tokenizer
        self.task_to_env = task_to_env
        self.master_config = master_config
        self._dp_client = build_data_plane_client(dp_cfg, bootstrap=False)

    def rollout_to_tq(
        self,
        input_batch: BatchedDataDict,
        *,
        partition_id: str,
        group_size: int = 1,
        first_iter: bool = True,
        finish_generation: bool = True,
        task_to_env_override: dict[str, Any] | None = None,
        carry_keys: list[str] | None = None,
    ) -> tuple[KVBatchMeta, dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(names of the samples, what the driver needs of them, rollout metrics, engine metrics)."""
        if first_iter:
            self.policy_generation.snapshot_step_metrics()
        self.policy_generation.clear_logger_metrics()
        asynchronous = should_use_async_rollouts(self.master_config.policy["generation"])
        rollout = run_async_multi_turn_rollout if asynchronous else run_multi_turn_rollout
        batch, rollout_metrics = rollout(
            self.policy_generation,
            input_batch,
            self.tokenizer,
            task_to_env_override or self.task_to_env,
            max_seq_len=self.master_config.policy["max_total_sequence_length"],
            max_rollout_turns=self.master_config.grpo.max_rollout_turns,
        )
        carry = self._flatten(batch)
        # uuid4 draws from the system, so the seeded random stream is left alone.
        sample_ids = [f"{uuid.uuid4().hex}_g{i % group_size}" for i in range(batch.size)]
        self._dp_client.put_samples(sample_ids, partition_id, fields={name: carry[name] for name in _BULK})
        meta = KVBatchMeta(partition_id, None, sample_ids, fields=list(_BULK))
        if finish_generation:
            self.policy_generation.finish_generation()
        kept = {name: carry[name] for name in carry_keys or carry if name not in ("input_ids", "token_mask")}
        return meta, kept, rollout_metrics, self.policy_generation.get_logger_metrics()

    def _flatten(self, batch: BatchedDataDict) -> dict[str, Any]:
        for log in batch["message_log"]:
            for message in log:
                generated = float(message["role"] == "assistant")
                message["token_loss_mask"] = np.full(len(message["token_ids"]), generated)
        flat, input_lengths = batched_message_log_to_flat_message(
            batch["message_log"], pad_value_dict={"token_ids": self.tokenizer.pad_token_id}
        )
        return {
            "input_ids": flat["token_ids"],
            "input_lengths": input_lengths,
            "generation_logprobs": flat["generation_logprobs"],
            "token_mask": flat["token_loss_mask"],
            "sample_mask": batch["loss_multiplier"],
            "loss_multiplier": batch["loss_multiplier"],
            "length": batch["length"],
            "truncated": batch["truncated"],
            "total_reward": batch["total_reward"],
            "prompt_ids_for_adv": flat["token_ids"][:, : batch["length"].max()],
        }

    def shutdown(self) -> None:
        self._dp_client.close()

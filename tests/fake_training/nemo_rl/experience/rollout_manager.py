"""Rollouts of the single controller: one prompt, all its answers, straight into the buffer."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.rollouts import calculate_rewards
from nemo_rl.utils.timer import Timer


class RolloutOutcome(str, enum.Enum):
    COMMITTED = "committed"
    SKIPPED = "skipped"


@dataclass
class RolloutTimeouts:
    generation_s: float | None = None


class AsyncRolloutImpl:
    def __init__(
        self,
        tokenizer: Any,
        task_to_env: dict[str, Any],
        num_generations_per_prompt: int,
        max_seq_len: int,
        max_rollout_turns: int,
        policy_generation: Any,
        timeouts: Any = RolloutTimeouts(),
        **kwargs: Any,
    ) -> None:
        self._tokenizer = tokenizer
        self._task_to_env = task_to_env
        self._num_generations_per_prompt = num_generations_per_prompt
        self._policy_generation = policy_generation

    async def run_rollout(self, input_sample: dict[str, Any]) -> BatchedDataDict:
        timer = Timer()
        timer_prefix = "timing/rollout"
        with timer.time(f"{timer_prefix}/run_rollouts"):
            answers = await asyncio.gather(
                *(self._run_single_rollout(input_sample, i) for i in range(self._num_generations_per_prompt))
            )
        return BatchedDataDict.from_batches(answers)

    async def _run_single_rollout(self, input_sample: dict[str, Any], traj_idx: int) -> BatchedDataDict:
        log = list(input_sample["message_log"])
        output = await self._generate_response(log, stop_strings=None)
        tokens = output["output_ids"][0]
        log.append({"role": "assistant", "content": self._tokenizer.decode(tokens[1:]), "token_ids": tokens[1:]})
        sample = BatchedDataDict({"message_log": [log]})
        for key in ("task_name", "extra_env_info"):
            sample[key] = [input_sample[key]]
        # In a thread: an environment may block.
        verdict = await asyncio.to_thread(calculate_rewards, sample, self._task_to_env)
        return BatchedDataDict(
            {
                "input_ids": output["output_ids"],
                "input_lengths": output["unpadded_sequence_lengths"],
                "generation_logprobs": output["logprobs"],
                "token_mask": np.array([[0.0] + [1.0] * (len(tokens) - 1)]),
                "sample_mask": np.ones(1),
                "rewards": verdict.rewards,
            }
        )

    async def _generate_response(self, message_log: list[dict[str, Any]], stop_strings: Any) -> BatchedDataDict:
        data = BatchedDataDict({"input_ids": np.array([message_log[0]["token_ids"]])})
        async for _, output in self._policy_generation.generate_async(data):
            return output
        raise RuntimeError("the engine gave no answer")


class RolloutManager:
    def __init__(
        self,
        tokenizer: Any,
        task_to_env: dict[str, Any],
        num_generations_per_prompt: int,
        max_seq_len: int,
        max_rollout_turns: int = 1,
        policy_generation: Any = None,
        generation_config: Any = None,
        use_nemo_gym: bool = False,
        mask_env_flagged_samples: bool = True,
        tq_buffer: Any = None,
        timeouts: Any = None,
        retry_policy: Any = None,
    ) -> None:
        self._impl = AsyncRolloutImpl(
            tokenizer, task_to_env, num_generations_per_prompt, max_seq_len, max_rollout_turns, policy_generation
        )
        self._tq_buffer = tq_buffer
        self._weight_version = 0

    def set_weight_version(self, version: int) -> None:
        self._weight_version = version

    async def run_rollout(self, input_sample: dict[str, Any]) -> BatchedDataDict:
        return await self._impl.run_rollout(input_sample)

    async def generate_and_push(
        self,
        input_sample: dict[str, Any],
        *,
        target_step: int | None = None,
        inflight_registry: dict[str, Any] | None = None,
    ) -> RolloutOutcome:
        start_version = self._weight_version
        group_id = self._tq_buffer.reserve(weight_version=start_version, target_step=target_step)
        record = await self.run_rollout(input_sample)
        await self._tq_buffer.commit(
            group_id, record, start_weight_version=start_version, end_weight_version=self._weight_version
        )
        return RolloutOutcome.COMMITTED

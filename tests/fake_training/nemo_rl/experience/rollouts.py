"""Rollouts: the engine answers, the environment judges, until every conversation is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentReturn


@dataclass
class RolloutGroupResult:
    """All answers to one prompt."""

    group_index: int
    final_batch: BatchedDataDict
    rollout_metrics: dict[str, Any]
    task_index: int | None = None


def _generation_input(batch: BatchedDataDict, tokenizer: Any) -> BatchedDataDict:
    flat, input_lengths = batched_message_log_to_flat_message(
        batch["message_log"], pad_value_dict={"token_ids": tokenizer.pad_token_id}
    )
    return BatchedDataDict({"input_ids": flat["token_ids"], "input_lengths": input_lengths})


def _append_answer(log: list[dict], output: BatchedDataDict, row: int, tokenizer: Any) -> None:
    end = int(output["unpadded_sequence_lengths"][row])
    start = end - int(output["generation_lengths"][row])
    token_ids = output["output_ids"][row, start:end]
    log.append(
        {
            "role": "assistant",
            "content": tokenizer.decode(token_ids),
            "token_ids": token_ids,
            "generation_logprobs": output["logprobs"][row, start:end],
        }
    )


def generate_responses(
    policy_generation: Any,
    generation_input_data: BatchedDataDict,
    batch: BatchedDataDict,
    tokenizer: Any,
    input_lengths: np.ndarray,
    include_logprobs: bool = True,
    greedy: bool = False,
) -> tuple[BatchedDataDict, list[np.ndarray], dict[str, float]]:
    """Appends an answer to each conversation of `batch`."""
    output = policy_generation.generate(generation_input_data, greedy=greedy)
    for row, log in enumerate(batch["message_log"]):
        _append_answer(log, output, row, tokenizer)
    generated = [log[-1]["token_ids"] for log in batch["message_log"]]
    return batch, generated, {"mean_generation_length": float(np.mean(output["generation_lengths"]))}


def calculate_rewards(batch: BatchedDataDict, task_to_env: dict[str, Any]) -> EnvironmentReturn:
    """All conversations of a batch belong to one task here."""
    environment = task_to_env[batch["task_name"][0]]
    return environment.step(batch["message_log"], batch["extra_env_info"])


def run_multi_turn_rollout(
    policy_generation: Any,
    input_batch: BatchedDataDict,
    tokenizer: Any,
    task_to_env: dict[str, Any],
    max_seq_len: int,
    max_rollout_turns: int = 999999,
    greedy: bool = False,
    deduplicate_multimodal_data: bool = False,
) -> tuple[BatchedDataDict, dict[str, Any]]:
    batch = input_batch
    total_reward = np.zeros(batch.size)
    for turn in range(max_rollout_turns):
        data = _generation_input(batch, tokenizer)
        batch, _, _ = generate_responses(
            policy_generation, data, batch, tokenizer, input_lengths=data["input_lengths"], greedy=greedy
        )
        verdict = calculate_rewards(batch, task_to_env)
        total_reward += verdict.rewards
        if verdict.terminateds.all():
            break
    return _finish(batch, total_reward), _rollout_metrics(batch["message_log"], turn + 1)


async def run_sample_multi_turn_rollout(
    sample_idx: int,
    initial_sample_state: dict[str, Any],
    policy_generation: Any,
    tokenizer: Any,
    task_to_env: dict[str, Any],
    max_seq_len: int,
    max_rollout_turns: int = 999999,
    greedy: bool = False,
    deduplicate_multimodal_data: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One conversation, beside all the others. Its answer only: judging is done for a whole group."""
    log = initial_sample_state["message_log"]
    data = _generation_input(BatchedDataDict({"message_log": [log]}), tokenizer)
    async for row, output in policy_generation.generate_async(data, greedy=greedy):
        _append_answer(log, output, row, tokenizer)
    return initial_sample_state, {"turn_count": 1}


async def _run_multi_turn_rollout_async(
    policy_generation: Any,
    input_batch: BatchedDataDict,
    tokenizer: Any,
    task_to_env: dict[str, Any],
    max_seq_len: int,
    max_rollout_turns: int = 999999,
    greedy: bool = False,
    deduplicate_multimodal_data: bool = False,
) -> BatchedDataDict:
    await asyncio.gather(
        *(
            run_sample_multi_turn_rollout(
                sample_idx,
                {"message_log": log},
                policy_generation,
                tokenizer,
                task_to_env,
                max_seq_len,
                max_rollout_turns=max_rollout_turns,
                greedy=greedy,
            )
            for sample_idx, log in enumerate(input_batch["message_log"])
        )
    )
    # In a thread: an environment may block, and other groups' samples are still being generated.
    verdict = await asyncio.to_thread(calculate_rewards, input_batch, task_to_env)
    return _finish(input_batch, verdict.rewards)


def run_async_multi_turn_rollout(
    policy_generation: Any,
    input_batch: BatchedDataDict,
    tokenizer: Any,
    task_to_env: dict[str, Any],
    max_seq_len: int,
    max_rollout_turns: int = 999999,
    greedy: bool = False,
    deduplicate_multimodal_data: bool = False,
) -> tuple[BatchedDataDict, dict[str, Any]]:
    batch = asyncio.run(
        _run_multi_turn_rollout_async(
            policy_generation,
            input_batch,
            tokenizer,
            task_to_env,
            max_seq_len,
            max_rollout_turns=max_rollout_turns,
            greedy=greedy,
        )
    )
    return batch, _rollout_metrics(batch["message_log"], turns=1)


async def run_async_multi_turn_rollout_groups(
    policy_generation: Any,
    input_batch: BatchedDataDict,
    tokenizer: Any,
    task_to_env: dict[str, Any],
    max_seq_len: int,
    num_generations: int,
    max_rollout_turns: int = 999999,
    greedy: bool = False,
    deduplicate_multimodal_data: bool = False,
) -> AsyncGenerator[RolloutGroupResult, None]:
    """One result per prompt, in the order in which the prompts are done."""

    async def run_group(group_index: int) -> RolloutGroupResult:
        start = group_index * num_generations
        batch = await _run_multi_turn_rollout_async(
            policy_generation,
            input_batch.slice(start, start + num_generations),
            tokenizer,
            task_to_env,
            max_seq_len,
            max_rollout_turns=max_rollout_turns,
            greedy=greedy,
        )
        return RolloutGroupResult(group_index, batch, _rollout_metrics(batch["message_log"], turns=1))

    groups = [asyncio.ensure_future(run_group(i)) for i in range(input_batch.size // num_generations)]
    try:
        for group in asyncio.as_completed(groups):
            yield await group
    finally:
        # After a failure, the other groups' results are of no use, nor are their failures.
        for group in groups:
            group.cancel()
        await asyncio.gather(*groups, return_exceptions=True)


def _finish(batch: BatchedDataDict, total_reward: np.ndarray) -> BatchedDataDict:
    batch["total_reward"] = total_reward
    batch["truncated"] = np.zeros(batch.size, dtype=bool)
    return batch


def _rollout_metrics(message_logs: list[list[dict]], turns: int) -> dict[str, Any]:
    total = [sum(len(message["token_ids"]) for message in log) for log in message_logs]
    generated = [
        sum(len(message["token_ids"]) for message in log if message["role"] == "assistant") for log in message_logs
    ]
    return {
        "total_turns": turns * len(message_logs),
        "avg_turns_per_sample": float(turns),
        "mean_total_tokens_per_sample": float(np.mean(total)),
        "mean_gen_tokens_per_sample": float(np.mean(generated)),
        "max_gen_tokens_per_sample": float(np.max(generated)),
    }

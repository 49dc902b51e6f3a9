"""Evaluation of a checkpoint: generate and judge."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.dataloader import StatefulDataLoader
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.models.generation.vllm import VllmGeneration


def setup(master_config: Any, tokenizer: Any, dataset: Any) -> tuple[VllmGeneration, StatefulDataLoader, Any]:
    np.random.seed(master_config.eval["seed"])
    dataloader = StatefulDataLoader(dataset, 2, False, rl_collate_fn)
    return VllmGeneration(RayVirtualCluster([1]), master_config.generation), dataloader, master_config


def run_env_eval(vllm_generation: Any, dataloader: Any, env: Any, master_config: Any) -> None:
    use_async = master_config.generation["vllm_cfg"]["async_engine"]
    asyncio.run(_run_env_eval_impl(vllm_generation, dataloader, env, master_config, use_async=use_async))


async def _run_env_eval_impl(
    vllm_generation: Any, dataloader: Any, env: Any, master_config: Any, use_async: bool = False
) -> None:
    num_tests_per_prompt = master_config.eval["num_tests_per_prompt"]
    for batch in dataloader:
        if num_tests_per_prompt > 1:
            batch = batch.repeat_interleave(num_tests_per_prompt)
        inputs = BatchedDataDict({"prompts": ["\n".join(m["content"] for m in log) for log in batch["message_log"]]})
        outputs = await _generate_texts(vllm_generation, inputs, use_async)
        for log, text in zip(batch["message_log"], outputs, strict=True):
            log.append({"role": "assistant", "content": text, "token_ids": [int(digit) for digit in text]})
        env.step(batch["message_log"], batch["extra_env_info"], True)
    env.shutdown()
    vllm_generation.shutdown()


async def _generate_texts(vllm_generation: Any, inputs: BatchedDataDict, use_async: bool) -> list[str]:
    if not use_async:
        return vllm_generation.generate_text(inputs)["texts"]

    async def one(i: int) -> str:
        async for _, result in vllm_generation.generate_text_async(inputs.slice(i, i + 1)):
            return result["texts"][0]
        raise RuntimeError(f"no output for sample {i}")

    return await asyncio.gather(*(one(i) for i in range(inputs.size)))

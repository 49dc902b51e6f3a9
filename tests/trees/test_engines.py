"""The inference engines: a call of each, at once and one sample after the other, and the load of the worker behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from whole_trees import choices, only, spans_of

TREE = """
rl.setup.generation (setup) rl.backend='VllmGeneration'
  rl.vllm.load_model (model_init)
rl.vllm.generate (generation) [productive]
rl.vllm.generate_async (per_prompt)
rl.setup.generation (setup) rl.backend='SGLangGeneration'
  rl.sglang.load_model (model_init)
rl.sglang.generate (generation) [productive]
rl.sglang.generate_async (per_prompt)
rl.setup.generation (setup) rl.backend='TrtllmGeneration'
  rl.trtllm.load_model (model_init)
rl.trtllm.generate (generation) [productive]
rl.trtllm.generate_async (per_prompt)
rl.setup.generation (setup) rl.backend='MegatronGeneration'
  rl.megatron.load_model (model_init)
rl.megatron.generate (generation) [productive]
rl.megatron.generate_async (per_prompt)
rl.setup.generation (setup) rl.backend='DynamoGeneration'
  rl.dynamo.load_model (model_init)
rl.dynamo.generate_async (per_prompt)
"""


def run() -> None:
    from nemo_rl.models.generation.dynamo.dynamo_generation import DynamoGeneration
    from nemo_rl.models.generation.megatron.megatron_generation import MegatronGeneration
    from nemo_rl.models.generation.sglang.sglang_generation import SGLangGeneration
    from nemo_rl.models.generation.trtllm.trtllm_generation import TrtllmGeneration
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration

    ask(VllmGeneration(None, {}))
    ask(SGLangGeneration(None, {}))
    ask(TrtllmGeneration(None, {}))
    ask(MegatronGeneration({}, None))
    ask(DynamoGeneration(None, {}), at_once=False)


def ask(engine: Any, at_once: bool = True) -> None:
    import numpy as np
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    async def one_by_one() -> None:
        async for _ in engine.generate_async(prompts):
            pass

    prompts = BatchedDataDict({"input_ids": np.array([[1], [2]])})
    if at_once:
        engine.generate(prompts)
    asyncio.run(one_by_one())


@pytest.mark.parametrize("groups", choices(TREE))
def test_engines(groups: str) -> None:
    assert spans_of(run, groups) == only(groups, TREE)

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation._toy_engine import ToyEngine
from nemo_rl.models.generation.dynamo.dynamo_worker import DynamoVllmWorker


class DynamoGeneration(ToyEngine):
    def __init__(
        self, cluster: Any, config: dict[str, Any], tokenizer: Any = None, tokenizer_config: Any = None
    ) -> None:
        self._load(config)
        self._worker = DynamoVllmWorker(
            config,
            namespace="toy",
            group_name="toy",
            cuda_devices=[],
            system_port=0,
            vllm_port=0,
            manager_env={},
            startup_timeout_s=1.0,
            seed=1,
            cleanup_reservation=None,
        )

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        return self._answers(data)

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        async for answer in self._answers_one_by_one(data):
            yield answer

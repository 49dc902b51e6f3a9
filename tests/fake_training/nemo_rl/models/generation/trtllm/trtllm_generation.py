from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation._toy_engine import ToyEngine
from nemo_rl.models.generation.trtllm.trtllm_worker_async import TrtllmAsyncGenerationWorkerImpl


class TrtllmGeneration(ToyEngine):
    def __init__(
        self,
        cluster: Any,
        config: dict[str, Any],
        name_prefix: str = "trtllm_policy",
        workers_per_node: int | list[int] | None = None,
    ) -> None:
        self._load(config)
        self._worker = TrtllmAsyncGenerationWorkerImpl(config)

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        return self._answers(data)

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        async for answer in self._answers_one_by_one(data):
            yield answer

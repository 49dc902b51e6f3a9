from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation._toy_engine import ToyEngine
from nemo_rl.models.generation.sglang.sglang_worker import SGLangGenerationWorker


class SGLangGeneration(ToyEngine):
    def __init__(self, cluster: Any, sglang_cfg: dict[str, Any]) -> None:
        self._load(sglang_cfg)
        self._worker = SGLangGenerationWorker(1, sglang_cfg, rank=0)

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        return self._answers(data)

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        async for answer in self._answers_one_by_one(data):
            yield answer

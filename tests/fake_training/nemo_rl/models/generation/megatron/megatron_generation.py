from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation._toy_engine import ToyEngine
from nemo_rl.models.generation.megatron.megatron_worker import MegatronGenerationMixin


class MegatronGeneration(ToyEngine):
    def __init__(
        self,
        config: dict[str, Any],
        tokenizer: Any,
        cluster: Any = None,
        policy: Any = None,
        name_prefix: str = "megatron_generation",
        processor: Any = None,
        weights_path: str | None = None,
        skip_weight_load: bool = False,
    ) -> None:
        self._load(config)
        self._worker = MegatronGenerationMixin()
        self._worker._initialize_inference_engine(config)

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        return self._answers(data)

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        async for answer in self._answers_one_by_one(data):
            yield answer

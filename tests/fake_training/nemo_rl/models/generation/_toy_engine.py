"""An engine that is not vLLM: it always knows the right answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import answer
from nemo_rl.distributed.batched_data_dict import BatchedDataDict


class ToyEngine:
    def _load(self, config: dict[str, Any]) -> None:
        _pace.work("vllm_init")
        self.cfg = config

    def _answers(self, data: BatchedDataDict) -> BatchedDataDict:
        output_ids = np.array([[prompt, *answer(prompt)] for prompt in data["input_ids"][:, 0].tolist()])
        return BatchedDataDict({"output_ids": output_ids, "logprobs": np.zeros(output_ids.shape)})

    async def _answers_one_by_one(self, data: BatchedDataDict) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        for index in range(data.size):
            await asyncio.sleep(_pace.seconds("generation"))
            yield index, self._answers(data.slice(index, index + 1))

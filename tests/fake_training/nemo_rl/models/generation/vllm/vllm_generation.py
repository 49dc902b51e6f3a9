"""The driver's handle on the generation engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.vllm.vllm_worker import VllmGenerationWorkerImpl


class VllmGeneration:
    requires_kv_scale_sync = False

    def __init__(
        self,
        cluster: Any,
        config: dict[str, Any],
        name_prefix: str = "vllm_policy",
        workers_per_node: int | list[int] | None = None,
        defer_model_load: bool = False,
    ) -> None:
        self.cfg = config
        self._samples_generated = 0
        self._incoming_weights: Any = None
        # From the global generator, which `set_seed` has seeded: one seed decides the whole run.
        self._worker = VllmGenerationWorkerImpl(config, seed=int(np.random.randint(2**31)))

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        self._samples_generated += len(data["input_ids"])
        return self._worker.generate(data, greedy=greedy)

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        """(index, output) for each sample of `data` once it is done."""
        for index in range(len(data["input_ids"])):
            self._samples_generated += 1
            # Drawn before the wait: else the order of draws would hang on how the timers fall.
            output = self._worker.sample(data.slice(index, index + 1), greedy)
            await asyncio.sleep(_pace.seconds("generation") * (5 if self._worker.straggles() else 1))
            yield index, output

    def generate_text(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        output = self._worker.generate(_tokens_of(data), greedy=greedy)
        return _texts_of(output)

    async def generate_text_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncGenerator[tuple[int, BatchedDataDict], None]:
        for index in range(data.size):
            output = self._worker.sample(_tokens_of(data.slice(index, index + 1)), greedy)
            await asyncio.sleep(_pace.seconds("generation"))
            yield index, _texts_of(output)

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def prepare_refit_info(self, state_dict_info: dict[str, Any]) -> None:
        self._incoming_weights = state_dict_info["channel"]

    def update_weights_via_ipc_zmq(self) -> list[bool]:
        return self._receive()

    def update_weights_from_collective(self) -> list[bool]:
        return self._receive()

    def _receive(self) -> list[bool]:
        self._worker.load_weights(self._incoming_weights.get())
        return [True]

    def invalidate_kv_cache(self) -> bool:
        return True

    def blocks_training(self) -> bool:
        return False

    def clear_logger_metrics(self) -> None:
        self._samples_generated = 0

    def get_logger_metrics(self) -> dict[str, Any]:
        return {"num_samples": {0: [self._samples_generated]}}

    def snapshot_step_metrics(self) -> None:
        pass

    def get_step_metrics(self) -> dict[str, float]:
        return {}

    def shutdown(self) -> bool:
        return True


def _tokens_of(data: BatchedDataDict) -> BatchedDataDict:
    return BatchedDataDict({"input_ids": np.array([[int(prompt)] for prompt in data["prompts"]])})


def _texts_of(output: BatchedDataDict) -> BatchedDataDict:
    return BatchedDataDict({"texts": ["".join(map(str, row[1:])) for row in output["output_ids"]]})

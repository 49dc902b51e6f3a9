"""The engine's own copy of the weights, and sampling from it. In NeMo RL a Ray actor with a GPU."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import answer_logprobs, log_softmax, new_logits
from nemo_rl.distributed.batched_data_dict import BatchedDataDict


class BaseVllmGenerationWorker:
    def __init__(
        self,
        config: dict[str, Any],
        bundle_indices: list[int] | None = None,
        fraction_of_gpus: float = 1.0,
        seed: int | None = None,
        extra_env_vars: list[str] | None = None,
        defer_model_load: bool = False,
    ) -> None:
        self.cfg = config
        # Collector threads generate while the driver validates, and a numpy generator is not thread-safe.
        self._lock = threading.Lock()
        self._load_model(bundle_indices, seed)

    def _load_model(self, bundle_indices: list[int] | None, seed: int | None) -> None:
        _pace.work("vllm_init")
        self.logits = new_logits()
        self.rng = np.random.default_rng(seed)

    def is_alive(self) -> bool:
        return True


class VllmGenerationWorkerImpl(BaseVllmGenerationWorker):
    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        _pace.work("generation")
        return self.sample(data, greedy)

    def sample(self, data: BatchedDataDict, greedy: bool) -> BatchedDataDict:
        prompts = data["input_ids"][:, :1]
        with self._lock:
            scores = log_softmax(self.logits)[prompts[:, 0]]
            if not greedy:
                # Adding Gumbel noise and taking the largest draws from the softmax.
                scores = scores + self.rng.gumbel(size=scores.shape)
            output_ids = np.concatenate([prompts, scores.argmax(axis=-1)], axis=1)
            logprobs = answer_logprobs(self.logits, output_ids)
        batch_size, width = output_ids.shape
        return BatchedDataDict(
            {
                "output_ids": output_ids,
                "logprobs": logprobs,
                "generation_lengths": np.full(batch_size, width - 1),
                "unpadded_sequence_lengths": np.full(batch_size, width),
                "truncated": np.zeros(batch_size, dtype=bool),
            }
        )

    def straggles(self) -> bool:
        """A few samples take much longer than the rest: the long tail that starves asynchronous training."""
        with self._lock:
            return bool(self.rng.random() < 1 / 800)

    def load_weights(self, logits: np.ndarray) -> None:
        with self._lock:
            self.logits = logits

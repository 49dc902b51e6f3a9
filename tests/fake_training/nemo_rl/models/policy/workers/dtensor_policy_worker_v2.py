from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nemo_rl._toy_task import log_softmax
from nemo_rl.models.policy.workers.base_policy_worker import AbstractPolicyWorker


class DTensorPolicyWorkerV2Impl(AbstractPolicyWorker):
    def __init__(
        self,
        config: dict[str, Any],
        weights_path: str | None = None,
        optimizer_path: str | None = None,
        init_optimizer: bool = True,
        init_reference_model: bool = True,
        **kwargs: Any,
    ) -> None:
        self._load(config, weights_path)

    def get_logprobs(self, data: Any, micro_batch_size: int | None = None) -> np.ndarray:
        return self._logprobs(data)

    def get_topk_logits(self, data: Any, k: int, micro_batch_size: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The k likeliest tokens at each place of the answer, and which they are."""
        scores = log_softmax(self.logits)[data["input_ids"][:, 0]]
        likeliest = np.argsort(-scores, axis=-1)[:, :, :k]
        return np.take_along_axis(scores, likeliest, axis=-1), likeliest

    def get_full_logits_ipc(self, data: Any, micro_batch_size: int | None = None) -> list[np.ndarray]:
        return list(log_softmax(self.logits)[data["input_ids"][:, 0]])

    def train(
        self,
        data: Any,
        loss_fn: Any,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
        check_dim_skip_keys: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        return self._step(data, loss_fn, eval_mode)

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: dict[str, Any] | None = None,
    ) -> None:
        self._save(weights_path)

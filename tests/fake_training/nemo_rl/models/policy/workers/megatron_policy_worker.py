from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nemo_rl.models.policy.workers.base_policy_worker import AbstractPolicyWorker


class MegatronPolicyWorkerImpl(AbstractPolicyWorker):
    def __init__(
        self,
        config: dict[str, Any],
        tokenizer: Any,
        weights_path: str | None = None,
        optimizer_path: str | None = None,
        init_optimizer: bool = True,
        init_reference_model: bool = True,
        *,
        worker_sharding_annotations: Any,
        skip_weight_load: bool = False,
        **kwargs: Any,
    ) -> None:
        self._load(config, weights_path)

    def get_reference_policy_logprobs(self, *, data: Any, micro_batch_size: int | None = None) -> np.ndarray:
        with self.use_reference_model():
            return self.get_logprobs(data=data, micro_batch_size=micro_batch_size, require_router_replay=False)

    def get_logprobs(
        self, *, data: Any, micro_batch_size: int | None = None, require_router_replay: bool = True
    ) -> np.ndarray:
        return self._logprobs(data)

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

    def begin_train_step(self, loss_fn: Any, gbs: int | None = None, mbs: int | None = None) -> None:
        self._train_step_state = {"loss_fn": loss_fn, "result": None}

    def train_microbatch(self, data: Any) -> None:
        self._train_step_state["result"] = self._step(data, self._train_step_state["loss_fn"], eval_mode=False)

    def finish_train_step(self) -> dict[str, Any]:
        """The result of the last part. Here the weights have moved already."""
        return self._train_step_state["result"]

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._save(weights_path)

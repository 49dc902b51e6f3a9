from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.models.value.workers._toy_value import ToyValueWorker


class DTensorValueWorkerV2Impl(ToyValueWorker):
    def __init__(
        self,
        config: dict[str, Any],
        tokenizer: Any,
        weights_path: str | None = None,
        optimizer_path: str | None = None,
        init_optimizer: bool = True,
        **kwargs: Any,
    ) -> None:
        self._load(config)

    def get_values(self, data: Any, micro_batch_size: int | None = None) -> np.ndarray:
        return self._values(data)

    def train(
        self,
        data: Any,
        loss_fn: Any,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
    ) -> dict[str, Any]:
        return self._step(data, loss_fn)

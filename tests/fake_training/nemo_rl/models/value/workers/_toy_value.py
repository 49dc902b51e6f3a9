"""The value model: what reward each prompt is expected to earn. In NeMo RL a Ray actor with a GPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import DIGITS


class ToyValueWorker:
    def _load(self, config: dict[str, Any]) -> None:
        _pace.work("policy_init")
        self.lr = config["optimizer"]["kwargs"]["lr"]
        self.expected = np.zeros(DIGITS)

    def _values(self, data: Any) -> np.ndarray:
        _pace.work("logprobs")
        return self.expected[data["input_ids"][:, 0]]

    def _step(self, data: Any, loss_fn: Any) -> dict[str, Any]:
        _pace.work("training")
        prompts = data["input_ids"][:, 0]
        loss, by_value = loss_fn.evaluate(self.expected[prompts], data)
        np.add.at(self.expected, prompts, -self.lr * by_value)
        return {"global_loss": loss, "grad_norm": float(np.linalg.norm(by_value)), "all_mb_metrics": {}}

    def _save(self, weights_path: str) -> None:
        os.makedirs(weights_path, exist_ok=True)
        np.savez(os.path.join(weights_path, "value.npz"), expected=self.expected)

"""Judges the answers of the toy task. In NeMo RL an environment is a Ray actor; here a plain object."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn


class MathEnvironment(EnvironmentInterface):
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.cfg = cfg

    def step(
        self,
        message_log_batch: list[list[dict]],
        metadata: list[dict],
        return_extracted_answer: bool = False,
    ) -> EnvironmentReturn:
        """The reward is the share of digits that are right."""
        _pace.work("environment")
        rewards = np.array(
            [
                np.mean(np.asarray(log[-1]["token_ids"]) == np.array(info["ground_truth"]))
                for log, info in zip(message_log_batch, metadata, strict=True)
            ]
        )
        batch_size = len(message_log_batch)
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": f"{reward:.2f}"} for reward in rewards],
            metadata=metadata,
            next_stop_strings=[None] * batch_size,
            rewards=rewards,
            terminateds=np.ones(batch_size, dtype=bool),
            answers=[log[-1]["content"] for log in message_log_batch] if return_extracted_answer else None,
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        return batch, {"accuracy": float(np.mean(batch["total_reward"]))}

    def shutdown(self) -> bool:
        return True

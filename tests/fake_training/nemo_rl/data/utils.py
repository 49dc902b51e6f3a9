"""The data sets of the toy task, with the environments that judge them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import DIGITS, answer
from nemo_rl.environments.math_environment import MathEnvironment

TASK = "count_on"


def setup_response_data(
    tokenizer: Any,
    data_config: dict[str, Any],
    env_configs: dict[str, Any] | None = None,
    is_vlm: bool = False,
) -> tuple[list[dict], list[dict], dict[str, Any], dict[str, Any]]:
    """(train set, validation set, environments by task, environments by task for validation)."""
    _pace.work("dataset")
    train = [_sample(tokenizer, i) for i in range(data_config["train"]["num_samples"])]
    validation = [_sample(tokenizer, i) for i in range(data_config["validation"]["num_samples"])]
    environment = MathEnvironment((env_configs or {}).get("math", {}))
    return train, validation, {TASK: environment}, {TASK: environment}


def _sample(tokenizer: Any, idx: int) -> dict[str, Any]:
    prompt = str(idx % DIGITS)
    token_ids = np.array(tokenizer.encode(prompt))
    return {
        "message_log": [{"role": "user", "content": prompt, "token_ids": token_ids}],
        "length": len(token_ids),
        "loss_multiplier": 1.0,
        "task_name": TASK,
        "extra_env_info": {"ground_truth": answer(idx % DIGITS)},
        "idx": idx,
    }

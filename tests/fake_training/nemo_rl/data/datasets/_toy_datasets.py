"""The toy task as data sets: prompts alone, with the right answer, and with a wrong one beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import DIGITS, answer

TASK = "count_on"


def prompts(data_config: dict[str, Any]) -> list[dict[str, Any]]:
    _pace.work("dataset")
    return [_sample(idx, [idx % DIGITS]) for idx in range(data_config["num_samples"])]


def answered(data_config: dict[str, Any]) -> list[dict[str, Any]]:
    _pace.work("dataset")
    samples = []
    for idx in range(data_config["num_samples"]):
        prompt = idx % DIGITS
        samples.append(_sample(idx, [prompt], answer(prompt)))
    return samples


def compared(data_config: dict[str, Any]) -> list[dict[str, Any]]:
    """Each right answer is followed by a wrong one: the collate function makes rows of both."""
    _pace.work("dataset")
    pairs = []
    for idx in range(data_config["num_samples"]):
        prompt = idx % DIGITS
        wrong = answer((prompt + 1) % DIGITS)
        pairs.append({"chosen": _sample(idx, [prompt], answer(prompt)), "rejected": _sample(idx, [prompt], wrong)})
    return pairs


def _sample(idx: int, prompt: list[int], reply: list[int] | None = None) -> dict[str, Any]:
    log = [_message("user", prompt)]
    if reply is not None:
        log.append(_message("assistant", reply))
    return {
        "message_log": log,
        "length": len(prompt) + len(reply or ()),
        "loss_multiplier": 1.0,
        "task_name": TASK,
        "extra_env_info": {"ground_truth": answer(prompt[0])},
        "idx": idx,
    }


def _message(role: str, digits: list[int]) -> dict[str, Any]:
    return {"role": role, "content": "".join(map(str, digits)), "token_ids": np.array(digits)}

from __future__ import annotations

from typing import Any

from nemo_rl.data.datasets._toy_datasets import prompts


def load_eval_dataset(data_config: dict[str, Any]) -> list[dict[str, Any]]:
    return prompts(data_config)

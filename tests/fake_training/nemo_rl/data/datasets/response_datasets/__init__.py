from __future__ import annotations

from typing import Any

from nemo_rl.data.datasets._toy_datasets import answered


def load_response_dataset(data_config: dict[str, Any]) -> list[dict[str, Any]]:
    return answered(data_config)

from __future__ import annotations

from typing import Any

from nemo_rl.data.datasets._toy_datasets import compared


def load_preference_dataset(data_config: dict[str, Any]) -> list[dict[str, Any]]:
    return compared(data_config)

"""The data sets of the toy task, with the environments that judge them."""

from __future__ import annotations

from typing import Any

from nemo_rl.data.datasets._toy_datasets import TASK, compared, prompts
from nemo_rl.environments.math_environment import MathEnvironment


def setup_response_data(
    tokenizer: Any,
    data_config: dict[str, Any],
    env_configs: dict[str, Any] | None = None,
    is_vlm: bool = False,
) -> tuple[list[dict], list[dict], dict[str, Any], dict[str, Any]]:
    """(train set, validation set, environments by task, environments by task for validation)."""
    environment = MathEnvironment((env_configs or {}).get("math", {}))
    sets = prompts(data_config["train"]), prompts(data_config["validation"])
    return *sets, {TASK: environment}, {TASK: environment}


def setup_preference_data(
    tokenizer: Any, data_config: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """(train set, validation sets by name)."""
    return compared(data_config["train"]), {"toy": compared(data_config["validation"])}

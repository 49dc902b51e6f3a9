"""What is asked of a generation config."""

from __future__ import annotations

from typing import Any


def should_use_async_rollouts(generation_config: dict[str, Any] | None) -> bool:
    return bool(generation_config and generation_config["vllm_cfg"]["async_engine"])

"""NeMo-Gym: environments behind HTTP servers in NeMo RL, none here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from nemo_rl.utils.timer import Timer


class NemoGym:
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.cfg = cfg

    async def run_rollouts(
        self, nemo_gym_examples: list[dict[str, Any]], timer_prefix: str, deduplicate_multimodal_data: bool = False
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        """Each result when it is there; the timer is held open meanwhile."""
        timer = Timer()
        with timer.time(label=f"{timer_prefix}/run_rollouts"):
            for index, example in enumerate(nemo_gym_examples):
                await asyncio.sleep(0)
                yield index, {**example, "reward": 1.0}


def setup_nemo_gym_config(config: Any, tokenizer: Any) -> None:
    config.env["should_use_nemo_gym"] = True


def spinup_nemo_gym_actor(
    env_configs: dict[str, Any],
    base_urls: list[str],
    model_name: str,
    *,
    tokenizer: Any,
    enable_router_replay: bool,
    routed_experts_dtype: str | None,
    use_fastokens: bool,
) -> NemoGym:
    return NemoGym(env_configs)

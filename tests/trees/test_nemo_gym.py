"""NeMo-Gym: its set-up, and rollouts that an asynchronous generator hands out one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from launchers import toy_config
from whole_trees import choices, only, spans_of

TREE = """
rl.setup.nemo_gym_config (setup)
rl.setup.nemo_gym (setup)
rl.gym.run_rollouts (rollout) rl.gym.batch_size=2
"""


def launch(folder: Path) -> None:
    from nemo_rl.environments.nemo_gym import setup_nemo_gym_config, spinup_nemo_gym_actor

    config = toy_config(folder)
    setup_nemo_gym_config(config, tokenizer=None)
    gym = spinup_nemo_gym_actor(
        config.env,
        base_urls=[],
        model_name="toy",
        tokenizer=None,
        enable_router_replay=False,
        routed_experts_dtype=None,
        use_fastokens=False,
    )

    async def rollouts() -> None:
        async for _ in gym.run_rollouts([{"prompt": 1}, {"prompt": 2}], timer_prefix="timing"):
            pass

    asyncio.run(rollouts())


@pytest.mark.parametrize("groups", choices(TREE))
def test_nemo_gym(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

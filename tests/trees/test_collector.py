"""What lies in the asynchronous trajectory collector's actor: the waits of its thread, and the teachers that it asks."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from launchers import toy_config
from whole_trees import choices, only, spans_of

TREE = """
rl.setup.teachers (setup)
  rl.setup.policy (setup)
    rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.idle.refit_event_wait (efficiency) rl.efficiency.category='idle/refit_event_wait'
rl.idle.generation_limit_pause (efficiency) rl.efficiency.category='idle/generation_limit_pause'
rl.opd.teacher_logprob_inference (logprob)
  rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
"""
WAITS = ("idle/refit_event_wait", "idle/generation_limit_pause")


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.async_utils import AsyncTrajectoryCollector, ReplayBuffer
    from nemo_rl.algorithms.opd import create_teacher_worker_groups
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    section = SimpleNamespace(
        num_prompts_per_step=1,
        num_generations_per_prompt=1,
        async_grpo=SimpleNamespace(max_trajectory_age_steps=1, in_flight_weight_updates=False),
    )
    config = toy_config(folder, grpo=section)
    teachers = create_teacher_worker_groups(config, config.policy, None, teacher_clusters={"teacher": None})
    collector = AsyncTrajectoryCollector(
        policy_generation=None,
        tokenizer=None,
        task_to_env={},
        master_config=config,
        replay_buffer=ReplayBuffer(1, drop_incomplete_targets_on_restore=False),
        teacher_worker_groups=teachers,
    )

    timer = collector._efficiency_timer
    start, waits = timer.start, {label: threading.Event() for label in WAITS}

    def start_and_say(label: str, should_log: bool = True) -> None:
        start(label, should_log)
        waits[label].set()

    timer.start = start_and_say
    collector.prepare_for_refit()
    collector._generating_targets = {0, 1}  # every step that it may generate for now
    collector.start_collection([None])
    assert waits["idle/refit_event_wait"].wait(300)
    collector.resume_after_refit()
    assert waits["idle/generation_limit_pause"].wait(300)
    collector.stop()
    teachers["teacher"].get_logprobs(BatchedDataDict({"input_ids": tokens(), "input_lengths": [4]}))


def tokens() -> object:
    import numpy as np

    return np.array([[1, 2, 3, 4]])


@pytest.mark.parametrize("groups", choices(TREE))
def test_collector(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

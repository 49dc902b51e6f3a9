"""GRPO, as `run_grpo.py` launches it: synchronous, over the data plane, and asynchronous."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from launchers import begin, take_turns
from whole_trees import choices, only, spans_of

TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.grpo.job (job)
  rl.grpo.step (step) rl.epoch=1 rl.iteration=1
    rl.grpo.data_processing (data_processing) [overhead]
    rl.weight_sync.transfer (weight_sync)
    rl.grpo.generation (rollout) rl.num_generations_per_prompt=2
      rl.vllm.generate (generation) [productive]
      rl.rollout.environment_step (per_prompt)
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.grpo.step (step) rl.epoch=1 rl.iteration=2
    rl.grpo.data_processing (data_processing) [overhead]
    rl.weight_sync.transfer (weight_sync)
    rl.grpo.generation (rollout) rl.num_generations_per_prompt=2
      rl.vllm.generate (generation) [productive]
      rl.rollout.environment_step (per_prompt)
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.weight_sync.transfer (weight_sync)
    rl.grpo.evaluate (evaluate) rl.step=2
      rl.vllm.generate (generation) [overhead]
      rl.rollout.environment_step (per_prompt)
    rl.grpo.checkpointing (checkpoint) [overhead]
"""

DATA_PLANE_TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.grpo.job (job)
  rl.grpo.step (step) rl.epoch=1 rl.iteration=1
    rl.grpo.data_processing (data_processing) [overhead]
    rl.weight_sync.transfer (weight_sync)
    rl.data_plane.register (data_plane) [overhead] rl.data_plane.keys=4 rl.data_plane.op='register' rl.data_plane.partition='train' rl.data_plane.status='ok'
    rl.grpo.generation (rollout) rl.num_generations_per_prompt=2
      rl.rollout.to_data_plane (rollout) rl.data_plane.partition='train' rl.num_generations_per_prompt=2
        rl.vllm.generate (generation) [productive]
        rl.rollout.environment_step (per_prompt)
        rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=448 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=320 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=128 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=320 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=128 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=416 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=1
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=832 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=4 rl.data_plane.op='clear' rl.data_plane.partition='train' rl.data_plane.status='ok'
    rl.weight_sync.transfer (weight_sync)
    rl.grpo.evaluate (evaluate) rl.step=1
      rl.data_plane.register (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='register' rl.data_plane.partition='val' rl.data_plane.status='ok'
      rl.rollout.to_data_plane (rollout) rl.data_plane.partition='val' rl.num_generations_per_prompt=1
        rl.vllm.generate (generation) [overhead]
        rl.rollout.environment_step (per_prompt)
        rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=224 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='val' rl.data_plane.status='ok'
      rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='clear' rl.data_plane.partition='val' rl.data_plane.status='ok'
    rl.grpo.checkpointing (checkpoint) [overhead]
"""

ASYNC_TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.grpo.job (job)
  rl.weight_sync.transfer (weight_sync)
  rl.init.total (efficiency) rl.efficiency.category='init/total'
  rl.grpo.generation (rollout) rl.num_generations_per_prompt=2 rl.num_prompt_groups=2 rl.target_weight_version=0 rl.weight_version=0
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=1
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=1
      rl.vllm.generate_async (per_prompt)
    rl.rollout.environment_step (per_prompt)
    rl.rollout.environment_step (per_prompt)
  rl.grpo.generation (rollout) rl.num_generations_per_prompt=2 rl.num_prompt_groups=2 rl.target_weight_version=1 rl.weight_version=0
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=1
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=1
      rl.vllm.generate_async (per_prompt)
    rl.rollout.environment_step (per_prompt)
    rl.rollout.environment_step (per_prompt)
  rl.grpo.step (step) rl.iteration=1
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
  rl.grpo.step (step) rl.iteration=2
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
    rl.grpo.evaluate (evaluate) rl.step=2
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.vllm.generate_async (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.vllm.generate_async (per_prompt)
      rl.rollout.environment_step (per_prompt)
    rl.grpo.checkpointing (checkpoint) [overhead]
"""

STARVING_TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.grpo.job (job)
  rl.weight_sync.transfer (weight_sync)
  rl.init.total (efficiency) rl.efficiency.category='init/total'
  rl.grpo.generation (rollout) rl.num_generations_per_prompt=1 rl.num_prompt_groups=2 rl.target_weight_version=0 rl.weight_version=0
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.environment_step (per_prompt)
    rl.rollout.environment_step (per_prompt)
  rl.grpo.generation (rollout) rl.num_generations_per_prompt=1 rl.num_prompt_groups=2 rl.target_weight_version=1 rl.weight_version=0
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.environment_step (per_prompt)
    rl.rollout.environment_step (per_prompt)
  rl.grpo.generation (rollout) rl.num_generations_per_prompt=1 rl.num_prompt_groups=2 rl.target_weight_version=2 rl.weight_version=0
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.environment_step (per_prompt)
    rl.rollout.environment_step (per_prompt)
  rl.grpo.step (step) rl.iteration=1
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
  rl.grpo.step (step) rl.iteration=2
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
    rl.grpo.checkpointing (checkpoint) [overhead]
  rl.grpo.step (step) rl.iteration=3
    rl.idle.buffer_starvation (efficiency) [idle] rl.efficiency.category='idle/buffer_starvation' rl.idle.polls=1
    rl.grpo.reward_calculation (reward) [productive]
    rl.grpo.data_processing (data_processing) [overhead]
    rl.grpo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation (advantage) [overhead]
    rl.grpo.policy_training (policy_update) [productive] rl.iteration=3
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
    rl.grpo.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path, mode: str = "synchronous") -> None:
    from nemo_rl.algorithms import _grpo_setup, grpo, grpo_sync
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.utils import setup_response_data
    from nemo_rl.models.generation import configure_generation_config
    from nemo_rl.models.policy.tq_policy import TQPolicy

    raw = begin(folder)
    raw.grpo.update(
        num_prompts_per_step=2,
        num_generations_per_prompt=2,
        max_num_epochs=1,
        max_num_steps=1 if mode == "data plane" else 2,
        val_period=1 if mode == "data plane" else 2,
        val_batch_size=2,
        max_val_samples=2,
    )
    asynchronous = mode in ("asynchronous", "starving")
    raw.policy["generation"]["vllm_cfg"]["async_engine"] = asynchronous
    raw.policy["generation"]["colocated"]["enabled"] = not asynchronous
    if mode == "starving":
        raw.grpo.update(max_num_steps=3, val_period=0, num_generations_per_prompt=1)
        raw.grpo["async_grpo"].update(max_trajectory_age_steps=2, in_flight_weight_updates=True)
        raw.data["train"]["num_samples"] = 6
    raw.data_plane["enabled"] = mode == "data plane"
    config = grpo.MasterConfig(**vars(raw))
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    configure_generation_config(config.policy["generation"], tokenizer)
    data, val_data, environments, val_environments = setup_response_data(tokenizer, config.data, config.env)

    def policy_over_data_plane(**kwargs: Any) -> TQPolicy:
        return TQPolicy(**kwargs, dp_cfg=config.data_plane)

    # one after the other, so that a tree is the same every time
    _grpo_setup.ThreadPoolExecutor = lambda max_workers: ThreadPoolExecutor(1)
    policy, generation, _, _, loader, val_loader, loss_fn, logger, checkpointer, state, *_ = grpo.setup(
        config,
        tokenizer,
        data,
        val_data,
        policy_factory=policy_over_data_plane if mode == "data plane" else None,
    )
    train = {
        "synchronous": grpo.grpo_train,
        "data plane": grpo_sync.grpo_train_sync,
        "asynchronous": grpo.async_grpo_train,
        "starving": partial(grpo.async_grpo_train, max_trajectory_age_steps=2),
    }
    if asynchronous:
        take_turns(grpo, late_target=2 if mode == "starving" else None)
    train[mode](
        policy,
        generation,
        loader,
        val_loader,
        tokenizer,
        loss_fn,
        environments,
        val_environments,
        logger,
        checkpointer,
        state,
        config,
    )


def launch_data_plane(folder: Path) -> None:
    launch(folder, "data plane")


def launch_async(folder: Path) -> None:
    launch(folder, "asynchronous")


def launch_starving(folder: Path) -> None:
    launch(folder, "starving")


@pytest.mark.parametrize("groups", choices(TREE))
def test_grpo(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)


@pytest.mark.parametrize("groups", choices(DATA_PLANE_TREE))
def test_grpo_over_the_data_plane(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch_data_plane(tmp_path), groups) == only(groups, DATA_PLANE_TREE)


@pytest.mark.parametrize("groups", choices(ASYNC_TREE))
def test_async_grpo(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch_async(tmp_path), groups) == only(groups, ASYNC_TREE)


@pytest.mark.parametrize("groups", choices(STARVING_TREE))
def test_async_grpo_that_waits_for_its_third_batch(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch_starving(tmp_path), groups) == only(groups, STARVING_TREE)

"""PPO, synchronous and asynchronous, as `run_ppo.py` launches it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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
    rl.setup.value (setup)
      rl.value.load_model (model_init) rl.backend='dtensor_v2'
rl.ppo.job (job)
  rl.weight_sync.transfer (weight_sync)
  rl.ppo.evaluate (evaluate) rl.step=0
    rl.vllm.generate (generation) [overhead]
    rl.rollout.environment_step (per_prompt)
  rl.ppo.step (step) rl.epoch=1 rl.iteration=1
    rl.ppo.data_processing (data_processing) [overhead]
    rl.ppo.generation (rollout) rl.num_generations_per_prompt=2
      rl.vllm.generate (generation) [productive]
      rl.rollout.environment_step (per_prompt)
    rl.ppo.reward_calculation (reward) [productive]
    rl.ppo.data_processing (data_processing) [overhead]
    rl.ppo.value_inference (logprob) [overhead]
      rl.value.worker.get_values (logprob) rl.backend='dtensor_v2'
    rl.ppo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.ppo.advantage_calculation (advantage) [overhead]
    rl.ppo.value_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=0
      rl.value.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.ppo.policy_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=0
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.ppo.value_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=1
      rl.value.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.ppo.policy_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.ppo.step (step) rl.epoch=1 rl.iteration=2
    rl.ppo.data_processing (data_processing) [overhead]
    rl.weight_sync.transfer (weight_sync)
    rl.ppo.generation (rollout) rl.num_generations_per_prompt=2
      rl.vllm.generate (generation) [productive]
      rl.rollout.environment_step (per_prompt)
    rl.ppo.reward_calculation (reward) [productive]
    rl.ppo.data_processing (data_processing) [overhead]
    rl.ppo.value_inference (logprob) [overhead]
      rl.value.worker.get_values (logprob) rl.backend='dtensor_v2'
    rl.ppo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs (logprob) rl.backend='dtensor_v2'
    rl.ppo.advantage_calculation (advantage) [overhead]
    rl.ppo.value_training (policy_update) [productive] rl.iteration=2 rl.ppo_epoch=0
      rl.value.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.ppo.policy_training (policy_update) [productive] rl.iteration=2 rl.ppo_epoch=0
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.ppo.value_training (policy_update) [productive] rl.iteration=2 rl.ppo_epoch=1
      rl.value.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.ppo.policy_training (policy_update) [productive] rl.iteration=2 rl.ppo_epoch=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.weight_sync.transfer (weight_sync)
    rl.ppo.evaluate (evaluate) rl.step=2
      rl.vllm.generate (generation) [overhead]
      rl.rollout.environment_step (per_prompt)
    rl.ppo.checkpointing (checkpoint) [overhead]
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
      rl.policy.load_model (model_init) rl.backend='megatron'
    rl.setup.value (setup)
      rl.value.load_model (model_init) rl.backend='megatron'
rl.ppo.job (job)
  rl.weight_sync.transfer (weight_sync)
  rl.ppo.evaluate (evaluate) rl.step=0
    rl.rollout.sample (per_prompt) rl.rollout.sample=0
      rl.vllm.generate_async (per_prompt)
    rl.rollout.sample (per_prompt) rl.rollout.sample=1
      rl.vllm.generate_async (per_prompt)
    rl.rollout.environment_step (per_prompt)
  rl.init.total (efficiency) rl.efficiency.category='init/total'
  rl.ppo.generation (rollout) rl.num_generations_per_prompt=2 rl.num_prompt_groups=2 rl.target_weight_version=0 rl.weight_version=0
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
  rl.ppo.generation (rollout) rl.num_generations_per_prompt=2 rl.num_prompt_groups=2 rl.target_weight_version=1 rl.weight_version=0
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
  rl.ppo.step (step) rl.iteration=1
    rl.ppo.data_processing (data_processing) [overhead]
    rl.ppo.value_inference (logprob) [overhead]
      rl.value.worker.get_values (logprob) rl.backend='megatron'
    rl.ppo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
    rl.ppo.advantage_calculation (advantage) [overhead]
    rl.ppo.value_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=0
      rl.value.worker.train (policy_update) rl.backend='megatron'
    rl.ppo.policy_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=0
      rl.policy.worker.train (policy_update) rl.backend='megatron'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
  rl.ppo.step (step) rl.iteration=2
    rl.ppo.data_processing (data_processing) [overhead]
    rl.ppo.value_inference (logprob) [overhead]
      rl.value.worker.get_values (logprob) rl.backend='megatron'
    rl.ppo.policy_and_reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
    rl.ppo.advantage_calculation (advantage) [overhead]
    rl.ppo.value_training (policy_update) [productive] rl.iteration=2 rl.ppo_epoch=1
      rl.value.worker.train (policy_update) rl.backend='megatron'
    rl.ppo.policy_training (policy_update) [productive] rl.iteration=2 rl.ppo_epoch=1
      rl.policy.worker.train (policy_update) rl.backend='megatron'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync)
    rl.ppo.evaluate (evaluate) rl.step=2
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.vllm.generate_async (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.vllm.generate_async (per_prompt)
      rl.rollout.environment_step (per_prompt)
    rl.ppo.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path, asynchronous: bool = False) -> None:
    from nemo_rl.algorithms import ppo
    from nemo_rl.algorithms.loss import ClippedPGLossConfig
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.utils import setup_response_data
    from nemo_rl.models.generation import configure_generation_config

    section = SimpleNamespace(
        seed=1,
        num_prompts_per_step=2,
        num_generations_per_prompt=2,
        max_num_epochs=1,
        max_num_steps=2,
        max_rollout_turns=1,
        ppo_epochs=2 - asynchronous,
        val_batch_size=2,
        val_at_start=True,
        val_at_end=False,
        val_period=2,
        async_ppo=SimpleNamespace(max_trajectory_age_steps=1, in_flight_weight_updates=False),
    )
    backend = "megatron" if asynchronous else "dtensor_v2"
    config = begin(folder, backend, ppo=section, value_loss_fn={})
    config.value = config.policy
    config.loss_fn = ClippedPGLossConfig(**config.loss_fn)
    config.policy["generation"]["colocated"]["enabled"] = not asynchronous
    config.policy["generation"]["vllm_cfg"]["async_engine"] = asynchronous
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    configure_generation_config(config.policy["generation"], tokenizer)
    data, val_data, environments, val_environments = setup_response_data(tokenizer, config.data, config.env)
    (
        policy,
        generation,
        value_model,
        _,
        loader,
        val_loader,
        loss_fn,
        value_loss_fn,
        logger,
        checkpointer,
        state,
        config,
    ) = ppo.setup(config, tokenizer, data, val_data)
    if asynchronous:
        take_turns(ppo)
    (ppo.async_ppo_train if asynchronous else ppo.ppo_train)(
        policy,
        generation,
        value_model,
        loader,
        val_loader,
        tokenizer,
        loss_fn,
        value_loss_fn,
        environments,
        val_environments,
        logger,
        checkpointer,
        state,
        config,
    )


def launch_async(folder: Path) -> None:
    launch(folder, asynchronous=True)


@pytest.mark.parametrize("groups", choices(TREE))
def test_ppo(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)


@pytest.mark.parametrize("groups", choices(ASYNC_TREE))
def test_async_ppo(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch_async(tmp_path), groups) == only(groups, ASYNC_TREE)

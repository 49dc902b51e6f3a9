"""The single controller, for GRPO and for PPO, as `run_grpo_single_controller.py` launches it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from launchers import begin
from whole_trees import choices, only, spans_of

GRPO_TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.workers (setup)
    rl.setup.data (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='megatron'
    rl.data_plane.register (data_plane) [overhead] rl.data_plane.keys=64 rl.data_plane.op='register' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
rl.sc.job (job)
  rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CollectiveWeightSynchronizer'
  rl.sc.step (step) rl.iteration=1 rl.weight_version=0
    rl.idle.buffer_starvation (efficiency) [idle] rl.efficiency.category='idle/buffer_starvation' rl.idle.polls=N
    rl.sc.logprob_inference_prep (logprob) [overhead]
    rl.sc.policy_and_reference_logprobs (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.advantage_calculation (advantage) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.training_prep (policy_update) [overhead]
    rl.sc.policy_training (policy_update) [productive] rl.iteration=1
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=416 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
    rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='clear' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.idle.buffer_starvation (efficiency) [idle] rl.efficiency.category='idle/buffer_starvation' rl.idle.polls=N
    rl.sc.logprob_inference_prep (logprob) [overhead]
    rl.sc.policy_and_reference_logprobs (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.advantage_calculation (advantage) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.training_prep (policy_update) [overhead]
    rl.sc.policy_training (policy_update) [productive] rl.iteration=1
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=416 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
    rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='clear' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.policy_training (policy_update) [productive] rl.iteration=1
      rl.sc.policy_optimizer_step (policy_update)
        rl.policy.worker.finish_train_step (policy_update) rl.backend='megatron'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CollectiveWeightSynchronizer'
  rl.sc.generate_and_push (per_prompt) rl.rollout.attempt=0 rl.target_step=0
    rl.rollout.prompt_group (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
    rl.data_plane.put (per_prompt) rl.data_plane.bytes=240 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
  rl.sc.generate_and_push (per_prompt) rl.rollout.attempt=0 rl.target_step=0
    rl.rollout.prompt_group (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
    rl.data_plane.put (per_prompt) rl.data_plane.bytes=240 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
  rl.sc.step (step) rl.iteration=2 rl.weight_version=1
    rl.idle.buffer_starvation (efficiency) [idle] rl.efficiency.category='idle/buffer_starvation' rl.idle.polls=N
    rl.sc.logprob_inference_prep (logprob) [overhead]
    rl.sc.policy_and_reference_logprobs (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.advantage_calculation (advantage) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.training_prep (policy_update) [overhead]
    rl.sc.policy_training (policy_update) [productive] rl.iteration=2
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=416 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
    rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='clear' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.idle.buffer_starvation (efficiency) [idle] rl.efficiency.category='idle/buffer_starvation' rl.idle.polls=N
    rl.sc.logprob_inference_prep (logprob) [overhead]
    rl.sc.policy_and_reference_logprobs (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=64 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.advantage_calculation (advantage) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=80 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.training_prep (policy_update) [overhead]
    rl.sc.policy_training (policy_update) [productive] rl.iteration=2
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=416 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
    rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='clear' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.policy_training (policy_update) [productive] rl.iteration=2
      rl.sc.policy_optimizer_step (policy_update)
        rl.policy.worker.finish_train_step (policy_update) rl.backend='megatron'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CollectiveWeightSynchronizer'
    rl.sc.checkpointing (checkpoint) [overhead]
  rl.sc.generate_and_push (per_prompt) rl.rollout.attempt=0 rl.target_step=1
    rl.rollout.prompt_group (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
    rl.data_plane.put (per_prompt) rl.data_plane.bytes=240 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
  rl.sc.generate_and_push (per_prompt) rl.rollout.attempt=0 rl.target_step=1
    rl.rollout.prompt_group (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
    rl.data_plane.put (per_prompt) rl.data_plane.bytes=240 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
"""

PPO_TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.workers (setup)
    rl.setup.data (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='megatron'
    rl.setup.value (setup)
      rl.value.load_model (model_init) rl.backend='megatron'
    rl.data_plane.register (data_plane) [overhead] rl.data_plane.keys=64 rl.data_plane.op='register' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
rl.sc.job (job)
  rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CollectiveWeightSynchronizer'
  rl.sc.step (step) rl.iteration=1 rl.weight_version=0
    rl.idle.buffer_starvation (efficiency) [idle] rl.efficiency.category='idle/buffer_starvation' rl.idle.polls=N
    rl.sc.logprob_inference_prep (logprob) [overhead]
    rl.sc.policy_and_reference_logprobs (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=320 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=128 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=320 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=128 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.value_inference_prep (logprob) [overhead]
    rl.sc.value_inference (logprob) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=128 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.value.worker.get_values (logprob) rl.backend='megatron'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=32 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.advantage_calculation (advantage) [overhead]
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=192 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=4 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.sc.value_training (policy_update) [productive] rl.critic_epochs=1 rl.iteration=1 rl.ppo_epoch=0
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.value.worker.train (policy_update) rl.backend='megatron'
    rl.sc.training_prep (policy_update) [overhead]
    rl.sc.policy_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=0
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=832 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
      rl.sc.policy_optimizer_step (policy_update)
        rl.policy.worker.finish_train_step (policy_update) rl.backend='megatron'
    rl.sc.value_training (policy_update) [productive] rl.critic_epochs=1 rl.iteration=1 rl.ppo_epoch=1
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.value.worker.train (policy_update) rl.backend='megatron'
    rl.sc.training_prep (policy_update) [overhead]
    rl.sc.policy_training (policy_update) [productive] rl.iteration=1 rl.ppo_epoch=1
      rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=832 rl.data_plane.keys=4 rl.data_plane.op='get' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
      rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
      rl.sc.policy_optimizer_step (policy_update)
        rl.policy.worker.finish_train_step (policy_update) rl.backend='megatron'
    rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=4 rl.data_plane.op='clear' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
    rl.idle.refit_bubble (efficiency) [idle] rl.efficiency.category='idle/refit_bubble'
      rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CollectiveWeightSynchronizer'
    rl.sc.checkpointing (checkpoint) [overhead]
  rl.sc.generate_and_push (per_prompt) rl.rollout.attempt=0 rl.target_step=0
    rl.rollout.prompt_group (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
    rl.data_plane.put (per_prompt) rl.data_plane.bytes=240 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
  rl.sc.generate_and_push (per_prompt) rl.rollout.attempt=0 rl.target_step=0
    rl.rollout.prompt_group (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=0
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
      rl.rollout.sample (per_prompt) rl.rollout.sample=1
        rl.rollout.turn (per_prompt)
          rl.vllm.generate_async (per_prompt)
        rl.rollout.environment_step (per_prompt)
    rl.data_plane.put (per_prompt) rl.data_plane.bytes=240 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='rollout_data' rl.data_plane.status='ok'
"""


def launch(folder: Path, ppo_epochs: int = 0) -> None:
    from nemo_rl.algorithms.loss import ClippedPGLossConfig
    from nemo_rl.algorithms.single_controller import SingleControllerActor
    from nemo_rl.algorithms.single_controller_utils.setup import setup_single_controller
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.models.generation import configure_generation_config

    section = SimpleNamespace(
        seed=1,
        num_prompts_per_step=2,
        num_generations_per_prompt=2,
        min_groups_for_streaming_train=2 if ppo_epochs else 1,
        max_num_steps=1 if ppo_epochs else 2,
        ppo_epochs=ppo_epochs,
    )
    config = begin(folder, backend="megatron", algorithm=section)
    config.value = config.policy
    config.loss_fn = ClippedPGLossConfig(**config.loss_fn)
    config.data_plane["enabled"] = True
    config.data["train"]["num_samples"] = 2 * section.max_num_steps
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    configure_generation_config(config.policy["generation"], tokenizer)
    actor_args, setup_timing_metrics = setup_single_controller(config, tokenizer)

    async def actor() -> None:
        controller = SingleControllerActor(config, actor_args, setup_timing_metrics)
        await controller.run()

    asyncio.run(actor())


def polled(tree: str) -> str:
    """How often a wait polls, every 5 ms, is up to the machine."""
    return re.sub(r"(?<=rl\.idle\.polls=)[1-9]\d*", "N", tree)


def launch_ppo(folder: Path) -> None:
    launch(folder, ppo_epochs=2)


@pytest.mark.parametrize("groups", choices(GRPO_TREE))
def test_grpo(tmp_path: Path, groups: str) -> None:
    assert polled(spans_of(lambda: launch(tmp_path), groups)) == only(groups, GRPO_TREE)


@pytest.mark.parametrize("groups", choices(PPO_TREE))
def test_ppo(tmp_path: Path, groups: str) -> None:
    assert polled(spans_of(lambda: launch_ppo(tmp_path), groups)) == only(groups, PPO_TREE)

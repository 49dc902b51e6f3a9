"""On-policy distillation from one teacher, as `run_distillation.py` launches it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from launchers import begin
from whole_trees import choices, only, spans_of

TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.distillation.job (job)
  rl.weight_sync.transfer (weight_sync)
  rl.distillation.evaluate (evaluate) rl.step=0
    rl.vllm.generate (generation) [overhead]
    rl.rollout.environment_step (per_prompt)
  rl.distillation.step (step) rl.epoch=1 rl.iteration=1
    rl.distillation.data_processing (data_processing) [overhead]
    rl.distillation.generation (rollout) rl.num_generations_per_prompt=2
      rl.vllm.generate (generation) [productive]
      rl.rollout.environment_step (per_prompt)
    rl.distillation.data_processing (data_processing) [overhead]
    rl.distillation.teacher_logprob_inference (logprob) [overhead]
      rl.policy.worker.get_topk_logits (logprob) rl.backend='dtensor_v2'
    rl.distillation.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.distillation.step (step) rl.epoch=1 rl.iteration=2
    rl.distillation.data_processing (data_processing) [overhead]
    rl.weight_sync.transfer (weight_sync)
    rl.distillation.generation (rollout) rl.num_generations_per_prompt=2
      rl.vllm.generate (generation) [productive]
      rl.rollout.environment_step (per_prompt)
    rl.distillation.data_processing (data_processing) [overhead]
    rl.distillation.teacher_logprob_inference (logprob) [overhead]
      rl.policy.worker.get_topk_logits (logprob) rl.backend='dtensor_v2'
    rl.distillation.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.weight_sync.transfer (weight_sync)
    rl.distillation.evaluate (evaluate) rl.step=2
      rl.vllm.generate (generation) [overhead]
      rl.rollout.environment_step (per_prompt)
    rl.distillation.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.distillation import distillation_train, setup
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
        topk_logits_k=2,
        val_batch_size=2,
        val_at_start=True,
        val_at_end=False,
        val_period=2,
    )
    config = begin(folder, distillation=section)
    config.teacher = config.policy
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    configure_generation_config(config.policy["generation"], tokenizer)
    data, val_data, environments, val_environments = setup_response_data(tokenizer, config.data, config.env)
    student, teacher, generation, loader, val_loader, loss_fn, logger, checkpointer, state, config = setup(
        config, tokenizer, data, val_data
    )
    distillation_train(
        student,
        teacher,
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


@pytest.mark.parametrize("groups", choices(TREE))
def test_distillation(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

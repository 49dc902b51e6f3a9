"""Cross-tokenizer distillation from two teachers, as `run_xtoken_off_policy_distillation.py` launches it."""

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
  rl.setup.tokenizer (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.xtoken_distillation.job (job)
  rl.xtoken_distillation.evaluate (evaluate)
    rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
    rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
    rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.xtoken_distillation.step (step) rl.epoch=1 rl.iteration=1
    rl.xtoken_distillation.teacher_forward (logprob) [overhead]
      rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
    rl.xtoken_distillation.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.xtoken_distillation.step (step) rl.epoch=1 rl.iteration=2
    rl.xtoken_distillation.teacher_forward (logprob) [overhead]
      rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
    rl.xtoken_distillation.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.xtoken_distillation.evaluate (evaluate)
      rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.get_full_logits_ipc (logprob) rl.backend='dtensor_v2'
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.xtoken_distillation.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.algorithms.xtoken_off_policy_distillation import setup, xtoken_off_policy_distillation_train
    from nemo_rl.data.utils import setup_preference_data

    section = {"seed": 1, "num_prompts_per_step": 2, "val_at_start": True, "val_period": 2}
    config = begin(folder, distillation={**section, "max_num_epochs": 1, "max_num_steps": 2})
    config.teachers = [SimpleNamespace(policy_config=lambda: config.policy)] * 2
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    teacher_tokenizers = [get_tokenizer(t.policy_config()["tokenizer"]) for t in config.teachers]
    data, val_data = setup_preference_data(tokenizer, config.data)
    student, teachers, loader, val_loader, loss_fn, logger, checkpointer, state, config = setup(
        config, tokenizer, teacher_tokenizers, data, val_data["toy"]
    )
    xtoken_off_policy_distillation_train(
        student, teachers, loader, val_loader, loss_fn, logger, checkpointer, state, config
    )


@pytest.mark.parametrize("groups", choices(TREE))
def test_xtoken_distillation(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

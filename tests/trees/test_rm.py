"""Reward-model training, as `run_rm.py` launches it: the update is known by its function, for it has no timer block."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import begin, supervised
from whole_trees import choices, only, spans_of

TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.data (setup)
  rl.setup.workers (setup)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor'
rl.rm.job (job)
  rl.rm.evaluate (evaluate) rl.step=0
    rl.policy.worker.train (policy_update) rl.backend='dtensor'
  rl.rm.step (step) rl.epoch=1 rl.iteration=1
    rl.rm.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor'
  rl.rm.step (step) rl.epoch=1 rl.iteration=2
    rl.rm.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor'
    rl.rm.evaluate (evaluate) rl.step=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor'
    rl.rm.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.rm import rm_train, setup
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.utils import setup_preference_data

    config = begin(folder, backend="dtensor", rm=supervised())
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    policy, _, loader, val_loader, loss_fn, logger, checkpointer, state, config = setup(
        config, tokenizer, *setup_preference_data(tokenizer, config.data)
    )
    rm_train(policy, loader, val_loader, tokenizer, loss_fn, config, logger, checkpointer, state)


@pytest.mark.parametrize("groups", choices(TREE))
def test_rm(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

"""Supervised fine-tuning, as `run_sft.py` launches it."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import begin, supervised
from whole_trees import choices, only, spans_of

TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.dataset (setup)
  rl.setup.dataset (setup)
  rl.setup.workers (setup)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.sft.job (job)
  rl.sft.evaluate (evaluate) rl.step=0
    rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.sft.step (step) rl.epoch=1 rl.iteration=1
    rl.sft.data_processing (data_processing) [overhead]
    rl.sft.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
  rl.sft.step (step) rl.epoch=1 rl.iteration=2
    rl.sft.data_processing (data_processing) [overhead]
    rl.sft.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.sft.evaluate (evaluate) rl.step=2
      rl.policy.worker.train (policy_update) rl.backend='dtensor_v2'
    rl.sft.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.sft import setup, sft_train
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.datasets.response_datasets import load_response_dataset

    config = begin(folder, sft=supervised(only_unmask_final=False))
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    data, val_data = (load_response_dataset(config.data[kind]) for kind in ("train", "validation"))
    policy, _, loader, val_loader, loss_fn, logger, checkpointer, state, config = setup(
        config, tokenizer, data, val_data
    )
    sft_train(policy, loader, val_loader, tokenizer, loss_fn, config, logger, checkpointer, state)


@pytest.mark.parametrize("groups", choices(TREE))
def test_sft(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

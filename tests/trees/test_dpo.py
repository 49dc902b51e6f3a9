"""Direct preference optimization, as `run_dpo.py` launches it: reference log-probabilities lie outside the step."""

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
      rl.policy.load_model (model_init) rl.backend='megatron'
rl.dpo.job (job)
  rl.dpo.evaluate (evaluate) rl.step=0
    rl.dpo.reference_logprobs (logprob) [overhead]
      rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
    rl.policy.worker.train (policy_update) rl.backend='megatron'
  rl.dpo.reference_logprobs (logprob) [overhead]
    rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
  rl.dpo.step (step) rl.epoch=1 rl.iteration=1
    rl.dpo.policy_training (policy_update) [productive] rl.iteration=1
      rl.policy.worker.train (policy_update) rl.backend='megatron'
  rl.dpo.reference_logprobs (logprob) [overhead]
    rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
  rl.dpo.step (step) rl.epoch=1 rl.iteration=2
    rl.dpo.policy_training (policy_update) [productive] rl.iteration=2
      rl.policy.worker.train (policy_update) rl.backend='megatron'
    rl.dpo.evaluate (evaluate) rl.step=2
      rl.dpo.reference_logprobs (logprob) [overhead]
        rl.policy.worker.get_logprobs (logprob) rl.backend='megatron'
      rl.policy.worker.train (policy_update) rl.backend='megatron'
    rl.dpo.checkpointing (checkpoint) [overhead]
"""


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.dpo import dpo_train, setup
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.utils import setup_preference_data

    config = begin(folder, backend="megatron", dpo=supervised())
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    policy, _, loader, val_loader, loss_fn, logger, checkpointer, state, config = setup(
        config, tokenizer, *setup_preference_data(tokenizer, config.data)
    )
    dpo_train(policy, loader, val_loader, tokenizer, loss_fn, config, logger, checkpointer, state)


@pytest.mark.parametrize("groups", choices(TREE))
def test_dpo(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

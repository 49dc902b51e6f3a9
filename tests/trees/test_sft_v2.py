"""SFT v2: set-up and shutdown in the driver, training in the controller's actor, reading with the loader's owners.

In one process here; that spans follow Ray's calls is shown with real Ray, in tests/real/test_ray.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import begin, supervised
from whole_trees import choices, only, spans_of

TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
rl.sft_v2.driver (job)
  rl.setup.workers (setup)
    rl.setup.policy (setup)
      rl.policy.load_model (model_init) rl.backend='megatron'
    rl.policy.load_model (model_init) rl.backend='megatron'
  rl.sft_v2.job (job)
    rl.data_plane.register (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='register' rl.data_plane.partition='train' rl.data_plane.status='ok'
    rl.sft_v2.step (step) rl.iteration=1
      rl.sft_v2.read_batch (data_processing) [overhead]
      rl.sft_v2.prepare_batch (data_processing) [overhead]
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.sft_v2.policy_training (policy_update) [productive]
        rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
        rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
        rl.policy.worker.finish_train_step (policy_update) rl.backend='megatron'
    rl.sft_v2.step (step) rl.iteration=2
      rl.sft_v2.read_batch (data_processing) [overhead]
      rl.sft_v2.prepare_batch (data_processing) [overhead]
      rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
      rl.sft_v2.policy_training (policy_update) [productive]
        rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=160 rl.data_plane.keys=2 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
        rl.policy.worker.train_microbatch (policy_update) rl.backend='megatron'
        rl.policy.worker.finish_train_step (policy_update) rl.backend='megatron'
    rl.sft_v2.checkpointing (checkpoint) [overhead]
  rl.data_plane.close (data_plane) [overhead] rl.data_plane.op='close' rl.data_plane.status='ok'
"""


def launch(folder: Path) -> None:
    from nemo_rl.algorithms.sft_v2 import SFTSingleControllerActor, setup_sft_v2
    from nemo_rl.algorithms.utils import get_tokenizer

    config = begin(folder, backend="megatron", sft=supervised(only_unmask_final=False))
    config.data_plane["enabled"] = True
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    actor_args = setup_sft_v2(config, tokenizer)
    SFTSingleControllerActor(config, actor_args).run()
    actor_args.trainer.shutdown()


@pytest.mark.parametrize("groups", choices(TREE))
def test_sft_v2(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

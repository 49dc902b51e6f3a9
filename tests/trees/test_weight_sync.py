"""New weights reach the engine in every way that there is, and the span says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launchers import toy_config
from whole_trees import choices, only, spans_of

TREE = """
rl.setup.policy (setup)
  rl.policy.load_model (model_init) rl.backend='dtensor_v2'
rl.setup.generation (setup) rl.backend='VllmGeneration'
  rl.vllm.load_model (model_init)
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='IPCWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CollectiveWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='HTTPWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='CheckpointEngineWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='MegatronWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='NcclReshardWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='VllmRemoteSparseWeightSynchronizer'
rl.weight_sync.transfer (weight_sync) rl.weight_sync.method='OfALaterRelease'
"""


def launch(folder: Path) -> None:
    from nemo_rl.models.generation.vllm import VllmGeneration
    from nemo_rl.models.policy.lm_policy import Policy
    from nemo_rl.weight_sync.checkpoint_engine_weight_synchronizer import CheckpointEngineWeightSynchronizer
    from nemo_rl.weight_sync.collective_weight_synchronizer import CollectiveWeightSynchronizer
    from nemo_rl.weight_sync.http_weight_synchronizer import HTTPWeightSynchronizer
    from nemo_rl.weight_sync.ipc_weight_synchronizer import IPCWeightSynchronizer
    from nemo_rl.weight_sync.megatron_weight_synchronizer import MegatronWeightSynchronizer
    from nemo_rl.weight_sync.nccl_reshard_weight_synchronizer import NcclReshardWeightSynchronizer
    from nemo_rl.weight_sync.vllm_remote_sparse_weight_synchronizer import VllmRemoteSparseWeightSynchronizer

    class OfALaterRelease(IPCWeightSynchronizer):
        """No map names it. What it hands on to the class above is the same transfer."""

        def sync_weights(self, *, timer: Any = None, kv_scales: Any = None) -> None:
            super().sync_weights(timer=timer, kv_scales=kv_scales)

    config = toy_config(folder)
    policy = Policy(None, config.policy, None)
    engine = VllmGeneration(None, config.policy["generation"])
    engine.prepare_refit_info(policy.prepare_refit_info())
    for synchronizer in (
        IPCWeightSynchronizer(policy, engine),
        CollectiveWeightSynchronizer(policy, engine, None, None),
        HTTPWeightSynchronizer(policy, engine),
        CheckpointEngineWeightSynchronizer(policy, engine),
        MegatronWeightSynchronizer(policy, engine, colocated=False),
        NcclReshardWeightSynchronizer(policy, engine, None, None),
        VllmRemoteSparseWeightSynchronizer(policy, engine, transport="http"),
        OfALaterRelease(policy, engine),
    ):
        synchronizer.sync_weights()


@pytest.mark.parametrize("groups", choices(TREE))
def test_weight_sync(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)

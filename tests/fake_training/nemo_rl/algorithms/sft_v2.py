"""SFT v2: a controller actor drives the policy workers, and those read their own batches. No timer blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms._supervised_setup import SupervisedSaveState
from nemo_rl.algorithms.loss import NLLLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.dataloader import StatefulDataLoader
from nemo_rl.data.datasets._toy_datasets import answered
from nemo_rl.data.energon.sft_worker import SFTMegatronPolicyWorker
from nemo_rl.data_plane.interfaces import KVBatchMeta
from nemo_rl.data_plane.schema import LP_SEED_FIELDS
from nemo_rl.models.policy.tq_policy import TQPolicy
from nemo_rl.utils.checkpoint import CheckpointManager


def setup_sft_v2(master_config: Any, tokenizer_or_processor: Any) -> SimpleNamespace:
    """What the controller's actor is given."""
    set_seed(master_config.sft.seed)
    trainer = TQPolicy(None, master_config.policy, tokenizer_or_processor, dp_cfg=master_config.data_plane)
    trainer.train_fields = LP_SEED_FIELDS
    owner = SFTMegatronPolicyWorker(master_config.policy, tokenizer_or_processor, worker_sharding_annotations=None)
    return SimpleNamespace(trainer=trainer, owners=[owner], loss_fn=NLLLossFn())


class SFTSingleControllerActor:
    def __init__(self, master_config: Any, actor_args: Any) -> None:
        self._master_config = master_config
        self._trainer, self._owners, self._loss_fn = actor_args.trainer, actor_args.owners, actor_args.loss_fn
        self._checkpointer = CheckpointManager(master_config.checkpointing)
        self._save_state = SupervisedSaveState()

    def run(self) -> int:
        sft = self._master_config.sft
        self._trainer.prepare_step(num_samples=self._master_config.policy["train_global_batch_size"])
        self._setup_loaders()
        while self._save_state.total_steps < sft.max_num_steps:
            loss = self._run_train_step()
            self._save_state.total_steps += 1
            if self._save_state.total_steps % self._master_config.checkpointing["save_period"] == 0:
                self._save_checkpoint(loss)
        self._close_loaders()
        return self._save_state.total_steps

    def _setup_loaders(self) -> None:
        data = answered(self._master_config.data["train"])
        size = self._master_config.policy["train_global_batch_size"]
        for owner in self._owners:
            owner.batches = iter(StatefulDataLoader(data, size, False, rl_collate_fn))

    def _load_envelopes(self) -> KVBatchMeta:
        """The batch stays in the data plane; what travels are names."""
        batches = [
            owner.load_next_sft_batch(
                only_unmask_final=self._master_config.sft.only_unmask_final, make_sequence_length_divisible_by=1
            )
            for owner in self._owners
        ]
        names = [f"step{self._save_state.total_steps}_{i}" for i in range(batches[0].size)]
        meta = KVBatchMeta("train", None, names, fields=list(LP_SEED_FIELDS))
        self._trainer.write_to_dataplane(meta, batches[0])
        return meta

    def _run_train_step(self) -> float:
        envelopes = self._load_envelopes()
        self._trainer.begin_train_step(self._loss_fn)
        self._trainer.train_microbatches_from_meta(envelopes)
        train_results = self._trainer.finish_train_step()
        return train_results["loss"]

    def _save_checkpoint(self, metric: float) -> None:
        step = self._save_state.total_steps
        write_checkpoint(self._checkpointer, self._trainer, {}, step, self._save_state, self._master_config)

    def _close_loaders(self) -> None:
        self._checkpointer.shutdown()

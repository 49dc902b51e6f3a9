"""Building what SFT, DPO and RM training need, which is the same: weights, data loaders, logger, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.dataloader import StatefulDataLoader
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger


class Section(SimpleNamespace):
    """A part of a config, its keys as attributes. NeMo RL has a pydantic model for each."""


@dataclass
class SupervisedSaveState:
    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    consumed_samples: int = 0
    total_valid_tokens: int = 0


def build(
    master_config: Any,
    section: Section,
    tokenizer: Any,
    train_dataset: Any,
    val_dataset: Any,
    collate_fn: Callable[[list], Any],
    loss_fn: Any,
    save_state: Any,
) -> tuple:
    """The 9 things that a supervised `setup` returns, in NeMo RL's order."""
    set_seed(section.seed)
    logger = Logger(master_config.logger)
    checkpointer = CheckpointManager(master_config.checkpointing)

    def loader(dataset: Any, batch_size: int) -> Any:
        if isinstance(dataset, Mapping):
            return {name: loader(one, batch_size) for name, one in dataset.items()}
        return StatefulDataLoader(dataset, batch_size, False, collate_fn)

    train_dataloader = loader(train_dataset, master_config.policy["train_global_batch_size"])
    val_dataloader = loader(val_dataset, section.val_global_batch_size)
    cluster = RayVirtualCluster([master_config.cluster["gpus_per_node"]] * master_config.cluster["num_nodes"])
    policy = Policy(cluster=cluster, config=master_config.policy, tokenizer=tokenizer, init_reference_model=True)
    return (
        policy,
        cluster,
        train_dataloader,
        val_dataloader,
        loss_fn,
        logger,
        checkpointer,
        save_state,
        master_config,
    )


def due(section: Section, step: int, is_last_step: bool) -> bool:
    """Whether to validate after `step`, counted from 1."""
    return (section.val_period > 0 and step % section.val_period == 0) or (section.val_at_end and is_last_step)


def must_save(checkpointing: dict[str, Any], step: int, is_last_step: bool) -> bool:
    return checkpointing["enabled"] and (is_last_step or step % checkpointing["save_period"] == 0)

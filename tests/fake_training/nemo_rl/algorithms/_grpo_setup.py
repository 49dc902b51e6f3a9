"""Building what a GRPO run needs: weights, engine, data loaders, logger, checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

from nemo_rl.algorithms._grpo_config import MasterConfig
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.dataloader import CyclingDataLoader, StatefulDataLoader
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.models.generation.vllm import VllmGeneration
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger


@dataclass
class GRPOSaveState:
    consumed_samples: int
    current_step: int
    current_epoch: int
    total_steps: int
    total_valid_tokens: int
    val_reward: float
    sampler_name: str | None = None


def _initial_grpo_save_state() -> GRPOSaveState:
    return GRPOSaveState(
        consumed_samples=0,
        current_step=0,
        current_epoch=0,
        total_steps=0,
        total_valid_tokens=0,
        val_reward=-99999999.0,
    )


def _get_grpo_save_state(loaded_state: dict[str, Any] | None) -> GRPOSaveState:
    state = _initial_grpo_save_state()
    known = {field.name for field in fields(GRPOSaveState)}
    for name, value in (loaded_state or {}).items():
        if name in known:
            setattr(state, name, value)
    return state


def setup(
    master_config: MasterConfig,
    tokenizer: Any,
    dataset: Any,
    val_dataset: Any,
    processor: Any = None,
    policy_factory: Callable[..., Any] | None = None,
) -> tuple:
    """13 things, in NeMo RL's order.

    They are: policy, policy_generation, nemo_gym, cluster, dataloader, val_dataloader, loss_fn, logger,
    checkpointer, grpo_save_state, master_config, teacher_worker_groups, alias_to_group_alias.
    """
    started = time.perf_counter()
    grpo, policy_config = master_config.grpo, master_config.policy
    generation_config = policy_config["generation"]
    set_seed(grpo.seed)

    logger = Logger(master_config.logger)
    logger.log_hyperparams(master_config.model_dump())
    checkpointer = CheckpointManager(master_config.checkpointing)
    last_checkpoint = checkpointer.get_latest_checkpoint_path()
    save_state = _get_grpo_save_state(checkpointer.load_training_info(last_checkpoint))

    dataloader: Any = StatefulDataLoader(
        dataset, grpo.num_prompts_per_step, master_config.data["shuffle"], rl_collate_fn
    )
    if grpo.async_grpo.enabled:
        dataloader = CyclingDataLoader(dataloader)
    val_dataloader = StatefulDataLoader(val_dataset, grpo.val_batch_size, False, rl_collate_fn)
    loss_fn = ClippedPGLossFn(master_config.loss_fn)

    cluster = RayVirtualCluster([master_config.cluster["gpus_per_node"]] * master_config.cluster["num_nodes"])

    def init_policy() -> tuple[Any, float]:
        begun = time.perf_counter()
        weights = os.path.join(last_checkpoint, "policy", "weights") if last_checkpoint else None
        policy = (policy_factory or Policy)(
            cluster=cluster, config=policy_config, tokenizer=tokenizer, weights_path=weights
        )
        return policy, time.perf_counter() - begun

    def init_vllm() -> tuple[Any, float]:
        begun = time.perf_counter()
        return VllmGeneration(cluster, generation_config), time.perf_counter() - begun

    timings: dict[str, float] = {}
    workers_started = time.perf_counter()
    if generation_config["colocated"]["enabled"]:
        # They share the machine, so one is loaded after the other.
        policy_generation, timings["vllm_init_time_s"] = init_vllm()
        policy, timings["policy_init_time_s"] = init_policy()
        timings["parallel_init_enabled"] = 0.0
    else:
        with ThreadPoolExecutor(max_workers=2) as pool:
            vllm_future, policy_future = pool.submit(init_vllm), pool.submit(init_policy)
            policy_generation, timings["vllm_init_time_s"] = vllm_future.result()
            policy, timings["policy_init_time_s"] = policy_future.result()
        timings["parallel_wall_time_s"] = time.perf_counter() - workers_started
        timings["parallel_init_enabled"] = 1.0
    policy_generation.prepare_refit_info(policy.prepare_refit_info())

    workers_seconds = time.perf_counter() - workers_started
    timings["total_setup_time_s"] = time.perf_counter() - started
    timings["other_setup_time_s"] = timings["total_setup_time_s"] - workers_seconds
    logger.log_metrics(timings, step=0, prefix="timing/setup")
    return (
        policy,
        policy_generation,
        None,
        (cluster, cluster),
        dataloader,
        val_dataloader,
        loss_fn,
        logger,
        checkpointer,
        save_state,
        master_config,
        {},
        {},
    )

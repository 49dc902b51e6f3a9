"""The two PPO loops: as GRPO's, with a value model that is asked and trained beside the policy."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl.algorithms._grpo_batch import train_data_of
from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms._supervised_setup import Section, due, must_save
from nemo_rl.algorithms.grpo import refit_policy_generation
from nemo_rl.algorithms.loss import ClippedPGLossFn, MseValueLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.dataloader import StatefulDataLoader
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.experience.rollouts import run_async_multi_turn_rollout, run_multi_turn_rollout
from nemo_rl.models.generation.interfaces import should_use_async_rollouts
from nemo_rl.models.generation.vllm import VllmGeneration
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.models.value.lm_value import Value
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from nemo_rl.utils.timer import TimeoutChecker, Timer


class AsyncPPOConfig(Section):
    pass


class PPOConfig(Section):
    pass


class MasterConfig(Section):
    pass


def _default_ppo_save_state() -> dict[str, Any]:
    return {"consumed_samples": 0, "current_step": 0, "current_epoch": 0, "total_steps": 0, "total_valid_tokens": 0}


def setup(master_config: MasterConfig, tokenizer: Any, dataset: Any, val_dataset: Any, processor: Any = None) -> tuple:
    """12 things, in NeMo RL's order; policy, value model and engine are loaded in threads."""
    ppo = master_config.ppo
    set_seed(ppo.seed)
    logger = Logger(master_config.logger)
    checkpointer = CheckpointManager(master_config.checkpointing)
    dataloader = StatefulDataLoader(dataset, ppo.num_prompts_per_step, False, rl_collate_fn)
    val_dataloader = StatefulDataLoader(val_dataset, ppo.val_batch_size, False, rl_collate_fn)
    cluster = RayVirtualCluster([1])

    def init_policy() -> Policy:
        return Policy(cluster, master_config.policy, tokenizer)

    def init_value() -> Value:
        return Value(cluster, master_config.value, tokenizer)

    def init_vllm() -> VllmGeneration:
        return VllmGeneration(cluster, master_config.policy["generation"])

    if master_config.policy["generation"]["colocated"]["enabled"]:
        policy_generation, policy, value_model = init_vllm(), init_policy(), init_value()
    else:
        # The trainer's models share their machines: one after the other, beside the engine.
        with ThreadPoolExecutor(max_workers=1) as pool:
            future = pool.submit(init_vllm)
            policy_generation = future.result()
        policy, value_model = init_policy(), init_value()
    policy_generation.prepare_refit_info(policy.prepare_refit_info())
    return (
        policy,
        policy_generation,
        value_model,
        (cluster, cluster),
        dataloader,
        val_dataloader,
        ClippedPGLossFn(master_config.loss_fn),
        MseValueLossFn(master_config.value_loss_fn),
        logger,
        checkpointer,
        _default_ppo_save_state(),
        master_config,
    )


def _rollout(policy_generation: Any, batch: Any, tokenizer: Any, task_to_env: Any, master_config: Any) -> tuple:
    asynchronous = should_use_async_rollouts(master_config.policy["generation"])
    return (run_async_multi_turn_rollout if asynchronous else run_multi_turn_rollout)(
        policy_generation,
        batch,
        tokenizer,
        task_to_env,
        max_seq_len=master_config.policy["max_total_sequence_length"],
        max_rollout_turns=master_config.ppo.max_rollout_turns,
        greedy=False,
    )


def _train_data(repeated_batch: BatchedDataDict, tokenizer: Any) -> BatchedDataDict:
    for log in repeated_batch["message_log"]:
        for message in log:
            message["token_loss_mask"] = np.full(len(message["token_ids"]), float(message["role"] == "assistant"))
    flat, input_lengths = batched_message_log_to_flat_message(
        repeated_batch["message_log"], pad_value_dict={"token_ids": tokenizer.pad_token_id}
    )
    train_data = train_data_of(flat, input_lengths, sample_mask=repeated_batch["loss_multiplier"])
    train_data["rewards"] = repeated_batch["total_reward"]
    return train_data


def _compute_advantage(train_data: BatchedDataDict) -> None:
    """One step of generalized advantage estimation: a whole answer is one action here."""
    train_data["returns"] = train_data["rewards"]
    advantages = train_data["rewards"] - train_data["values"]
    train_data["advantages"] = advantages[:, None] * train_data["token_mask"]


def _write(
    checkpointer: Any, policy: Any, value_model: Any, loader_state: Any, step: int, state: Any, config: Any
) -> None:
    value_model.save_checkpoint(os.path.join(config.checkpointing["checkpoint_dir"], "value"))
    write_checkpoint(checkpointer, policy, loader_state, step, state, config)


def ppo_train(
    policy: Any,
    policy_generation: Any,
    value_model: Any,
    dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    value_loss_fn: Any,
    task_to_env: dict[str, Any],
    val_task_to_env: dict[str, Any] | None,
    logger: Any,
    checkpointer: Any,
    ppo_save_state: dict[str, Any],
    master_config: MasterConfig,
) -> None:
    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    ppo = master_config.ppo
    current_epoch, current_step = ppo_save_state["current_epoch"], ppo_save_state["current_step"]
    total_steps = ppo_save_state["total_steps"]
    max_num_steps, max_num_epochs, ppo_epochs = ppo.max_num_steps, ppo.max_num_epochs, ppo.ppo_epochs
    colocated_inference = master_config.policy["generation"]["colocated"]["enabled"]
    generation_is_stale = True

    if ppo.val_at_start and total_steps == 0:
        refit_policy_generation(policy, policy_generation, colocated_inference)
        generation_is_stale = False
        val_metrics, validation_timings = validate(
            policy_generation,
            val_dataloader,
            tokenizer,
            val_task_to_env,
            step=0,
            master_config=master_config,
            logger=logger,
        )
        policy_generation.finish_generation()
        logger.log_metrics(val_metrics, current_step, prefix="validation")

    while current_epoch < max_num_epochs and total_steps < max_num_steps:
        for batch in dataloader:
            with timer.time("total_step_time"):
                with timer.time("data_processing"):
                    repeated_batch = batch.repeat_interleave(ppo.num_generations_per_prompt)
                with timer.time("prepare_for_generation/total"):
                    if generation_is_stale:
                        value_model.finish_training()
                        policy.prepare_for_lp_inference()
                        refit_policy_generation(policy, policy_generation, colocated_inference, timer=timer)
                    else:
                        policy_generation.prepare_for_generation()
                with timer.time("generation"):
                    policy_generation.clear_logger_metrics()
                    repeated_batch, rollout_metrics = _rollout(
                        policy_generation, repeated_batch, tokenizer, task_to_env, master_config
                    )
                    policy_generation.finish_generation()
                    logger.log_metrics(rollout_metrics, total_steps + 1, prefix="train")
                with timer.time("reward_calculation"):
                    rewards = repeated_batch["total_reward"]
                with timer.time("data_processing"):
                    train_data = _train_data(repeated_batch, tokenizer)
                with timer.time("value_inference"):
                    value_model.prepare_for_inference()
                    train_data["values"] = value_model.get_values(train_data)["values"]
                    value_model.finish_inference()
                with timer.time("logprob_inference_prep"):
                    policy.prepare_for_lp_inference()
                with timer.time("policy_and_reference_logprobs"):
                    train_data["prev_logprobs"] = policy.get_logprobs(train_data, timer=timer)["logprobs"]
                    train_data["reference_policy_logprobs"] = policy.get_reference_policy_logprobs(
                        train_data, timer=timer
                    )["reference_logprobs"]
                    policy.finish_inference()
                with timer.time("advantage_calculation"):
                    _compute_advantage(train_data)

                for step in range(ppo_epochs):
                    with timer.time("value_training_prep"):
                        value_model.prepare_for_training()
                    with timer.time("value_training"):
                        value_results = value_model.train(train_data, value_loss_fn, timer=timer)
                        value_model.finish_training()
                    with timer.time("training_prep"):
                        policy.prepare_for_training()
                        generation_is_stale = True
                    with timer.time("policy_training"):
                        train_results = policy.train(train_data, loss_fn, timer=timer)
                        if step < ppo_epochs - 1:
                            policy.offload_to_cpu()

                is_last_step = total_steps + 1 >= max_num_steps
                if due(ppo, total_steps + 1, is_last_step):
                    refit_policy_generation(policy, policy_generation, colocated_inference)
                    generation_is_stale = False
                    val_metrics, validation_timings = validate(
                        policy_generation,
                        val_dataloader,
                        tokenizer,
                        val_task_to_env,
                        step=total_steps + 1,
                        master_config=master_config,
                        logger=logger,
                    )
                    policy_generation.finish_generation()
                    logger.log_metrics(validation_timings, total_steps + 1, prefix="timing/validation")
                    logger.log_metrics(val_metrics, total_steps + 1, prefix="validation")
                metrics = {"loss": train_results["loss"], "reward": float(np.mean(rewards))}
                metrics["critic/loss"] = value_results["loss"]
                timeout.mark_iteration()
                if must_save(master_config.checkpointing, total_steps + 1, is_last_step):
                    ppo_save_state.update(current_epoch=current_epoch, total_steps=total_steps + 1)
                    with timer.time("checkpointing"):
                        _write(
                            checkpointer,
                            policy,
                            value_model,
                            dataloader.state_dict(),
                            total_steps + 1,
                            ppo_save_state,
                            master_config,
                        )

            logger.log_metrics(metrics, total_steps + 1, prefix="train")
            logger.log_metrics(timer.get_timing_metrics(reduction_op="sum"), total_steps + 1, prefix="timing/train")
            timer.reset()
            current_step += 1
            total_steps += 1
            if total_steps >= max_num_steps:
                checkpointer.shutdown()
                return
        current_epoch += 1
        current_step = 0
    checkpointer.shutdown()


def async_ppo_train(
    policy: Any,
    policy_generation: Any,
    value_model: Any,
    dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    value_loss_fn: Any,
    task_to_env: dict[str, Any],
    val_task_to_env: dict[str, Any] | None,
    logger: Any,
    checkpointer: Any,
    ppo_save_state: dict[str, Any],
    master_config: MasterConfig,
) -> None:
    """Train on what a collector generates at the same time."""
    from nemo_rl.algorithms.async_utils import AsyncTrajectoryCollector, ReplayBuffer

    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    ppo = master_config.ppo
    step = weight_version = ppo_save_state["current_step"]
    max_training_steps, ppo_epochs = ppo.max_num_steps, ppo.ppo_epochs
    max_trajectory_age_steps = ppo.async_ppo.max_trajectory_age_steps
    colocated_inference = master_config.policy["generation"]["colocated"]["enabled"]
    replay_buffer = ReplayBuffer(
        max_size=2 * ppo.num_prompts_per_step * max_trajectory_age_steps, drop_incomplete_targets_on_restore=False
    )
    trajectory_collector = AsyncTrajectoryCollector(
        policy_generation=policy_generation,
        tokenizer=tokenizer,
        task_to_env=task_to_env,
        master_config=master_config,
        replay_buffer=replay_buffer,
        start_step=step,
    )

    refit_policy_generation(policy, policy_generation, colocated_inference)
    policy.offload_to_cpu()
    if ppo.val_at_start and step == 0:
        val_metrics, validation_timings = validate(
            policy_generation,
            val_dataloader,
            tokenizer,
            val_task_to_env,
            step=0,
            master_config=master_config,
            logger=logger,
        )
        policy_generation.finish_generation()
        logger.log_metrics(val_metrics, step, prefix="validation")
    trajectory_collector.set_generation_window(
        weight_version=weight_version,
        generation_lead_steps=max_trajectory_age_steps,
        max_trajectory_age_steps=max_trajectory_age_steps,
    )
    trajectory_collector.start_collection(dataloader)

    timer.start("init/total")
    # One step ahead as well: no later window can generate both.
    for target in range(step, min(step + 2, max_training_steps)):
        while not replay_buffer.has_complete_batch(target, ppo.num_prompts_per_step, max_trajectory_age_steps):
            trajectory_collector.check_health()
            time.sleep(max(_pace.seconds("poll"), 0.001))
    timer.stop("init/total")

    try:
        while step < max_training_steps:
            trajectory_collector.check_health()
            with timer.time("total_step_time"):
                with timer.time("exposed_generation"):
                    sample_result = replay_buffer.sample(
                        num_prompt_groups=ppo.num_prompts_per_step,
                        current_weight_version=weight_version,
                        max_age_steps=max_trajectory_age_steps,
                    )
                    if sample_result is None:
                        with timer.time("idle/buffer_starvation"):
                            time.sleep(max(_pace.seconds("poll"), 0.001))
                        continue
                    repeated_batch = BatchedDataDict.from_batches([t["batch"] for t in sample_result["trajectories"]])
                with timer.time("data_processing"):
                    train_data = _train_data(repeated_batch, tokenizer)
                with timer.time("value_inference"):
                    value_model.prepare_for_inference()
                    train_data["values"] = value_model.get_values(train_data)["values"]
                    value_model.finish_inference()
                with timer.time("logprob_inference_prep"):
                    policy.prepare_for_lp_inference()
                with timer.time("policy_and_reference_logprobs"):
                    train_data["prev_logprobs"] = policy.get_logprobs(train_data, timer=timer)["logprobs"]
                    train_data["reference_policy_logprobs"] = policy.get_reference_policy_logprobs(
                        train_data, timer=timer
                    )["reference_logprobs"]
                    policy.finish_inference()
                with timer.time("advantage_calculation"):
                    _compute_advantage(train_data)

                for _epoch in range(ppo_epochs):
                    with timer.time("value_training_prep"):
                        value_model.prepare_for_training()
                    with timer.time("value_training"):
                        value_results = value_model.train(train_data, value_loss_fn, timer=timer)
                        value_model.finish_training()
                    with timer.time("training_prep"):
                        policy.prepare_for_training()
                    with timer.time("policy_training"):
                        train_results = policy.train(train_data, loss_fn, timer=timer)

                with timer.time("idle/refit_bubble"):
                    with timer.time("exposed_generation"):
                        trajectory_collector.prepare_for_refit()
                    with timer.time("weight_sync"):
                        refit_policy_generation(policy, policy_generation, colocated_inference)
                        weight_version += 1
                        trajectory_collector.set_generation_window(
                            weight_version=weight_version,
                            generation_lead_steps=max_trajectory_age_steps,
                            max_trajectory_age_steps=max_trajectory_age_steps,
                        )
                        trajectory_collector.resume_after_refit()
                policy.offload_to_cpu()

                is_last_step = step + 1 == max_training_steps
                if due(ppo, step + 1, is_last_step):
                    with timer.time("idle/validation"):
                        trajectory_collector.pause()
                        policy_generation.prepare_for_generation()
                        val_metrics, validation_timings = validate(
                            policy_generation,
                            val_dataloader,
                            tokenizer,
                            val_task_to_env,
                            step=step + 1,
                            master_config=master_config,
                            logger=logger,
                        )
                        policy_generation.finish_generation()
                        logger.log_metrics(val_metrics, step + 1, prefix="validation")
                        trajectory_collector.resume()
                metrics = {"loss": train_results["loss"], "reward": float(np.mean(repeated_batch["total_reward"]))}
                metrics["critic/loss"] = value_results["loss"]
                timeout.mark_iteration()
                if must_save(master_config.checkpointing, step + 1, is_last_step):
                    ppo_save_state.update(current_step=step + 1)
                    with timer.time("checkpointing"):
                        _write(
                            checkpointer,
                            policy,
                            value_model,
                            trajectory_collector.get_dataloader_state(),
                            step + 1,
                            ppo_save_state,
                            master_config,
                        )

            logger.log_metrics(metrics, step + 1, prefix="train")
            logger.log_metrics(timer.get_timing_metrics(reduction_op="sum"), step + 1, prefix="timing/train")
            timer.reset()
            step += 1
    finally:
        checkpointer.shutdown()
        trajectory_collector.stop()
        policy_generation.shutdown()
        policy.shutdown()
        value_model.shutdown()


def validate(
    policy_generation: Any,
    val_dataloader: Any,
    tokenizer: Any,
    val_task_to_env: dict[str, Any] | None,
    step: int,
    master_config: MasterConfig,
    logger: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    timer = Timer()
    with timer.time("total_validation_time"):
        rewards: list[float] = []
        for val_batch in val_dataloader:
            val_batch, _ = _rollout(policy_generation, val_batch, tokenizer, val_task_to_env, master_config)
            rewards.extend(val_batch["total_reward"].tolist())
    timing_metrics = timer.get_timing_metrics(reduction_op="sum")
    timer.reset()
    return {"accuracy": float(np.mean(rewards))}, timing_metrics

"""The synchronous loop over the data plane: the driver sees names and small columns, not the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.algorithms._grpo_batch import train_metrics
from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator
from nemo_rl.algorithms.grpo import (
    GRPOSaveState,
    MasterConfig,
    _resolve_logprob_skip_flags,
    _should_validate,
    _validation_early_stop_message,
    compute_and_apply_seq_logprob_error_masking,
    refit_policy_generation,
)
from nemo_rl.algorithms.utils import calculate_baseline_and_std_per_prompt, print_performance_metrics
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.sync_rollout_actor import SyncRolloutActor
from nemo_rl.utils.timer import TimeoutChecker, Timer


def validate_sync(
    *,
    rollout_actor: SyncRolloutActor,
    policy: Any,
    val_dataloader: Any,
    val_task_to_env: dict[str, Any] | None,
    step: int,
    master_config: MasterConfig,
    logger: Any = None,
    partition_id: str = "val",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `grpo.validate`, with each batch through a partition of its own."""
    if val_dataloader is None:
        return {}, {}
    timer = Timer()
    with timer.time("total_validation_time"):
        rewards: list[float] = []
        lengths: list[float] = []
        max_batches = master_config.grpo.max_val_samples // master_config.grpo.val_batch_size
        for batch_idx, val_batch in enumerate(val_dataloader):
            if batch_idx >= max_batches:
                break
            policy.prepare_val_partition(val_batch.size, partition_id=partition_id)
            meta, driver_carry, rollout_metrics, _ = rollout_actor.rollout_to_tq(
                val_batch,
                partition_id=partition_id,
                first_iter=False,
                finish_generation=False,
                task_to_env_override=val_task_to_env,
                carry_keys=["total_reward"],
            )
            rewards.extend(driver_carry["total_reward"].tolist())
            lengths.append(rollout_metrics["mean_gen_tokens_per_sample"])
            policy.finish_step(meta)
        val_metrics = {
            "accuracy": float(np.mean(rewards)) if rewards else 0.0,
            "avg_length": float(np.mean(lengths)) if lengths else 0.0,
        }
    timing_metrics = timer.get_timing_metrics(reduction_op="sum")
    if logger is not None:
        logger.log_batched_dict_as_jsonl({"rewards": rewards}, f"val_data_step{step}.jsonl")
    timer.reset()
    return val_metrics, timing_metrics


def grpo_train_sync(
    policy: Any,
    policy_generation: Any,
    wrapped_dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    task_to_env: dict[str, Any],
    val_task_to_env: dict[str, Any] | None,
    logger: Any,
    checkpointer: Any,
    grpo_save_state: GRPOSaveState,
    master_config: MasterConfig,
) -> None:
    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    generation_is_stale = True
    current_step = grpo_save_state.current_step
    total_steps = grpo_save_state.total_steps
    current_epoch = grpo_save_state.current_epoch
    grpo = master_config.grpo
    max_num_steps, max_num_epochs = grpo.max_num_steps, grpo.max_num_epochs
    colocated_inference = master_config.policy["generation"]["colocated"]["enabled"]
    dp_cfg = master_config.data_plane
    if not dp_cfg or not dp_cfg["enabled"]:
        raise ValueError("grpo_train_sync needs data_plane.enabled=true; without it, use grpo.grpo_train")
    adv_estimator = GRPOAdvantageEstimator(None, master_config.loss_fn)

    rollout_actor = SyncRolloutActor(
        policy_generation=policy_generation,
        tokenizer=tokenizer,
        task_to_env=task_to_env,
        master_config=master_config,
        dp_cfg=dp_cfg,
    )

    if grpo.val_at_start and current_step == 0:
        refit_policy_generation(policy, policy_generation, colocated_inference)
        generation_is_stale = False
        val_metrics, validation_timings = validate_sync(
            rollout_actor=rollout_actor,
            policy=policy,
            val_dataloader=val_dataloader,
            val_task_to_env=val_task_to_env,
            step=0,
            master_config=master_config,
            logger=logger,
        )
        policy_generation.finish_generation()
        logger.log_metrics(val_metrics, current_step, prefix="validation")
        logger.log_metrics(validation_timings, current_step, prefix="timing/validation")

    while current_epoch < max_num_epochs and total_steps < max_num_steps:
        for batch in wrapped_dataloader:
            val_metrics = None
            with timer.time("total_step_time"):
                with timer.time("data_processing"):
                    repeated_batch = batch.repeat_interleave(grpo.num_generations_per_prompt)

                with timer.time("prepare_for_generation/total"):
                    if generation_is_stale:
                        refit_policy_generation(policy, policy_generation, colocated_inference, timer=timer)
                        generation_is_stale = False
                    else:
                        if colocated_inference:
                            policy.offload_after_refit()
                        policy_generation.prepare_for_generation()

                policy.prepare_step(num_samples=repeated_batch.size, group_size=grpo.num_generations_per_prompt)

                with timer.time("generation"):
                    meta, driver_carry, rollout_metrics, generation_logger_metrics = rollout_actor.rollout_to_tq(
                        repeated_batch,
                        partition_id=policy.tq_partition_id,
                        group_size=grpo.num_generations_per_prompt,
                        first_iter=True,
                    )
                    logger.log_metrics(rollout_metrics, total_steps + 1, prefix="train")

                with timer.time("reward_calculation"):
                    rewards = driver_carry["total_reward"]
                    prompt_ids = driver_carry["prompt_ids_for_adv"]
                    baseline, std = calculate_baseline_and_std_per_prompt(
                        prompt_ids,
                        rewards,
                        np.ones_like(rewards),
                        leave_one_out_baseline=grpo.use_leave_one_out_baseline,
                    )
                    meta.stamp_tags({"std": std.tolist(), "baseline": baseline.tolist()})

                _, skip_reference_logprobs = _resolve_logprob_skip_flags(master_config)
                with timer.time("logprob_inference_prep"):
                    policy.prepare_for_lp_inference()

                with timer.time("policy_and_reference_logprobs"):
                    select_fields = ["generation_logprobs", "token_mask", "sample_mask", "prev_logprobs"]
                    policy.get_logprobs_from_meta(meta, timer=timer)
                    if skip_reference_logprobs:
                        zeros = np.zeros_like(driver_carry["generation_logprobs"])
                        policy.write_to_dataplane(meta, {"reference_policy_logprobs": zeros})
                    else:
                        policy.get_reference_policy_logprobs_from_meta(meta, timer=timer)
                    columns = policy.read_from_dataplane(meta, select_fields=select_fields)

                logprob_error = compute_and_apply_seq_logprob_error_masking(
                    train_data=columns, rewards=rewards, seq_logprob_error_threshold=None
                )

                with timer.time("advantage_calculation"):
                    advantages = adv_estimator.compute_advantage(
                        prompt_ids=prompt_ids,
                        rewards=rewards,
                        mask=columns["token_mask"] * columns["sample_mask"][:, None],
                        repeated_batch=BatchedDataDict({"total_reward": rewards, "baseline": baseline}),
                    )
                policy.write_to_dataplane(
                    meta, fields={"advantages": advantages, "sample_mask": columns["sample_mask"]}
                )

                with timer.time("training_prep"):
                    policy.prepare_for_training()
                    generation_is_stale = True

                with timer.time("policy_training"):
                    train_results = policy.train_from_meta(meta, loss_fn=loss_fn, timer=timer)
                policy.finish_step(meta)

                is_last_step = total_steps + 1 >= max_num_steps or (
                    current_epoch + 1 == max_num_epochs and current_step + 1 == len(wrapped_dataloader)
                )
                early_stop_message = None
                if _should_validate(grpo, total_steps + 1, is_last_step):
                    refit_policy_generation(policy, policy_generation, colocated_inference)
                    generation_is_stale = False
                    val_metrics, validation_timings = validate_sync(
                        rollout_actor=rollout_actor,
                        policy=policy,
                        val_dataloader=val_dataloader,
                        val_task_to_env=val_task_to_env,
                        step=total_steps + 1,
                        master_config=master_config,
                        logger=logger,
                    )
                    policy_generation.finish_generation()
                    logger.log_metrics(validation_timings, total_steps + 1, prefix="timing/validation")
                    logger.log_metrics(val_metrics, total_steps + 1, prefix="validation")
                    early_stop_message = _validation_early_stop_message(
                        val_metrics, grpo.stop_at_validation_threshold, grpo.stop_at_validation_metric
                    )

                metrics = train_metrics(
                    train_results,
                    rewards,
                    advantages,
                    columns["token_mask"],
                    driver_carry["length"],
                    driver_carry["input_lengths"],
                )
                metrics.update(rollout_metrics)
                metrics.update(logprob_error)
                metrics["generation_logger_metrics"] = generation_logger_metrics
                grpo_save_state.consumed_samples += grpo.num_prompts_per_step
                grpo_save_state.total_valid_tokens += int(metrics["global_valid_toks"])
                timeout.mark_iteration()

                should_save_by_timeout = timeout.check_save()
                should_save_by_step = (
                    is_last_step
                    or early_stop_message is not None
                    or (total_steps + 1) % master_config.checkpointing["save_period"] == 0
                )
                if master_config.checkpointing["enabled"] and (should_save_by_step or should_save_by_timeout):
                    policy.prepare_for_training()
                    grpo_save_state.current_step = current_step + 1
                    grpo_save_state.total_steps = total_steps + 1
                    grpo_save_state.current_epoch = current_epoch
                    if val_metrics is not None:
                        grpo_save_state.val_reward = val_metrics["accuracy"]
                    with timer.time("checkpointing"):
                        write_checkpoint(
                            checkpointer,
                            policy,
                            wrapped_dataloader.state_dict(),
                            total_steps + 1,
                            grpo_save_state,
                            master_config,
                        )

            logger.log_batched_dict_as_jsonl(
                {"rewards": rewards, "advantages": advantages}, f"train_data_step{total_steps + 1}.jsonl"
            )
            timing_metrics = timer.get_timing_metrics(reduction_op="sum")
            performance_metrics = print_performance_metrics(
                train_results,
                metrics,
                timing_metrics,
                master_config,
                num_prompts_per_step=grpo.num_prompts_per_step,
                num_generations_per_prompt=grpo.num_generations_per_prompt,
                is_async_rl=False,
            )
            logger.log_metrics(metrics, total_steps + 1, prefix="train")
            logger.log_metrics(performance_metrics, total_steps + 1, prefix="performance")
            logger.log_metrics(timing_metrics, total_steps + 1, prefix="timing/train", step_finished=True)

            timer.reset()
            current_step += 1
            total_steps += 1
            if early_stop_message is not None:
                print(early_stop_message, flush=True)
                checkpointer.shutdown()
                return
            if should_save_by_timeout:
                print("Timeout has been reached, stopping training early", flush=True)
                checkpointer.shutdown()
                return
            if total_steps >= max_num_steps:
                print("Max number of steps has been reached, stopping training early", flush=True)
                checkpointer.shutdown()
                return

        current_epoch += 1
        current_step = 0
    checkpointer.shutdown()

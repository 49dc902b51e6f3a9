"""The two GRPO loops. Their timer blocks have the labels, order, nesting and exits of NeMo RL's."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl.algorithms._grpo_batch import (
    mark_generated_tokens,
    train_data_of,
    train_metrics,
)
from nemo_rl.algorithms._grpo_config import AsyncGRPOConfig, GRPOConfig, MasterConfig
from nemo_rl.algorithms._grpo_setup import (
    GRPOSaveState,
    _get_grpo_save_state,
    _initial_grpo_save_state,
    setup,
)
from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator
from nemo_rl.algorithms.utils import (
    calculate_baseline_and_std_per_prompt,
    print_efficiency_summary,
    print_performance_metrics,
)
from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.rollouts import run_async_multi_turn_rollout, run_multi_turn_rollout
from nemo_rl.models.generation.interfaces import should_use_async_rollouts
from nemo_rl.utils.timer import TimeoutChecker, Timer

__all__ = [
    "AsyncGRPOConfig",
    "GRPOConfig",
    "GRPOSaveState",
    "MasterConfig",
    "_get_grpo_save_state",
    "_initial_grpo_save_state",
    "aggregate_rollout_metrics",
    "async_grpo_train",
    "dynamic_sampling",
    "grpo_train",
    "refit_policy_generation",
    "setup",
    "shutdown_environments",
    "validate",
]


def shutdown_environments(task_to_env: dict[str, Any] | None, val_task_to_env: dict[str, Any] | None) -> None:
    environments = [*(task_to_env or {}).values(), *(val_task_to_env or {}).values()]
    # The same environment often serves training and validation.
    for environment in {id(environment): environment for environment in environments}.values():
        environment.shutdown()


def dynamic_sampling(
    repeated_batch: BatchedDataDict,
    std: np.ndarray,
    baseline: np.ndarray,
    dynamic_sampling_num_gen_batches: int,
    master_config: MasterConfig,
    timer: Timer,
    batch_cache: BatchedDataDict | None = None,
) -> tuple[BatchedDataDict, bool, BatchedDataDict | None, dict[str, Any]]:
    """Keeps prompts whose answers differ in reward (DAPO), and collects them until a batch is full.

    Returns (batch, whether it is full, what is kept for the next call, metrics).
    """
    grpo = master_config.grpo
    repeated_batch["baseline"], repeated_batch["std"] = baseline, std
    if not grpo.use_dynamic_sampling:
        return repeated_batch, True, None, {}
    with timer.time("dynamic_sampling"):
        wanted = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
        kept = repeated_batch.select_indices(np.flatnonzero(std != 0).tolist())
        if batch_cache is not None:
            kept = BatchedDataDict.from_batches([batch_cache, kept])
        if kept.size < wanted:
            if dynamic_sampling_num_gen_batches >= grpo.dynamic_sampling_max_gen_batches:
                raise ValueError(
                    f"dynamic sampling: {kept.size} of {wanted} samples "
                    f"after {dynamic_sampling_num_gen_batches} batches"
                )
            return kept, False, kept, {}
        return kept.slice(0, wanted), True, None, {"dynamic_sampling_num_discarded": kept.size - wanted}


def refit_policy_generation(
    policy: Any,
    policy_generation: Any,
    colocated_inference: bool,
    _refit_buffer_size_gb: float | None = None,
    timer: Timer | None = None,
    kv_scales: dict[str, float] | None = None,
) -> dict[str, float]:
    """Brings the policy's weights into the engine."""
    if colocated_inference:
        policy.offload_before_refit()
        policy_generation.prepare_for_generation(tags=["weights"])
    label = "prepare_for_generation/transfer_and_update_weights"
    with timer.time(label) if timer is not None else nullcontext():
        if colocated_inference:
            policy.stream_weights_via_ipc_zmq(buffer_size_bytes=policy.get_free_memory_bytes() // 3)
            updated = policy_generation.update_weights_via_ipc_zmq()
        else:
            policy.broadcast_weights_for_collective(kv_scales=kv_scales)
            updated = policy_generation.update_weights_from_collective()
        if not all(updated):
            raise RuntimeError("the generation engine did not take the new weights")
    if colocated_inference:
        policy.offload_after_refit()
        policy_generation.prepare_for_generation(tags=["kv_cache"])
    return {}


def _resolve_logprob_skip_flags(master_config: MasterConfig) -> tuple[bool, bool]:
    """(skip the policy's own log-probabilities, skip the reference's)."""
    skip_reference = master_config.grpo.skip_reference_policy_logprobs_calculation
    if skip_reference and master_config.loss_fn.reference_policy_kl_penalty:
        raise ValueError("a KL penalty needs the reference policy's log-probabilities")
    return False, skip_reference


def _validation_early_stop_message(
    val_metrics: dict[str, Any],
    stop_threshold: float | None,
    stop_metric: str | None,
    *,
    initial: bool = False,
) -> str | None:
    if stop_metric is None or val_metrics[stop_metric] < stop_threshold:
        return None
    return f"validation {stop_metric} {val_metrics[stop_metric]:.4f} has reached {stop_threshold}: stopping"


def compute_and_apply_seq_logprob_error_masking(
    train_data: BatchedDataDict, rewards: np.ndarray, seq_logprob_error_threshold: float | None
) -> dict[str, float]:
    """How far trainer and engine disagree. Nothing is masked: here both compute the same numbers."""
    difference = np.abs(train_data["prev_logprobs"] - train_data["generation_logprobs"])
    error = np.exp(difference)[train_data["token_mask"] > 0]
    return {"token_mult_prob_error": float(error.mean()), "gen_kl_error": float(np.log(error).mean())}


def grpo_train(
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
    processor: Any = None,
) -> None:
    """Generate, judge, train, one after the other."""
    timer = Timer(context={"worker": "driver"})
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    generation_is_stale = True
    current_step = grpo_save_state.current_step
    total_steps = grpo_save_state.total_steps
    current_epoch = grpo_save_state.current_epoch
    grpo = master_config.grpo
    max_num_steps, max_num_epochs = grpo.max_num_steps, grpo.max_num_epochs
    colocated_inference = master_config.policy["generation"]["colocated"]["enabled"]
    asynchronous = should_use_async_rollouts(master_config.policy["generation"])
    adv_estimator = GRPOAdvantageEstimator(None, master_config.loss_fn)

    if grpo.val_at_start and current_step == 0:
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
            processor=processor,
        )
        policy_generation.finish_generation()
        logger.log_metrics(val_metrics, current_step, prefix="validation")
        logger.log_metrics(validation_timings, current_step, prefix="timing/validation")
        stop_message = _validation_early_stop_message(
            val_metrics, grpo.stop_at_validation_threshold, grpo.stop_at_validation_metric, initial=True
        )
        if stop_message is not None:
            print(stop_message, flush=True)
            checkpointer.shutdown()
            return

    while current_epoch < max_num_epochs and total_steps < max_num_steps:
        batch_cache = None
        dynamic_sampling_num_gen_batches = 0
        for batch in wrapped_dataloader:
            val_metrics = None
            with timer.time("total_step_time"):
                with timer.time("data_processing"):
                    repeated_batch = batch.repeat_interleave(grpo.num_generations_per_prompt)
                    flat_prompts, _ = batched_message_log_to_flat_message(
                        repeated_batch["message_log"], pad_value_dict={"token_ids": tokenizer.pad_token_id}
                    )
                    input_ids = flat_prompts["token_ids"]

                with timer.time("prepare_for_generation/total"):
                    if generation_is_stale:
                        refit_policy_generation(policy, policy_generation, colocated_inference, timer=timer)
                        generation_is_stale = False
                    else:
                        if colocated_inference:
                            policy.offload_after_refit()
                        policy_generation.prepare_for_generation()

                dynamic_sampling_num_gen_batches += 1
                if dynamic_sampling_num_gen_batches == 1:
                    policy_generation.snapshot_step_metrics()
                with timer.time("generation"):
                    policy_generation.clear_logger_metrics()
                    if asynchronous:
                        repeated_batch, rollout_metrics = run_async_multi_turn_rollout(
                            policy_generation=policy_generation,
                            input_batch=repeated_batch,
                            tokenizer=tokenizer,
                            task_to_env=task_to_env,
                            max_seq_len=master_config.policy["max_total_sequence_length"],
                            max_rollout_turns=grpo.max_rollout_turns,
                            greedy=False,
                        )
                    else:
                        repeated_batch, rollout_metrics = run_multi_turn_rollout(
                            policy_generation=policy_generation,
                            input_batch=repeated_batch,
                            tokenizer=tokenizer,
                            task_to_env=task_to_env,
                            max_seq_len=master_config.policy["max_total_sequence_length"],
                            max_rollout_turns=grpo.max_rollout_turns,
                            greedy=False,
                        )
                    policy_generation.finish_generation()
                    generation_logger_metrics = policy_generation.get_logger_metrics()
                    logger.log_metrics(rollout_metrics, total_steps + 1, prefix="train")

                with timer.time("reward_calculation"):
                    rewards = repeated_batch["total_reward"]
                    baseline, std = calculate_baseline_and_std_per_prompt(
                        input_ids,
                        rewards,
                        np.ones_like(rewards),
                        leave_one_out_baseline=grpo.use_leave_one_out_baseline,
                    )
                    repeated_batch, is_batch_complete, batch_cache, ds_metrics = dynamic_sampling(
                        repeated_batch,
                        std,
                        baseline,
                        dynamic_sampling_num_gen_batches,
                        master_config,
                        timer,
                        batch_cache,
                    )
                    # Leaves three timer blocks at once; the next round of the loop is the same training step.
                    if not is_batch_complete:
                        continue
                    rewards = repeated_batch["total_reward"]

                with timer.time("data_processing"):
                    mark_generated_tokens(repeated_batch["message_log"])
                    flat_messages, input_lengths = batched_message_log_to_flat_message(
                        repeated_batch["message_log"],
                        pad_value_dict={"token_ids": tokenizer.pad_token_id},
                        make_sequence_length_divisible_by=master_config.policy["make_sequence_length_divisible_by"],
                    )
                    prompt_ids = flat_messages["token_ids"][:, : repeated_batch["length"].max()]
                    train_data = train_data_of(
                        flat_messages, input_lengths, sample_mask=repeated_batch["loss_multiplier"]
                    )

                _, skip_reference_logprobs = _resolve_logprob_skip_flags(master_config)
                with timer.time("logprob_inference_prep"):
                    policy.prepare_for_lp_inference()

                with timer.time("policy_and_reference_logprobs"):
                    train_data["prev_logprobs"] = policy.get_logprobs(train_data, timer=timer)["logprobs"]
                    if skip_reference_logprobs:
                        train_data["reference_policy_logprobs"] = np.zeros_like(train_data["prev_logprobs"])
                    else:
                        train_data["reference_policy_logprobs"] = policy.get_reference_policy_logprobs(
                            train_data, timer=timer
                        )["reference_logprobs"]

                logprob_error = compute_and_apply_seq_logprob_error_masking(
                    train_data=train_data, rewards=rewards, seq_logprob_error_threshold=None
                )

                with timer.time("advantage_calculation"):
                    train_data["advantages"] = adv_estimator.compute_advantage(
                        prompt_ids=prompt_ids,
                        rewards=rewards,
                        mask=train_data["token_mask"] * train_data["sample_mask"][:, None],
                        repeated_batch=repeated_batch,
                    )

                with timer.time("training_prep"):
                    policy.prepare_for_training()
                    generation_is_stale = True

                with timer.time("policy_training"):
                    train_results = policy.train(train_data, loss_fn, timer=timer)

                is_last_step = total_steps + 1 >= max_num_steps or (
                    current_epoch + 1 == max_num_epochs and current_step + 1 == len(wrapped_dataloader)
                )
                early_stop_message = None
                if _should_validate(grpo, total_steps + 1, is_last_step):
                    # Without the timer, unlike before generation: NeMo RL does so too.
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
                        processor=processor,
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
                    train_data["advantages"],
                    train_data["token_mask"],
                    repeated_batch["length"],
                    input_lengths,
                )
                metrics.update(ds_metrics)
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
                        checkpointer.finalize_pending()
                        write_checkpoint(
                            checkpointer,
                            policy,
                            wrapped_dataloader.state_dict(),
                            total_steps + 1,
                            grpo_save_state,
                            master_config,
                        )

            # From here on the step's own block is closed, and its numbers are complete.
            logger.log_batched_dict_as_jsonl(
                {"content": flat_messages["content"], "rewards": rewards},
                f"train_data_step{total_steps + 1}.jsonl",
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

            batch_cache = None
            dynamic_sampling_num_gen_batches = 0
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


def _should_validate(grpo: GRPOConfig, step: int, is_last_step: bool) -> bool:
    periodic = grpo.val_period > 0 and step >= grpo.val_start_at and step % grpo.val_period == 0
    return periodic or (grpo.val_at_end and is_last_step)


def validate(
    policy_generation: Any,
    val_dataloader: Any,
    tokenizer: Any,
    val_task_to_env: dict[str, Any] | None,
    step: int,
    master_config: MasterConfig,
    logger: Any = None,
    processor: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, timings); both empty when there is nothing to validate on."""
    if val_dataloader is None:
        return {}, {}
    # A timer of its own: its labels never mix with those of the step around it.
    timer = Timer(context={"worker": "validator"})
    asynchronous = should_use_async_rollouts(master_config.policy["generation"])
    rollout = run_async_multi_turn_rollout if asynchronous else run_multi_turn_rollout
    with timer.time("total_validation_time"):
        rewards: list[float] = []
        lengths: list[float] = []
        max_batches = master_config.grpo.max_val_samples // master_config.grpo.val_batch_size
        for batch_idx, val_batch in enumerate(val_dataloader):
            if batch_idx >= max_batches:
                break
            val_batch, rollout_metrics = rollout(
                policy_generation,
                val_batch,
                tokenizer,
                val_task_to_env,
                max_seq_len=master_config.policy["max_total_sequence_length"],
                max_rollout_turns=master_config.grpo.max_rollout_turns,
                greedy=False,
            )
            rewards.extend(val_batch["total_reward"].tolist())
            lengths.append(rollout_metrics["mean_gen_tokens_per_sample"])
        val_metrics = {
            "accuracy": float(np.mean(rewards)) if rewards else 0.0,
            "avg_length": float(np.mean(lengths)) if lengths else 0.0,
        }
    timing_metrics = timer.get_timing_metrics(reduction_op="sum")
    if logger is not None:
        logger.log_batched_dict_as_jsonl({"rewards": rewards}, f"val_data_step{step}.jsonl")
    timer.reset()
    return val_metrics, timing_metrics


def aggregate_rollout_metrics(per_group_metrics: dict[str, list]) -> dict[str, Any]:
    """One number per metric of the groups: total, extreme or mean, as its name says."""
    aggregated: dict[str, Any] = {}
    for name, values in per_group_metrics.items():
        if name == "total_turns":
            aggregated[name] = sum(values)
        elif name.startswith("max_"):
            aggregated[name] = max(values)
        else:
            aggregated[name] = float(np.mean(values))
    return aggregated


def async_grpo_train(
    policy: Any,
    policy_generation: Any,
    dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    task_to_env: dict[str, Any],
    val_task_to_env: dict[str, Any] | None,
    logger: Any,
    checkpointer: Any,
    grpo_save_state: GRPOSaveState,
    master_config: MasterConfig,
    max_trajectory_age_steps: int = 1,
    teacher_worker_groups: dict[str, Any] | None = None,
    alias_to_group_alias: dict[str, str] | None = None,
    processor: Any = None,
) -> None:
    """Train on what a collector generates at the same time, with weights at most a few steps old."""
    assert should_use_async_rollouts(master_config.policy["generation"]), "async GRPO needs an async engine"
    assert master_config.loss_fn.use_importance_sampling_correction, "samples are off-policy: correct for it"
    # Imported only when needed, as in NeMo RL.
    from nemo_rl.algorithms.async_utils import AsyncTrajectoryCollector, ReplayBuffer

    timer = Timer(context={"worker": "driver"})
    training_wall_start = time.perf_counter()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    grpo = master_config.grpo
    step = grpo_save_state.current_step
    weight_version = step
    colocated_inference = master_config.policy["generation"]["colocated"]["enabled"]
    assert not colocated_inference, "an engine that shares the machine cannot generate while it trains"
    adv_estimator = GRPOAdvantageEstimator(None, master_config.loss_fn)
    num_prompts_per_step = grpo.num_prompts_per_step

    replay_buffer = ReplayBuffer(
        max_size=2 * num_prompts_per_step * max_trajectory_age_steps, drop_incomplete_targets_on_restore=False
    )
    trajectory_collector = AsyncTrajectoryCollector(
        policy_generation=policy_generation,
        tokenizer=tokenizer,
        task_to_env=task_to_env,
        master_config=master_config,
        replay_buffer=replay_buffer,
        start_step=step,
        teacher_worker_groups=teacher_worker_groups,
        alias_to_group_alias=alias_to_group_alias,
        processor=processor,
    )
    refit_policy_generation(policy, policy_generation, colocated_inference)
    trajectory_collector.set_weight_version(weight_version)
    trajectory_collector.start_collection(dataloader)

    if grpo.val_at_start and step == 0:
        trajectory_collector.pause()
        val_metrics, validation_timings = validate(
            policy_generation,
            val_dataloader,
            tokenizer,
            val_task_to_env,
            step=0,
            master_config=master_config,
            logger=logger,
            processor=processor,
        )
        logger.log_metrics(val_metrics, step, prefix="validation")
        logger.log_metrics(validation_timings, step, prefix="timing/validation")
        trajectory_collector.resume()

    # Not a `with` block, and so left running when the wait fails. NeMo RL does so too.
    timer.start("init/total")
    while True:
        trajectory_collector.check_health()
        status = trajectory_collector.get_status()  # before the look: what comes in between is no end of the data
        # One step ahead as well, or training starves right after its first step.
        wanted = [step, step + 1] if step + 1 < grpo.max_num_steps else [step]
        if all(
            replay_buffer.has_complete_batch(target, num_prompts_per_step, max_trajectory_age_steps)
            for target in wanted
        ):
            break
        _raise_if_collection_is_over(status, step)
        time.sleep(_pace.seconds("poll"))
    timer.stop("init/total")

    try:
        while step < grpo.max_num_steps:
            trajectory_collector.check_health()
            early_stop_message = None
            with timer.time("total_step_time"):
                with timer.time("exposed_generation"):
                    status = trajectory_collector.get_status()
                    sample_result = replay_buffer.sample(
                        num_prompt_groups=num_prompts_per_step,
                        current_weight_version=weight_version,
                        max_age_steps=max_trajectory_age_steps,
                    )
                    if sample_result is None:
                        _raise_if_collection_is_over(status, step)
                        with timer.time("idle/buffer_starvation"):
                            # At least a moment even when phases take no time: this loop spins otherwise.
                            time.sleep(max(_pace.seconds("poll"), 0.001))
                        continue
                    trajectories = sample_result["trajectories"]
                    avg_trajectory_age = sample_result["avg_trajectory_age"]
                    repeated_batch = BatchedDataDict.from_batches([t["batch"] for t in trajectories])
                    per_group_metrics: dict[str, list] = {}
                    for trajectory in trajectories:
                        for name, value in trajectory["rollout_metrics"].items():
                            per_group_metrics.setdefault(name, []).append(value)
                    rollout_metrics = aggregate_rollout_metrics(per_group_metrics)

                policy_generation.snapshot_step_metrics()

                with timer.time("reward_calculation"):
                    prompt_flat, _ = batched_message_log_to_flat_message(
                        [log[:1] for log in repeated_batch["message_log"]],
                        pad_value_dict={"token_ids": tokenizer.pad_token_id},
                    )
                    prompt_ids = prompt_flat["token_ids"]
                    rewards = repeated_batch["total_reward"]

                with timer.time("data_processing"):
                    with timer.time("overlong_filter"):
                        if grpo.overlong_filtering:
                            kept = ~repeated_batch["truncated"]
                            repeated_batch["loss_multiplier"] = repeated_batch["loss_multiplier"] * kept
                    with timer.time("mask_sample_filter"):
                        num_mask_sample_filtered = int(np.sum(repeated_batch["loss_multiplier"] == 0))
                    mark_generated_tokens(repeated_batch["message_log"])
                    flat_messages, input_lengths = batched_message_log_to_flat_message(
                        repeated_batch["message_log"],
                        pad_value_dict={"token_ids": tokenizer.pad_token_id},
                        make_sequence_length_divisible_by=master_config.policy["make_sequence_length_divisible_by"],
                    )
                    train_data = train_data_of(
                        flat_messages, input_lengths, sample_mask=repeated_batch["loss_multiplier"]
                    )

                _, skip_reference_logprobs = _resolve_logprob_skip_flags(master_config)
                with timer.time("logprob_inference_prep"):
                    policy.prepare_for_lp_inference()

                with timer.time("policy_and_reference_logprobs"):
                    train_data["prev_logprobs"] = policy.get_logprobs(train_data, timer=timer)["logprobs"]
                    if skip_reference_logprobs:
                        train_data["reference_policy_logprobs"] = np.zeros_like(train_data["prev_logprobs"])
                    else:
                        train_data["reference_policy_logprobs"] = policy.get_reference_policy_logprobs(
                            train_data, timer=timer
                        )["reference_logprobs"]

                logprob_error = compute_and_apply_seq_logprob_error_masking(
                    train_data=train_data, rewards=rewards, seq_logprob_error_threshold=None
                )

                with timer.time("advantage_calculation"):
                    train_data["advantages"] = adv_estimator.compute_advantage(
                        prompt_ids=prompt_ids,
                        rewards=rewards,
                        mask=train_data["token_mask"] * train_data["sample_mask"][:, None],
                        repeated_batch=repeated_batch,
                    )

                with timer.time("training_prep"):
                    policy.prepare_for_training()

                with timer.time("policy_training"):
                    train_results = policy.train(train_data, loss_fn, timer=timer)

                is_last_step = step + 1 == grpo.max_num_steps
                should_save_by_timeout = timeout.check_save()
                saving_this_step = master_config.checkpointing["enabled"] and (
                    is_last_step
                    or (step + 1) % master_config.checkpointing["save_period"] == 0
                    or should_save_by_timeout
                )

                timer.start("idle/refit_bubble")
                with timer.time("exposed_generation"):
                    trajectory_collector.prepare_for_refit()
                generation_logger_metrics = policy_generation.get_logger_metrics()
                with timer.time("weight_sync"):
                    refit_policy_generation(policy, policy_generation, colocated_inference)
                    # Before collection goes on, so that what it generates is stamped with the new version.
                    weight_version += 1
                    trajectory_collector.set_weight_version(weight_version)
                    trajectory_collector.resume_after_refit()
                timer.stop("idle/refit_bubble")
                policy_generation.clear_logger_metrics()

                val_metrics = None
                if _should_validate(grpo, step + 1, is_last_step):
                    trajectory_collector.pause()
                    with timer.time("idle/validation"):
                        policy_generation.prepare_for_generation()
                        val_metrics, validation_timings = validate(
                            policy_generation,
                            val_dataloader,
                            tokenizer,
                            val_task_to_env,
                            step=step + 1,
                            master_config=master_config,
                            logger=logger,
                            processor=processor,
                        )
                        early_stop_message = _validation_early_stop_message(
                            val_metrics, grpo.stop_at_validation_threshold, grpo.stop_at_validation_metric
                        )
                        if early_stop_message is not None:
                            saving_this_step = master_config.checkpointing["enabled"]
                        policy_generation.finish_generation(release_gpu=saving_this_step)
                        logger.log_metrics(validation_timings, step + 1, prefix="timing/validation")
                        logger.log_metrics(val_metrics, step + 1, prefix="validation")
                        if early_stop_message is None:
                            trajectory_collector.resume()

                metrics = train_metrics(
                    train_results,
                    rewards,
                    train_data["advantages"],
                    train_data["token_mask"],
                    repeated_batch["length"],
                    input_lengths,
                )
                metrics["num_mask_sample_filtered"] = num_mask_sample_filtered
                metrics.update(rollout_metrics)
                metrics.update(logprob_error)
                metrics["generation_logger_metrics"] = generation_logger_metrics
                grpo_save_state.consumed_samples += num_prompts_per_step
                grpo_save_state.total_valid_tokens += int(metrics["global_valid_toks"])
                timeout.mark_iteration()

                if saving_this_step:
                    grpo_save_state.current_step = step + 1
                    if val_metrics is not None:
                        grpo_save_state.val_reward = val_metrics["accuracy"]
                    with timer.time("checkpointing"):
                        checkpointer.finalize_pending()
                        write_checkpoint(
                            checkpointer,
                            policy,
                            trajectory_collector.get_dataloader_state(),
                            step + 1,
                            grpo_save_state,
                            master_config,
                        )

            logger.log_batched_dict_as_jsonl(
                {"content": flat_messages["content"], "rewards": rewards}, f"train_data_step{step + 1}.jsonl"
            )
            timing_metrics = timer.get_timing_metrics(reduction_op="sum")
            metrics["buffer_size"] = replay_buffer.size()
            metrics["avg_trajectory_age"] = avg_trajectory_age
            performance_metrics = print_performance_metrics(
                train_results,
                metrics,
                timing_metrics,
                master_config,
                num_prompts_per_step=num_prompts_per_step,
                num_generations_per_prompt=grpo.num_generations_per_prompt,
                is_async_rl=True,
            )
            efficiency = _efficiency_seconds(timing_metrics, trajectory_collector.get_efficiency_metrics())
            efficiency_metrics = print_efficiency_summary(
                efficiency, time.perf_counter() - training_wall_start, step + 1
            )
            logger.log_metrics(performance_metrics, step + 1, prefix="performance")
            logger.log_metrics(metrics, step + 1, prefix="train")
            logger.log_metrics(efficiency_metrics, step + 1, prefix="")
            logger.log_metrics(timing_metrics, step + 1, prefix="timing/train", step_finished=True)

            timer.reset()
            step += 1
            if early_stop_message is not None:
                print(early_stop_message, flush=True)
                checkpointer.shutdown()
                return
            if should_save_by_timeout:
                print("Timeout has been reached, stopping training early", flush=True)
                checkpointer.shutdown()
                return
            if step >= grpo.max_num_steps:
                print("Max number of steps has been reached, stopping training early", flush=True)
                checkpointer.shutdown()
                return
    finally:
        checkpointer.shutdown()
        trajectory_collector.stop()
        shutdown_environments(task_to_env, val_task_to_env)
        policy_generation.shutdown()
        policy.shutdown()


def _raise_if_collection_is_over(status: dict[str, Any], step: int) -> None:
    if status["data_exhausted"] and not status["running"] and not status["inflight_workers"]:
        raise RuntimeError(f"the data ran out before step {step}: {status}")


def _efficiency_seconds(driver: dict[str, Any], collector: dict[str, Any]) -> dict[str, float]:
    """Seconds by category; the driver's other labels are no loss and stay out."""
    seconds = {label: value for label, value in driver.items() if label.startswith(("idle/", "init/"))}
    for label, value in collector.items():
        seconds[label] = seconds.get(label, 0.0) + value
    return seconds

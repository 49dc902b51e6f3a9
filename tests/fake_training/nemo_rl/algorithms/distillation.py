"""On-policy distillation: the student generates, the teacher says what it would have said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_rl.algorithms._grpo_batch import mark_generated_tokens
from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms._supervised_setup import Section, due, must_save
from nemo_rl.algorithms.grpo import refit_policy_generation
from nemo_rl.algorithms.loss import DistillationLossFn
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
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from nemo_rl.utils.timer import TimeoutChecker, Timer


class DistillationConfig(Section):
    pass


class MasterConfig(Section):
    pass


@dataclass
class DistillationSaveState:
    total_steps: int
    current_epoch: int
    current_step: int
    consumed_samples: int
    total_valid_tokens: int


def _initial_distillation_save_state() -> DistillationSaveState:
    return DistillationSaveState(
        total_steps=0, current_epoch=0, current_step=0, consumed_samples=0, total_valid_tokens=0
    )


def setup(master_config: MasterConfig, tokenizer: Any, train_dataset: Any, val_dataset: Any) -> tuple:
    """Student, teacher, the student's engine, data loaders, loss, logger, checkpointer, state, config."""
    distillation = master_config.distillation
    set_seed(distillation.seed)
    logger = Logger(master_config.logger)
    checkpointer = CheckpointManager(master_config.checkpointing)
    dataloader = StatefulDataLoader(train_dataset, distillation.num_prompts_per_step, False, rl_collate_fn)
    val_dataloader = StatefulDataLoader(val_dataset, distillation.val_batch_size, False, rl_collate_fn)
    cluster = RayVirtualCluster([1])
    teacher_policy = Policy(cluster, master_config.teacher, tokenizer, name_prefix="teacher", init_optimizer=False)
    student_generation = VllmGeneration(cluster, master_config.policy["generation"])
    student_policy = Policy(cluster, master_config.policy, tokenizer, name_prefix="student")
    student_generation.prepare_refit_info(student_policy.prepare_refit_info())
    return (
        student_policy,
        teacher_policy,
        student_generation,
        dataloader,
        val_dataloader,
        DistillationLossFn(master_config.loss_fn),
        logger,
        checkpointer,
        _initial_distillation_save_state(),
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
        max_rollout_turns=master_config.distillation.max_rollout_turns,
        greedy=False,
    )


def distillation_train(
    student_policy: Any,
    teacher_policy: Any,
    student_generation: Any,
    dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    task_to_env: dict[str, Any],
    val_task_to_env: dict[str, Any] | None,
    logger: Any,
    checkpointer: Any,
    distillation_save_state: DistillationSaveState,
    master_config: MasterConfig,
) -> None:
    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    distillation = master_config.distillation
    current_epoch, current_step = distillation_save_state.current_epoch, distillation_save_state.current_step
    total_steps = distillation_save_state.total_steps
    max_steps, max_epochs = distillation.max_num_steps, distillation.max_num_epochs
    colocated_inference = master_config.policy["generation"]["colocated"]["enabled"]
    generation_is_stale = True

    def validate_at(step: int) -> None:
        if generation_is_stale:
            refit_policy_generation(student_policy, student_generation, colocated_inference)
        val_metrics, validation_timings = validate(
            student_generation,
            val_dataloader,
            tokenizer,
            val_task_to_env,
            step=step,
            master_config=master_config,
            logger=logger,
        )
        student_generation.finish_generation()
        logger.log_metrics(validation_timings, step, prefix="timing/validation")
        logger.log_metrics(val_metrics, step, prefix="validation")

    if distillation.val_at_start and total_steps == 0:
        validate_at(0)
        generation_is_stale = False

    while total_steps < max_steps and current_epoch < max_epochs:
        for batch in dataloader:
            with timer.time("total_step_time"):
                with timer.time("data_processing"):
                    repeated_batch = batch.repeat_interleave(distillation.num_generations_per_prompt)
                with timer.time("prepare_for_generation"):
                    if generation_is_stale:
                        refit_policy_generation(student_policy, student_generation, colocated_inference, timer=timer)
                    else:
                        student_generation.prepare_for_generation()
                with timer.time("generation"):
                    repeated_batch, rollout_metrics = _rollout(
                        student_generation, repeated_batch, tokenizer, task_to_env, master_config
                    )
                    student_generation.finish_generation()
                with timer.time("data_processing"):
                    mark_generated_tokens(repeated_batch["message_log"])
                    flat_messages, input_lengths = batched_message_log_to_flat_message(
                        repeated_batch["message_log"], pad_value_dict={"token_ids": tokenizer.pad_token_id}
                    )
                    train_data = BatchedDataDict(
                        {
                            "input_ids": flat_messages["token_ids"],
                            "input_lengths": input_lengths,
                            "token_mask": flat_messages["token_loss_mask"],
                            "sample_mask": repeated_batch["loss_multiplier"],
                        }
                    )
                with timer.time("teacher_logprob_inference_prep"):
                    teacher_policy.prepare_for_lp_inference()
                with timer.time("teacher_logprob_inference"):
                    teacher_topk = teacher_policy.get_topk_logits(train_data, k=distillation.topk_logits_k, timer=timer)
                    train_data["teacher_topk_logits"] = teacher_topk["topk_logits"]
                    train_data["teacher_topk_indices"] = teacher_topk["topk_indices"]
                with timer.time("training_prep"):
                    teacher_policy.offload_after_refit()
                    student_policy.prepare_for_training()
                    generation_is_stale = True
                with timer.time("policy_training"):
                    train_results = student_policy.train(train_data, loss_fn, timer=timer)

                is_last_step = total_steps + 1 >= max_steps
                if due(distillation, total_steps + 1, is_last_step):
                    validate_at(total_steps + 1)
                    generation_is_stale = False
                metrics = {"loss": train_results["loss"], "grad_norm": train_results["grad_norm"]}
                metrics.update(train_results["all_mb_metrics"])
                metrics.update(rollout_metrics)
                timeout.mark_iteration()
                if must_save(master_config.checkpointing, total_steps + 1, is_last_step):
                    student_policy.prepare_for_training()
                    distillation_save_state.current_epoch = current_epoch
                    distillation_save_state.total_steps = total_steps + 1
                    with timer.time("checkpointing"):
                        write_checkpoint(
                            checkpointer,
                            student_policy,
                            dataloader.state_dict(),
                            total_steps + 1,
                            distillation_save_state,
                            master_config,
                        )

            timing_metrics = timer.get_timing_metrics(reduction_op="sum")
            logger.log_metrics(metrics, total_steps + 1, prefix="train")
            logger.log_metrics(timing_metrics, total_steps + 1, prefix="timing/train")
            timer.reset()
            current_step += 1
            total_steps += 1
            if total_steps >= max_steps:
                checkpointer.shutdown()
                return
        current_epoch += 1
        current_step = 0
    checkpointer.shutdown()


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

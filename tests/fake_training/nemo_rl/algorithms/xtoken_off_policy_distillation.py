"""Off-policy distillation from teachers that may have another tokenizer: all read the same texts."""

from __future__ import annotations

from functools import partial
from typing import Any

from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms._supervised_setup import Section, must_save
from nemo_rl.algorithms.loss import CrossTokenizerDistillationLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import preference_collate_fn
from nemo_rl.data.dataloader import StatefulDataLoader
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from nemo_rl.utils.timer import TimeoutChecker, Timer


class MasterConfig(Section):
    pass


def _default_off_policy_distillation_save_state() -> dict[str, Any]:
    return {"current_epoch": 0, "current_step": 0, "total_steps": 0, "consumed_samples": 0, "total_valid_tokens": 0}


def setup(
    master_config: MasterConfig,
    student_tokenizer: Any,
    teacher_tokenizers: list[Any],
    train_dataset: Any,
    val_dataset: Any,
) -> tuple:
    """Student, teachers, data loaders, loss, logger, checkpointer, state, config."""
    distillation = master_config.distillation
    set_seed(distillation["seed"])
    logger = Logger(master_config.logger)
    checkpointer = CheckpointManager(master_config.checkpointing)
    collate = partial(
        preference_collate_fn, tokenizer=student_tokenizer, make_sequence_length_divisible_by=1, add_loss_mask=True
    )
    size = distillation["num_prompts_per_step"]
    dataloader, val_dataloader = (StatefulDataLoader(d, size, False, collate) for d in (train_dataset, val_dataset))
    cluster = RayVirtualCluster([1])
    teacher_policies = [
        Policy(cluster, teacher.policy_config(), tokenizer, name_prefix=f"teacher_{i}", init_optimizer=False)
        for i, (teacher, tokenizer) in enumerate(zip(master_config.teachers, teacher_tokenizers, strict=True))
    ]
    student_policy = Policy(cluster, master_config.policy, student_tokenizer, name_prefix="student")
    loss_fn = CrossTokenizerDistillationLossFn(master_config.loss_fn)
    state = _default_off_policy_distillation_save_state()
    return (
        student_policy,
        teacher_policies,
        dataloader,
        val_dataloader,
        loss_fn,
        logger,
        checkpointer,
        state,
        master_config,
    )


def export_teacher_logits_and_pack(
    teacher_policies: list[Any], loss_fn: Any, batch: BatchedDataDict, teacher_mbs: list[int], *, timer: Any = None
) -> BatchedDataDict:
    """One teacher after the other; what each says rides along with the batch."""
    train_data = BatchedDataDict(batch)
    for i, teacher_policy in enumerate(teacher_policies):
        teacher_policy.prepare_for_lp_inference()
        handles = teacher_policy.get_full_logits_ipc(batch, micro_batch_size=teacher_mbs[i], timer=timer)
        train_data[f"teacher_{i}_full_logits_ipc"] = handles
        teacher_policy.offload_after_refit()
    return train_data


def xtoken_off_policy_distillation_train(
    student_policy: Any,
    teacher_policies: list[Any],
    dataloader: Any,
    val_dataloader: Any,
    loss_fn: Any,
    logger: Any,
    checkpointer: Any,
    off_policy_distillation_state: dict[str, Any],
    master_config: MasterConfig,
) -> None:
    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    distill_cfg = master_config.distillation
    state = off_policy_distillation_state
    current_epoch, current_step, total_steps = state["current_epoch"], state["current_step"], state["total_steps"]
    max_steps, max_epochs = distill_cfg["max_num_steps"], distill_cfg["max_num_epochs"]
    teacher_mbs = [teacher.policy_config()["train_micro_batch_size"] for teacher in master_config.teachers]

    def validate_at(step: int) -> None:
        val_metrics, val_timings = validate(
            student_policy, teacher_policies, val_dataloader, loss_fn, master_config, skip_keys=set(), timer=timer
        )
        logger.log_metrics(val_metrics, step, prefix="validation")
        logger.log_metrics(val_timings, step, prefix="timing/validation")

    if distill_cfg["val_at_start"] and total_steps == 0:
        validate_at(0)

    while total_steps < max_steps and current_epoch < max_epochs:
        for batch in dataloader:
            with timer.time("total_step_time"):
                with timer.time("teacher_forward"):
                    train_data = export_teacher_logits_and_pack(
                        teacher_policies, loss_fn, batch, teacher_mbs, timer=timer
                    )
                with timer.time("training_prep"):
                    student_policy.prepare_for_training()
                with timer.time("policy_training"):
                    train_results = student_policy.train(train_data, loss_fn, timer=timer, check_dim_skip_keys=set())

                is_last_step = total_steps + 1 >= max_steps
                if distill_cfg["val_period"] > 0 and (total_steps + 1) % distill_cfg["val_period"] == 0:
                    validate_at(total_steps + 1)
                metrics = {"loss": train_results["loss"], "grad_norm": train_results["grad_norm"]}
                metrics.update(train_results["all_mb_metrics"])
                timeout.mark_iteration()
                if must_save(master_config.checkpointing, total_steps + 1, is_last_step):
                    student_policy.prepare_for_training()
                    state.update(current_epoch=current_epoch, total_steps=total_steps + 1)
                    with timer.time("checkpointing"):
                        write_checkpoint(
                            checkpointer,
                            student_policy,
                            dataloader.state_dict(),
                            total_steps + 1,
                            state,
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
    student_policy: Any,
    teacher_policies: list[Any],
    val_dataloader: Any,
    loss_fn: Any,
    master_config: MasterConfig,
    skip_keys: set[str],
    timer: Timer | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """With the step's own timer, unlike other algorithms."""
    teacher_mbs = [teacher.policy_config()["train_micro_batch_size"] for teacher in master_config.teachers]
    losses = []
    timer = timer or Timer()
    with timer.time("validation_total"):
        for batch in val_dataloader:
            train_data = export_teacher_logits_and_pack(teacher_policies, loss_fn, batch, teacher_mbs, timer=timer)
            student_policy.prepare_for_training()
            results = student_policy.train(train_data, loss_fn, eval_mode=True, check_dim_skip_keys=skip_keys)
            losses.append(results["loss"])
    return {"loss": sum(losses) / max(len(losses), 1)}, {
        "validation_total": timer.get_latest_elapsed("validation_total")
    }

"""The loop of direct preference optimization. The reference's log-probabilities come with the batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms._supervised_setup import Section, SupervisedSaveState, build, due, must_save
from nemo_rl.algorithms.loss import DPOLossFn
from nemo_rl.data.collate_fn import preference_collate_fn
from nemo_rl.utils.timer import TimeoutChecker, Timer


class DPOConfig(Section):
    pass


class MasterConfig(Section):
    pass


class DPOSaveState(SupervisedSaveState):
    pass


def setup(master_config: MasterConfig, tokenizer: Any, train_dataset: Any, val_dataset: dict[str, Any]) -> tuple:
    collate = partial(
        preference_collate_fn, tokenizer=tokenizer, make_sequence_length_divisible_by=1, add_loss_mask=True
    )
    loss_fn = DPOLossFn(master_config.dpo)
    return build(
        master_config, master_config.dpo, tokenizer, train_dataset, val_dataset, collate, loss_fn, DPOSaveState()
    )


def add_ref_logprobs_to_data(dataloader: Any, policy: Any, master_config: Any, is_val: bool = False) -> Iterator[Any]:
    size = master_config.dpo.val_micro_batch_size if is_val else master_config.policy["train_micro_batch_size"]
    for batch in dataloader:
        reference = policy.get_reference_policy_logprobs(batch, micro_batch_size=size * 2)
        batch["reference_policy_logprobs"] = reference["reference_logprobs"]
        yield batch


def validate(
    policy: Any,
    val_dataloader: dict[str, Any],
    tokenizer: Any,
    loss_fn: Any,
    step: int,
    master_config: MasterConfig,
    val_batches: int,
    val_batch_size: int,
    val_mbs: int,
    logger: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    val_metrics: dict[str, Any] = {}
    validation_timings: dict[str, Any] = {}
    for val_dataset_name, v in val_dataloader.items():
        k_val_metrics, k_validation_timings = validate_one_dataset(
            policy=policy,
            val_dataloader=v,
            loss_fn=loss_fn,
            step=step,
            master_config=master_config,
            val_batches=val_batches,
            val_batch_size=val_batch_size,
            val_mbs=val_mbs,
            dataset_name=val_dataset_name,
        )
        prefix = f"validation-{val_dataset_name}"
        logger.log_metrics(k_val_metrics, step, prefix=prefix)
        logger.log_metrics(k_validation_timings, step, prefix=f"timing/{prefix}")
        val_metrics.update({f"{prefix}_{name}": value for name, value in k_val_metrics.items()})
        validation_timings[f"{prefix}_total_validation_time"] = k_validation_timings["total_validation_time"]
    return val_metrics, validation_timings


def validate_one_dataset(
    policy: Any,
    val_dataloader: Any,
    loss_fn: Any,
    step: int,
    master_config: MasterConfig,
    val_batches: int,
    val_batch_size: int,
    val_mbs: int,
    dataset_name: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    timer = Timer()
    with timer.time("total_validation_time"):
        losses = []
        policy.prepare_for_training()
        for batch_idx, val_batch in enumerate(
            add_ref_logprobs_to_data(val_dataloader, policy, master_config, is_val=True)
        ):
            val_results = policy.train(val_batch, loss_fn, eval_mode=True, gbs=val_batch.size, mbs=val_mbs * 2)
            losses.append(val_results["loss"])
            if val_batches > 0 and batch_idx >= val_batches - 1:
                break
        policy.prepare_for_training()
    timing_metrics = timer.get_timing_metrics(reduction_op="sum")
    timer.reset()
    return {"loss": sum(losses) / max(len(losses), 1)}, timing_metrics


def dpo_train(
    policy: Any,
    train_dataloader: Any,
    val_dataloader: dict[str, Any],
    tokenizer: Any,
    loss_fn: Any,
    master_config: MasterConfig,
    logger: Any,
    checkpointer: Any,
    dpo_save_state: DPOSaveState,
) -> None:
    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    current_epoch, current_step = dpo_save_state.epoch, dpo_save_state.step
    total_steps = dpo_save_state.total_steps
    dpo_config = master_config.dpo
    validation = {
        "val_batches": dpo_config.val_batches,
        "val_batch_size": dpo_config.val_global_batch_size,
        "val_mbs": dpo_config.val_micro_batch_size,
        "logger": logger,
    }

    if dpo_config.val_at_start and total_steps == 0:
        validate(policy, val_dataloader, tokenizer, loss_fn, step=0, master_config=master_config, **validation)
    policy.prepare_for_training()

    while current_epoch < dpo_config.max_num_epochs and total_steps < dpo_config.max_num_steps:
        for batch in add_ref_logprobs_to_data(train_dataloader, policy, master_config):
            with timer.time("total_step_time"):
                with timer.time("policy_training"):
                    train_results = policy.train(
                        batch,
                        loss_fn,
                        eval_mode=False,
                        gbs=master_config.policy["train_global_batch_size"] * 2,
                        mbs=master_config.policy["train_micro_batch_size"] * 2,
                        timer=timer,
                    )

                is_last_step = total_steps + 1 >= dpo_config.max_num_steps
                if due(dpo_config, total_steps + 1, is_last_step):
                    validate(
                        policy,
                        val_dataloader,
                        tokenizer,
                        loss_fn,
                        step=total_steps + 1,
                        master_config=master_config,
                        **validation,
                    )
                metrics = {"loss": train_results["loss"], "grad_norm": train_results["grad_norm"]}
                metrics.update(train_results["all_mb_metrics"])
                timeout.mark_iteration()
                if must_save(master_config.checkpointing, total_steps + 1, is_last_step):
                    dpo_save_state.epoch, dpo_save_state.total_steps = current_epoch, total_steps + 1
                    with timer.time("checkpointing"):
                        write_checkpoint(
                            checkpointer,
                            policy,
                            train_dataloader.state_dict(),
                            total_steps + 1,
                            dpo_save_state,
                            master_config,
                        )

            timing_metrics = timer.get_timing_metrics(reduction_op="sum")
            logger.log_metrics(metrics, total_steps + 1, prefix="train")
            logger.log_metrics(timing_metrics, total_steps + 1, prefix="timing/train")
            timer.reset()
            current_step += 1
            total_steps += 1
            if total_steps >= dpo_config.max_num_steps:
                checkpointer.shutdown()
                return
        current_epoch += 1
        current_step = 0
    checkpointer.shutdown()

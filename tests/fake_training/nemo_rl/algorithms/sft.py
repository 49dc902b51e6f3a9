"""The loop of supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.algorithms._supervised_setup import Section, SupervisedSaveState, build, due, must_save
from nemo_rl.algorithms.loss import NLLLossFn
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.llm_message_utils import add_loss_mask_to_message_log, batched_message_log_to_flat_message
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.utils.timer import TimeoutChecker, Timer


class SFTConfig(Section):
    pass


class MasterConfig(Section):
    pass


class SFTSaveState(SupervisedSaveState):
    pass


def setup(master_config: MasterConfig, tokenizer: Any, train_dataset: Any, val_dataset: Any) -> tuple:
    return build(
        master_config,
        master_config.sft,
        tokenizer,
        train_dataset,
        val_dataset,
        rl_collate_fn,
        NLLLossFn(),
        SFTSaveState(),
    )


def prepare_sft_batch(
    batch: BatchedDataDict, *, tokenizer: Any, only_unmask_final: bool, make_sequence_length_divisible_by: int
) -> BatchedDataDict:
    """In NeMo RL since SFT v2; before, the two loops have it inline."""
    add_loss_mask_to_message_log(
        batch["message_log"], roles_to_train_on=["assistant"], only_unmask_final=only_unmask_final
    )
    flat, input_lengths = batched_message_log_to_flat_message(
        batch["message_log"],
        pad_value_dict={"token_ids": tokenizer.pad_token_id},
        make_sequence_length_divisible_by=make_sequence_length_divisible_by,
    )
    return BatchedDataDict(
        {
            "input_ids": flat["token_ids"],
            "input_lengths": input_lengths,
            "token_mask": flat["token_loss_mask"],
            "sample_mask": batch["loss_multiplier"],
        }
    )


def validate(
    policy: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    step: int,
    master_config: MasterConfig,
    val_batches: int,
    val_batch_size: int,
    val_mbs: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, timings); both empty when there is nothing to validate on."""
    if val_dataloader is None:
        return {}, {}
    timer = Timer()
    with timer.time("total_validation_time"):
        losses = []
        policy.prepare_for_training()
        for batch_idx, val_batch in enumerate(val_dataloader):
            val_data = prepare_sft_batch(
                val_batch,
                tokenizer=tokenizer,
                only_unmask_final=master_config.sft.only_unmask_final,
                make_sequence_length_divisible_by=1,
            )
            val_results = policy.train(val_data, loss_fn, eval_mode=True, gbs=val_data.size, mbs=val_mbs)
            losses.append(val_results["loss"])
            if val_batches > 0 and batch_idx >= val_batches - 1:
                break
        policy.prepare_for_training()
    timing_metrics = timer.get_timing_metrics(reduction_op="sum")
    timer.reset()
    return {"val_loss": sum(losses) / max(len(losses), 1)}, timing_metrics


def sft_train(
    policy: Any,
    train_dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    master_config: MasterConfig,
    logger: Any,
    checkpointer: Any,
    sft_save_state: SFTSaveState,
) -> None:
    timer = Timer()
    timeout = TimeoutChecker(timeout=master_config.checkpointing["checkpoint_must_save_by"], fit_last_save_time=True)
    timeout.start_iterations()
    current_epoch, current_step = sft_save_state.epoch, sft_save_state.step
    total_steps = sft_save_state.total_steps
    sft_config = master_config.sft
    validation = {
        "val_batches": sft_config.val_batches,
        "val_batch_size": sft_config.val_global_batch_size,
        "val_mbs": sft_config.val_micro_batch_size,
    }

    if sft_config.val_at_start and total_steps == 0:
        val_metrics, validation_timings = validate(
            policy, val_dataloader, tokenizer, loss_fn, step=0, master_config=master_config, **validation
        )
        logger.log_metrics(val_metrics, total_steps, prefix="validation")
        logger.log_metrics(validation_timings, total_steps, prefix="timing/validation")
    policy.prepare_for_training()

    while current_epoch < sft_config.max_num_epochs and total_steps < sft_config.max_num_steps:
        for batch in train_dataloader:
            with timer.time("total_step_time"):
                with timer.time("data_processing"):
                    train_data = prepare_sft_batch(
                        batch,
                        tokenizer=tokenizer,
                        only_unmask_final=sft_config.only_unmask_final,
                        make_sequence_length_divisible_by=1,
                    )
                with timer.time("policy_training"):
                    train_results = policy.train(train_data, loss_fn, timer=timer)

                is_last_step = total_steps + 1 >= sft_config.max_num_steps
                if due(sft_config, total_steps + 1, is_last_step):
                    val_metrics, validation_timings = validate(
                        policy,
                        val_dataloader,
                        tokenizer,
                        loss_fn,
                        step=total_steps + 1,
                        master_config=master_config,
                        **validation,
                    )
                    logger.log_metrics(validation_timings, total_steps + 1, prefix="timing/validation")
                    logger.log_metrics(val_metrics, total_steps + 1, prefix="validation")
                metrics = {"loss": train_results["loss"], "grad_norm": train_results["grad_norm"]}
                metrics.update(train_results["all_mb_metrics"])
                timeout.mark_iteration()
                if must_save(master_config.checkpointing, total_steps + 1, is_last_step):
                    sft_save_state.epoch, sft_save_state.total_steps = current_epoch, total_steps + 1
                    with timer.time("checkpointing"):
                        write_checkpoint(
                            checkpointer,
                            policy,
                            train_dataloader.state_dict(),
                            total_steps + 1,
                            sft_save_state,
                            master_config,
                        )

            timing_metrics = timer.get_timing_metrics(reduction_op="sum")
            logger.log_metrics(metrics, total_steps + 1, prefix="train")
            logger.log_metrics(timing_metrics, total_steps + 1, prefix="timing/train")
            timer.reset()
            current_step += 1
            total_steps += 1
            if total_steps >= sft_config.max_num_steps:
                checkpointer.shutdown()
                return
        current_epoch += 1
        current_step = 0
    checkpointer.shutdown()

"""The single controller: a pump of rollouts and a pump of training steps in one event loop.

In NeMo RL a Ray actor whose worker never imports this module: it gets the class by value.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nemo_rl.algorithms._saving import write_checkpoint
from nemo_rl.data_plane.interfaces import KVBatchMeta
from nemo_rl.experience.rollout_manager import RolloutOutcome
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import Logger
from nemo_rl.utils.timer import Timer


class SingleControllerActor:
    def __init__(self, master_config: Any, actor_args: Any, setup_timing_metrics: dict[str, float]) -> None:
        self._master_config = master_config
        self._cfg = master_config.algorithm
        self._is_ppo = bool(self._cfg.ppo_epochs)
        self._trainer = actor_args.trainer_handle
        self._value_model, self._value_loss_fn = actor_args.value_handle, actor_args.value_loss_fn
        self._dp_client, self._partition_id = actor_args.dp_client, actor_args.partition_id
        self._dataloader = actor_args.dataloader
        self._weight_synchronizer = actor_args.weight_synchronizer
        self._loss_fn = actor_args.loss_fn
        self._rollout_manager = actor_args.rollout_manager
        self._buffer = actor_args.tq_buffer
        self._logger = Logger(master_config.logger)
        self._checkpointer = CheckpointManager(master_config.checkpointing)
        self._timer = Timer()
        self._train_steps = self._trainer_version = 0
        self._inflight_by_group_id: dict[str, Any] = {}
        self._rollout_permitted = asyncio.Event()
        self._logger.log_metrics(setup_timing_metrics, step=0, prefix="timing/setup")

    async def run(self) -> dict[str, Any]:
        await self._sync_weights()
        rollout_task = asyncio.create_task(self._rollout_pump())
        await asyncio.create_task(self._train_pump())
        await rollout_task
        await asyncio.to_thread(self._checkpointer.shutdown)
        self._weight_synchronizer.shutdown()
        return {"train_steps": self._train_steps, "trainer_version": self._trainer_version}

    async def _call_dp(self, method_name: str, **kwargs: Any) -> Any:
        return getattr(self._dp_client, method_name)(**kwargs)

    async def _rollout_pump(self) -> None:
        async def dispatch_one_prompt(prompt: dict[str, Any], target_step: int) -> None:
            replacements = 0
            while True:
                outcome = await self._rollout_manager.generate_and_push(
                    prompt, target_step=target_step, inflight_registry=self._inflight_by_group_id
                )
                if outcome is not RolloutOutcome.SKIPPED:
                    return
                replacements += 1

        dispatched = []
        for target_step, batch in enumerate(self._dataloader):
            # Never ahead of training.
            while self._trainer_version < target_step:
                await asyncio.sleep(0.001)
            await self._rollout_permitted.wait()
            for i in range(batch.size):
                prompt = {key: column[i] for key, column in batch.items()}
                dispatched.append(asyncio.create_task(dispatch_one_prompt(prompt, target_step)))
        await asyncio.gather(*dispatched)

    async def _train_pump(self) -> None:
        while self._train_steps < self._cfg.max_num_steps:
            version_during_step = self._trainer_version
            groups_dispatched = 0
            step_open = False
            with self._timer.time("total_step_time"):
                while groups_dispatched < self._cfg.num_prompts_per_step:
                    with self._timer.time("exposed_generation"):
                        await asyncio.sleep(0)
                        train_meta = self._buffer.take(self._cfg.min_groups_for_streaming_train)
                        if train_meta is None:
                            await asyncio.sleep(0.005)
                            continue
                    with self._timer.time("logprob_inference_prep"):
                        await asyncio.to_thread(self._trainer.prepare_for_lp_inference, keep_train_buffers=step_open)
                    with self._timer.time("policy_and_reference_logprobs"):
                        await asyncio.to_thread(self._trainer.get_logprobs_from_meta, train_meta)
                        await asyncio.to_thread(self._trainer.get_reference_policy_logprobs_from_meta, train_meta)
                    if self._value_model is not None:
                        with self._timer.time("value_inference_prep"):
                            await asyncio.to_thread(self._value_model.prepare_for_inference)
                        with self._timer.time("value_inference"):
                            await self._put_values(train_meta)
                    with self._timer.time("advantage_calculation"):
                        await self._advantage_stage(train_meta)

                    for epoch in range(self._cfg.ppo_epochs or 1):
                        if self._value_model is not None:
                            with self._timer.time("value_training"):
                                await self._train_value(train_meta)
                        with self._timer.time("training_prep"):
                            await asyncio.to_thread(self._trainer.prepare_for_training)
                        with self._timer.time("policy_training"):
                            if not step_open:
                                await asyncio.to_thread(self._trainer.begin_train_step, self._loss_fn)
                                step_open = True
                            await asyncio.to_thread(self._trainer.train_microbatches_from_meta, train_meta)
                            if self._value_model is not None:
                                result = await asyncio.to_thread(self._trainer.finish_train_step)
                                step_open = False
                    await self._call_dp(
                        "clear_samples", sample_ids=list(train_meta.sample_ids), partition_id=self._partition_id
                    )
                    groups_dispatched += self._cfg.min_groups_for_streaming_train

                if self._value_model is None:
                    with self._timer.time("policy_training"):
                        result = await asyncio.to_thread(self._trainer.finish_train_step)
                self._trainer_version += 1
                self._train_steps += 1
                with self._timer.time("weight_sync"):
                    await self._sync_weights()
                if self._train_steps >= self._cfg.max_num_steps:
                    with self._timer.time("checkpointing"):
                        await self._save_checkpoint(result)

            self._logger.log_metrics({"loss": result["loss"]}, step=self._train_steps, prefix="train")
            timing_metrics = self._timer.get_timing_metrics(reduction_op="sum")
            self._logger.log_metrics(timing_metrics, step=self._train_steps, prefix="timing/train")
            self._timer.reset()

    async def _put_values(self, meta: KVBatchMeta) -> None:
        data = await asyncio.to_thread(self._trainer.read_from_dataplane, meta, select_fields=["input_ids"])
        values = await asyncio.to_thread(self._value_model.get_values, data)
        await asyncio.to_thread(self._trainer.write_to_dataplane, meta, {"values": values["values"]})

    async def _train_value(self, meta: KVBatchMeta) -> None:
        fields = ["input_ids", "returns"]
        data = await asyncio.to_thread(self._trainer.read_from_dataplane, meta, select_fields=fields)
        await asyncio.to_thread(self._value_model.train, data, self._value_loss_fn)

    async def _advantage_stage(self, meta: KVBatchMeta) -> tuple[KVBatchMeta, bool]:
        fields = ["rewards", "token_mask", *(["values"] if self._value_model is not None else [])]
        data = await self._call_dp(
            "get_samples", sample_ids=meta.sample_ids, partition_id=meta.partition_id, select_fields=fields
        )
        baseline = data["values"] if self._value_model is not None else data["rewards"].mean()
        columns = {
            "advantages": (data["rewards"] - baseline)[:, None] * data["token_mask"],
            "returns": data["rewards"],
        }
        await self._call_dp("put_samples", sample_ids=meta.sample_ids, partition_id=meta.partition_id, fields=columns)
        return meta, True

    async def _save_checkpoint(self, step_metrics: dict[str, Any]) -> None:
        await asyncio.to_thread(
            write_checkpoint,
            self._checkpointer,
            self._trainer,
            self._dataloader.state_dict(),
            self._train_steps,
            {"current_step": self._train_steps},
            self._master_config,
        )

    async def _sync_weights(self, *, calibration_data: Any = None) -> None:
        """No rollout starts meanwhile."""
        self._rollout_permitted.clear()
        await asyncio.to_thread(self._weight_synchronizer.sync_weights, kv_scales=None)
        self._rollout_manager.set_weight_version(self._trainer_version)
        self._rollout_permitted.set()

"""A policy whose batches travel through the data plane: the driver holds the names, not the data."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from nemo_rl.data_plane import KVBatchMeta, build_data_plane_client
from nemo_rl.data_plane.schema import DP_TRAIN_FIELDS, LP_SEED_FIELDS
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.utils.timer import Timer


class TQPolicy(Policy):
    train_fields: tuple[str, ...] = DP_TRAIN_FIELDS

    def __init__(self, *args: Any, dp_cfg: dict[str, Any], tq_partition_id: str = "train", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dp_cfg = dp_cfg
        self.tq_partition_id = tq_partition_id
        self._dp_client = build_data_plane_client(dp_cfg)

    def shutdown(self) -> bool:
        self._dp_client.close()
        return super().shutdown()

    def prepare_step(self, num_samples: int, group_size: int | None = None) -> None:
        self._dp_client.register_partition(
            self.tq_partition_id,
            fields=list(DP_TRAIN_FIELDS),
            num_samples=num_samples,
            consumer_tasks=["logprob", "train"],
            grpo_group_size=group_size,
        )

    def prepare_val_partition(self, num_samples: int, *, partition_id: str = "val") -> None:
        self._dp_client.register_partition(
            partition_id, fields=["input_ids"], num_samples=num_samples, consumer_tasks=["validate"]
        )

    def discard_samples(self, sample_ids: list[str], partition_id: str) -> None:
        self._dp_client.clear_samples(sample_ids, partition_id)

    def finish_step(self, meta: KVBatchMeta) -> None:
        self._dp_client.clear_samples(meta.sample_ids, meta.partition_id)

    def read_from_dataplane(
        self,
        meta: KVBatchMeta,
        *,
        select_fields: list[str],
        pad_value_dict: dict[str, Any] | None = None,
    ) -> BatchedDataDict:
        return self._dp_client.get_samples(meta.sample_ids, meta.partition_id, select_fields)

    def write_to_dataplane(self, meta: KVBatchMeta, fields: dict[str, Any]) -> None:
        self._dp_client.put_samples(meta.sample_ids, meta.partition_id, fields=fields)

    def get_logprobs_from_meta(
        self, meta: KVBatchMeta, micro_batch_size: int | None = None, timer: Timer | None = None
    ) -> None:
        logprobs = self._logprobs(meta, "get_logprobs", timer)
        self.write_to_dataplane(meta, {"prev_logprobs": logprobs})

    def get_reference_policy_logprobs_from_meta(
        self, meta: KVBatchMeta, micro_batch_size: int | None = None, timer: Timer | None = None
    ) -> None:
        logprobs = self._logprobs(meta, "get_reference_policy_logprobs", timer)
        self.write_to_dataplane(meta, {"reference_policy_logprobs": logprobs})

    def _logprobs(self, meta: KVBatchMeta, worker_method: str, timer: Timer | None) -> Any:
        with timer.time(f"{worker_method}/shard_meta") if timer else nullcontext():
            fields = list(LP_SEED_FIELDS)
        with timer.time(f"{worker_method}/submit_futures") if timer else nullcontext():
            compute = getattr(self._worker, worker_method)
        return compute(data=self.read_from_dataplane(meta, select_fields=fields))

    def train_from_meta(
        self,
        meta: KVBatchMeta,
        loss_fn: Any,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
        timer: Timer | None = None,
        train_fields: tuple[str, ...] = DP_TRAIN_FIELDS,
    ) -> dict[str, Any]:
        with timer.time("policy_training/shard_meta") if timer else nullcontext():
            fields = list(train_fields)
        with timer.time("policy_training/submit_training_futures") if timer else nullcontext():
            compute = self._worker.train
        return _flat(compute(self.read_from_dataplane(meta, select_fields=fields), loss_fn, eval_mode))

    def begin_train_step(self, loss_fn: Any, gbs: int | None = None, mbs: int | None = None) -> None:
        self._worker.begin_train_step(loss_fn, gbs=gbs, mbs=mbs)

    def train_microbatches_from_meta(self, meta: KVBatchMeta, timer: Timer | None = None) -> None:
        with timer.time("policy_training/shard_meta") if timer else nullcontext():
            fields = list(self.train_fields)
        with timer.time("policy_training/submit_microbatch_futures") if timer else nullcontext():
            compute = self._worker.train_microbatch
        compute(self.read_from_dataplane(meta, select_fields=fields))

    def finish_train_step(self) -> dict[str, Any]:
        return _flat(self._worker.finish_train_step())


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    return {
        "loss": result["global_loss"],
        "grad_norm": result["grad_norm"],
        "all_mb_metrics": result["all_mb_metrics"],
    }

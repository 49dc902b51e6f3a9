"""The driver's handle on the value model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.value.workers.dtensor_value_worker_v2 import DTensorValueWorkerV2Impl
from nemo_rl.models.value.workers.megatron_value_worker import MegatronValueWorkerImpl
from nemo_rl.utils.timer import Timer


class Value:
    def __init__(
        self,
        cluster: Any,
        config: dict[str, Any],
        tokenizer: Any,
        name_prefix: str = "lm_value",
        workers_per_node: int | list[int] | None = None,
        init_optimizer: bool = True,
        weights_path: str | None = None,
        optimizer_path: str | None = None,
    ) -> None:
        if config["megatron_cfg"]["enabled"]:
            self._worker: Any = MegatronValueWorkerImpl(config, tokenizer, worker_sharding_annotations=None)
        else:
            self._worker = DTensorValueWorkerV2Impl(config, tokenizer)

    def get_values(self, data: BatchedDataDict, timer: Timer | None = None) -> BatchedDataDict:
        with timer.time("get_values/shard_data") if timer else nullcontext():
            shard = BatchedDataDict(data)
        with timer.time("get_values/submit_value_futures") if timer else nullcontext():
            compute = self._worker.get_values
        return BatchedDataDict({"values": compute(shard)})

    def train(
        self,
        data: BatchedDataDict,
        loss_fn: Any,
        eval_mode: bool = False,
        *,
        gbs: int | None = None,
        mbs: int | None = None,
        timer: Timer | None = None,
    ) -> dict[str, Any]:
        with timer.time("value_training/sharding_data") if timer else nullcontext():
            shard = BatchedDataDict(data)
        with timer.time("value_training/submit_training_futures") if timer else nullcontext():
            compute = self._worker.train
        result = compute(shard, loss_fn, eval_mode, gbs, mbs)
        return {
            "loss": result["global_loss"],
            "grad_norm": result["grad_norm"],
            "all_mb_metrics": result["all_mb_metrics"],
        }

    def prepare_for_training(self) -> None:
        pass

    def prepare_for_inference(self) -> None:
        pass

    def finish_inference(self) -> None:
        pass

    def finish_training(self) -> None:
        pass

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: dict[str, Any] | None = None,
    ) -> None:
        self._worker._save(weights_path)

    def shutdown(self) -> bool:
        return True

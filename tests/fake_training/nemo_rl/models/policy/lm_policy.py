"""The driver's handle on the policy: cuts the batch up for the workers, times that, and asks them."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from nemo_rl import _pace
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.workers.dtensor_policy_worker import DTensorPolicyWorkerImpl
from nemo_rl.models.policy.workers.dtensor_policy_worker_v2 import DTensorPolicyWorkerV2Impl
from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl
from nemo_rl.utils.timer import Timer


class Policy:
    def __init__(
        self,
        cluster: Any,
        config: dict[str, Any],
        tokenizer: Any,
        name_prefix: str = "lm_policy",
        workers_per_node: int | list[int] | None = None,
        init_optimizer: bool = True,
        weights_path: str | None = None,
        optimizer_path: str | None = None,
        init_reference_model: bool = True,
        processor: Any = None,
        worker_extension_cls_fqn: str | None = None,
        skip_weight_load: bool = False,
    ) -> None:
        self.cfg = config
        self.tokenizer = tokenizer
        self._outgoing_weights: queue.SimpleQueue = queue.SimpleQueue()
        self._worker = _worker(config, tokenizer, weights_path=weights_path, init_optimizer=init_optimizer)

    def get_logprobs(self, data: BatchedDataDict, timer: Timer | None = None) -> BatchedDataDict:
        with timer.time("get_logprobs/shard_data") if timer else nullcontext():
            shard = self._shard_for_logprob(data)
        with timer.time("get_logprobs/submit_logprob_futures") if timer else nullcontext():
            future = _Future(self._worker.get_logprobs, data=shard)
        return BatchedDataDict({"logprobs": future.result()})

    def get_reference_policy_logprobs(
        self,
        data: BatchedDataDict,
        micro_batch_size: int | None = None,
        timer: Timer | None = None,
    ) -> BatchedDataDict:
        label = "get_reference_policy_logprobs"
        with timer.time(f"{label}/shard_data") if timer else nullcontext():
            shard = self._shard_for_logprob(data)
        with timer.time(f"{label}/submit_reference_policy_logprob_futures") if timer else nullcontext():
            future = _Future(self._worker.get_reference_policy_logprobs, data=shard)
        return BatchedDataDict({"reference_logprobs": future.result()})

    def get_topk_logits(
        self,
        data: BatchedDataDict,
        k: int,
        micro_batch_size: int | None = None,
        timer: Timer | None = None,
    ) -> BatchedDataDict:
        with timer.time("get_topk_logits/shard_data") if timer else nullcontext():
            shard = self._shard_for_logprob(data)
        with timer.time("get_topk_logits/submit_topk_logits_futures") if timer else nullcontext():
            future = _Future(self._worker.get_topk_logits, shard, k)
        return BatchedDataDict(zip(("topk_logits", "topk_indices"), future.result(), strict=True))

    def get_full_logits_ipc(
        self,
        data: BatchedDataDict,
        micro_batch_size: int | None = None,
        timer: Timer | None = None,
    ) -> list[Any]:
        with timer.time("get_full_logits_ipc/shard_data") if timer else nullcontext():
            shard = self._shard_for_logprob(data)
        with timer.time("get_full_logits_ipc/submit") if timer else nullcontext():
            future = _Future(self._worker.get_full_logits_ipc, shard)
        return future.result()

    def release_ipc_buffer(self) -> None:
        pass

    def train(
        self,
        data: BatchedDataDict,
        loss_fn: Any,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
        timer: Timer | None = None,
        check_dim_skip_keys: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        with timer.time("policy_training/sharding_data") if timer else nullcontext():
            shard = BatchedDataDict(data)
        with timer.time("policy_training/submit_training_futures") if timer else nullcontext():
            future = _Future(self._worker.train, shard, loss_fn, eval_mode, gbs, mbs)
        result = future.result()
        return {
            "loss": result["global_loss"],
            "grad_norm": result["grad_norm"],
            "all_mb_metrics": result["all_mb_metrics"],
        }

    def _shard_for_logprob(self, data: BatchedDataDict) -> BatchedDataDict:
        return BatchedDataDict({key: data[key] for key in ("input_ids", "input_lengths")})

    def prepare_for_lp_inference(self, keep_train_buffers: bool = False) -> None:
        _pace.work("logprob_prep")

    def finish_inference(self) -> None:
        pass

    def finish_training(self, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_for_training(self, *args: Any, **kwargs: Any) -> None:
        _pace.work("training_prep")

    def prepare_refit_info(self) -> dict[str, Any]:
        """What the generation engine needs to receive weights from this policy."""
        return {"channel": self._outgoing_weights}

    def stream_weights_via_ipc_zmq(self, buffer_size_bytes: int, kv_scales: dict[str, float] | None = None) -> None:
        self._send()

    def broadcast_weights_for_collective(
        self,
        kv_scales: dict[str, float] | None = None,
        *,
        buffer_size_bytes: int | None = None,
        num_buffers: int | None = None,
    ) -> None:
        self._send()

    def _send(self) -> None:
        _pace.work("weight_transfer")
        self._outgoing_weights.put(self._worker.logits.copy())

    def get_free_memory_bytes(self) -> int:
        return 1 << 30

    def offload_before_refit(self) -> None:
        pass

    def offload_after_refit(self) -> None:
        pass

    def offload_to_cpu(self) -> None:
        pass

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        checkpointing_cfg: dict[str, Any] | None = None,
    ) -> None:
        self._worker.save_checkpoint(weights_path)

    def finalize_async_save(self) -> None:
        pass

    def shutdown(self) -> bool:
        return True


class _Future:
    """The work is done when the result is asked for: a submit block stays as short as it is with Ray."""

    def __init__(self, function: Any, *args: Any, **kwargs: Any) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs

    def result(self) -> Any:
        return self._function(*self._args, **self._kwargs)


def _worker(config: dict[str, Any], tokenizer: Any, **kwargs: Any) -> Any:
    """The backend that the config names. In NeMo RL a group of Ray actors, one for each rank."""
    if config["megatron_cfg"]["enabled"]:
        return MegatronPolicyWorkerImpl(config, tokenizer, worker_sharding_annotations=None, **kwargs)
    if config["dtensor_cfg"]["_v2"]:
        return DTensorPolicyWorkerV2Impl(config, **kwargs)
    return DTensorPolicyWorkerImpl(config, tokenizer, **kwargs)

from __future__ import annotations

from typing import Any

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.lm_policy import Policy


class TeacherWorkerGroup:
    """A teacher that has machines of its own, and is asked from the collector's threads."""

    def __init__(self, teacher_cfg: Any, cluster: Any, policy_config: dict[str, Any], tokenizer: Any) -> None:
        self._policy = Policy(cluster, policy_config, tokenizer, name_prefix="teacher", init_optimizer=False)

    def get_logprobs(self, data: BatchedDataDict, micro_batch_size: int | None = None) -> BatchedDataDict:
        return self._policy.get_logprobs(data)

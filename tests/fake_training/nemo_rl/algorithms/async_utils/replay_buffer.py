"""Groups of trajectories that wait for the training step they were generated for."""

from __future__ import annotations

import threading
from typing import Any

from nemo_rl.data_plane.interfaces import KVBatchMeta


class ReplayBufferImpl:
    def __init__(self, max_size: int, drop_incomplete_targets_on_restore: bool) -> None:
        self.max_size = max_size
        # (trajectory, version of the weights that generated it, step it is meant for)
        self._entries: list[tuple[dict[str, Any], int, int]] = []
        self._last_consumed = -1
        self._lock = threading.Lock()

    def add(self, trajectory: dict[str, Any], weight_version: int, target_weight_version: int) -> str:
        with self._lock:
            if len(self._entries) >= self.max_size:
                return "full"
            self._entries.append((trajectory, weight_version, target_weight_version))
            return "success"

    def sample(self, num_prompt_groups: int, current_weight_version: int, max_age_steps: int) -> dict[str, Any] | None:
        """Exactly that many groups meant for this step, taken out; None while they are not all there."""
        with self._lock:
            intended = self._valid_for(current_weight_version, max_age_steps)[:num_prompt_groups]
            if len(intended) < num_prompt_groups:
                return None
            ages = [current_weight_version - self._entries[i][1] for i in intended]
            trajectories = [self._entries[i][0] for i in intended]
            self._entries = [entry for i, entry in enumerate(self._entries) if i not in set(intended)]
            self._last_consumed = max(self._last_consumed, current_weight_version)
            return {"trajectories": trajectories, "avg_trajectory_age": sum(ages) / len(ages)}

    def size(self) -> int:
        with self._lock:
            return len(self._entries)

    def get_last_target_weight_already_generated(self) -> int:
        with self._lock:
            return self._last_consumed

    def get_trajectories_needed(
        self, target_step: int, num_prompts_per_step: int, max_age_steps: int | None = None
    ) -> int:
        with self._lock:
            return max(0, num_prompts_per_step - len(self._valid_for(target_step, max_age_steps)))

    def has_complete_batch(self, target_step: int, num_prompts_per_step: int, max_age_steps: int | None = None) -> bool:
        return self.get_trajectories_needed(target_step, num_prompts_per_step, max_age_steps) == 0

    def get_debug_info(self) -> dict[str, Any]:
        with self._lock:
            return {
                "total_trajectories": len(self._entries),
                "trajectory_versions": [version for _, version, _ in self._entries],
                "target_weight_versions": [target for _, _, target in self._entries],
                "max_size": self.max_size,
            }

    def _valid_for(self, target_step: int, max_age_steps: int | None) -> list[int]:
        return [
            i
            for i, (_, version, target) in enumerate(self._entries)
            if target == target_step and (max_age_steps is None or target_step - version <= max_age_steps)
        ]


class ReplayBuffer(ReplayBufferImpl):
    """In NeMo RL this empty subclass is what `@ray.remote` decorates."""


class TQReplayBuffer:
    """Of the single controller: it holds names only, the samples lie in the data plane."""

    def __init__(
        self,
        dp_client: Any,
        partition_id: str,
        *,
        pad_value_dict: dict[str, int | float],
        require_routed_experts: bool = False,
    ) -> None:
        self._dp_client = dp_client
        self._partition_id = partition_id
        self._groups: dict[str, KVBatchMeta | None] = {}

    def reserve(self, *, weight_version: int, target_step: int | None = None, group_id: str | None = None) -> str:
        group_id = group_id or f"group_{len(self._groups)}_v{weight_version}"
        self._groups[group_id] = None
        return group_id

    async def commit(self, group_id: str, record: Any, start_weight_version: int, end_weight_version: int) -> None:
        sample_ids = [f"{group_id}_g{i}" for i in range(len(record["input_ids"]))]
        await self._call_dp("put_samples", sample_ids=sample_ids, partition_id=self._partition_id, fields=record)
        self._groups[group_id] = KVBatchMeta(
            self._partition_id,
            None,
            sample_ids,
            fields=list(record),
            tags=[{"weight_version": start_weight_version}] * len(sample_ids),
        )

    async def remove_group(self, group_id: str, *, remove_in_dp: bool = False) -> int:
        return int(self._groups.pop(group_id, None) is not None)

    def take(self, groups: int) -> KVBatchMeta | None:
        """So many whole groups as one batch; None while they are not all there."""
        ready = [name for name, meta in self._groups.items() if meta is not None][:groups]
        if len(ready) < groups:
            return None
        metas = [self._groups.pop(name) for name in ready]
        return KVBatchMeta(
            self._partition_id,
            None,
            [i for meta in metas for i in meta.sample_ids],
            fields=metas[0].fields,
            tags=[tag for meta in metas for tag in meta.tags],
        )

    async def _call_dp(self, method_name: str, **kwargs: Any) -> Any:
        return getattr(self._dp_client, method_name)(**kwargs)

    def __len__(self) -> int:
        return len(self._groups)

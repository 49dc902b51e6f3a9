"""Groups of trajectories that wait for the training step they were generated for."""

from __future__ import annotations

import threading
from typing import Any


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

from __future__ import annotations

from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync._toy_synchronizer import ToySynchronizer


class CheckpointEngineWeightSynchronizer(ToySynchronizer):
    def sync_weights(self, *, timer: Timer | None = None, kv_scales: dict[str, float] | None = None) -> None:
        self._transfer(timer, kv_scales)

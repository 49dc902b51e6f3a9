from __future__ import annotations

from typing import Any

from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync._toy_synchronizer import ToySynchronizer


class CollectiveWeightSynchronizer(ToySynchronizer):
    def __init__(self, policy: Any, generation: Any, train_cluster: Any, inference_cluster: Any) -> None:
        super().__init__(policy, generation)

    def sync_weights(self, *, timer: Timer | None = None, kv_scales: dict[str, float] | None = None) -> None:
        self._transfer(timer, kv_scales)

from __future__ import annotations

from typing import Any

from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync._toy_synchronizer import ToySynchronizer


class MegatronWeightSynchronizer(ToySynchronizer):
    def __init__(
        self, policy: Any, generation: Any, *, colocated: bool, train_cluster: Any = None, inference_cluster: Any = None
    ) -> None:
        super().__init__(policy, generation)

    def sync_weights(self, *, timer: Timer | None = None, kv_scales: dict[str, float] | None = None) -> None:
        self._transfer(timer, kv_scales)

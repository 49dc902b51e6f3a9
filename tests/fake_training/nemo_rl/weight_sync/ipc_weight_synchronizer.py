from __future__ import annotations

from typing import Any

from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync._toy_synchronizer import ToySynchronizer


class IPCWeightSynchronizer(ToySynchronizer):
    def __init__(self, policy: Any, generation: Any, refit_buffer_size_gb: float | None = None) -> None:
        super().__init__(policy, generation)

    def sync_weights(self, *, timer: Timer | None = None, kv_scales: dict[str, float] | None = None) -> None:
        self._transfer(timer, kv_scales)

from __future__ import annotations

from abc import ABC, abstractmethod

from nemo_rl.utils.timer import Timer


class WeightSynchronizer(ABC):
    """What each way of bringing new weights to the engine derives from."""

    @abstractmethod
    def sync_weights(
        self, *, timer: Timer | None = None, kv_scales: dict[str, float] | None = None
    ) -> dict[str, float] | None: ...

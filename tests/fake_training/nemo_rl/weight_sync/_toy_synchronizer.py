from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync.interfaces import WeightSynchronizer


class ToySynchronizer(WeightSynchronizer):
    """Brings new weights to the engine; the ways to do so are one here."""

    def __init__(self, policy: Any, generation: Any) -> None:
        self._policy, self._generation = policy, generation

    def _transfer(self, timer: Timer | None, kv_scales: dict[str, float] | None) -> None:
        with timer.time("prepare_for_generation/transfer_and_update_weights") if timer else nullcontext():
            self._policy.broadcast_weights_for_collective(kv_scales=kv_scales)
            self._generation.update_weights_from_collective()

    def init_communicator(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

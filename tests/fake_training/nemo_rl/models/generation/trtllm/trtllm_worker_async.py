from __future__ import annotations

from typing import Any


class TrtllmAsyncGenerationWorkerImpl:
    def __init__(
        self,
        config: dict[str, Any],
        bundle_indices: list[int] | None = None,
        fraction_of_gpus: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self.cfg = config

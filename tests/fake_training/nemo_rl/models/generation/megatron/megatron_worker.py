from __future__ import annotations

from typing import Any


class MegatronGenerationMixin:
    def _initialize_inference_engine(self, mcore_generation_config: dict[str, Any]) -> None:
        self.mcore_generation_config = mcore_generation_config

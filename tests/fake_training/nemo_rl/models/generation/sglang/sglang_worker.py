from __future__ import annotations

from typing import Any


class SGLangGenerationWorker:
    """Its server is a process of its own in NeMo RL; here there is none."""

    def __init__(
        self,
        gpus_per_node: int,
        sglang_cfg: dict[str, Any],
        rank: int,
        base_gpu_id: int | None = None,
        num_gpus_per_engine: int | None = None,
    ) -> None:
        self._launch_server_process({"rank": rank})

    def _launch_server_process(self, server_args_dict: dict[str, Any]) -> None:
        self.server_args = server_args_dict

from __future__ import annotations

from typing import Any


class DynamoVllmWorker:
    def __init__(
        self,
        config: dict[str, Any],
        *,
        namespace: str,
        group_name: str,
        cuda_devices: list[int],
        system_port: int,
        vllm_port: int,
        manager_env: dict[str, str],
        startup_timeout_s: float,
        seed: int,
        cleanup_reservation: Any,
    ) -> None:
        self.cfg = config

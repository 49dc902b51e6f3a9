"""One client of the data plane."""

from __future__ import annotations

from typing import Any

from nemo_rl.data_plane.adapters.transfer_queue import TQDataPlaneClient
from nemo_rl.data_plane.observability import MetricsDataPlaneClient


def build_data_plane_client(cfg: dict[str, Any] | None, *, bootstrap: bool = True) -> Any:
    """The store itself, or, with `observability.enabled`, a client that counts and times around it."""
    if not cfg or not cfg["enabled"]:
        raise ValueError("data_plane.enabled is false: there is no data plane to connect to")
    client = TQDataPlaneClient(cfg, bootstrap=bootstrap)
    if (cfg.get("observability") or {}).get("enabled", False):
        return MetricsDataPlaneClient(client)
    return client

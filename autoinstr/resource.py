"""What every span of a process carries: who it is, in which run, on which rank. Missing values are left out."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from autoinstr import ranks
from autoinstr.settings import Settings

_SLURM = {
    "SLURM_JOB_ID": "slurm.job.id",
    "SLURM_JOB_NAME": "slurm.job.name",
    "SLURM_JOB_NODELIST": "slurm.nodelist",
    "SLURM_NNODES": "slurm.nnodes",
    "SLURM_NTASKS": "slurm.ntasks",
    "SLURM_JOB_PARTITION": "slurm.partition",
    "SLURM_CLUSTER_NAME": "slurm.cluster.name",
}


def attributes(settings: Settings, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The resource attributes that the environment tells."""
    env = os.environ if env is None else env
    found: dict[str, Any] = {
        "nemo.run.id": settings.run_id,
        "nemo.user.id": settings.user_id,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        "rl.worker_group": env.get("NRL_WORKER_GROUP"),
    }
    # both spellings: older trees of NeMo RL have no vendor prefix
    for name, value in (("rank", ranks.rank(env)), ("world_size", ranks.world_size(env))):
        found[f"nv.dl.{name}"] = found[f"dl.{name}"] = value
    found.update({key: env.get(variable) for variable, key in _SLURM.items()})
    return {key: value for key, value in found.items() if value not in (None, "")}


def adopt_service_name(provider: Any, name: str) -> None:
    """Give the provider's resource a `service.name` where the user gave none.

    Which framework runs is known when it is imported, after the SDK was set up; spans made from then on
    carry the name.
    """
    current = getattr(provider, "resource", None)
    if current is None or not hasattr(provider, "_resource") or os.environ.get("OTEL_SERVICE_NAME"):
        return
    if not str(current.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        return
    from opentelemetry.sdk.resources import Resource

    merged = current.merge(Resource({"service.name": name}))
    provider._resource = merged
    for tracer in list(getattr(provider, "_tracers", {}).values()):
        if hasattr(tracer, "resource"):
            tracer.resource = merged

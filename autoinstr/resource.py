"""What every span of a process carries: who it is, in which run, on which rank. Missing values are left out.

Some of it is known late: which framework runs when it is imported, the model when the training configuration comes
by. What is learned goes into the resource of the providers, so that all that is made from then on has it, and what
was made before and is not sent yet gets it on its way out (`completed`). Nothing is held back for it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoinstr import ranks
from autoinstr.notices import say
from autoinstr.settings import Settings

HANDED_DOWN = "AUTOINSTR_RUN_ATTRIBUTES"
"""What this run's processes have learned of it, as JSON, in the environment of those that they start."""

_SLURM = {
    "SLURM_JOB_ID": "slurm.job.id",
    "SLURM_JOB_NAME": "slurm.job.name",
    "SLURM_JOB_NODELIST": "slurm.nodelist",
    "SLURM_NNODES": "slurm.nnodes",
    "SLURM_NTASKS": "slurm.ntasks",
    "SLURM_JOB_PARTITION": "slurm.partition",
    "SLURM_CLUSTER_NAME": "slurm.cluster.name",
}
# what pods are given of themselves by the downward API, under the names that are in use
_KUBERNETES = {
    "k8s.namespace.name": ("K8S_NAMESPACE", "POD_NAMESPACE"),
    "k8s.pod.name": ("K8S_POD_NAME", "POD_NAME"),
    "k8s.pod.uid": ("K8S_POD_UID", "POD_UID"),
    "k8s.node.name": ("K8S_NODE_NAME", "NODE_NAME"),
    "k8s.container.name": ("K8S_CONTAINER_NAME", "CONTAINER_NAME"),
    "k8s.job.name": ("K8S_JOB_NAME", "JOB_NAME"),
}
_KUBERNETES_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "torchrun.run.id",
    "LOCAL_RANK": "torchrun.local_rank",
    "GROUP_RANK": "torchrun.group_rank",
    "TORCHELASTIC_RESTART_COUNT": "torchrun.restart_count",
}
_UNKNOWN_SERVICE = "unknown_service"


def attributes(settings: Settings, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The resource attributes that the environment tells."""
    env = os.environ if env is None else env
    found: dict[str, Any] = {
        **_handed_down(env),
        "nemo.run.id": settings.run_id,
        "nemo.user.id": settings.user_id,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    # both spellings: older trees of NeMo RL have no vendor prefix
    for name, value in (("rank", ranks.rank(env)), ("world_size", ranks.world_size(env))):
        found[f"nv.dl.{name}"] = found[f"dl.{name}"] = value
    found.update({key: env.get(variable) for variable, key in _SLURM.items()})
    if env.get("TORCHELASTIC_RUN_ID"):
        found.update({key: env.get(variable) for variable, key in _TORCHRUN.items()})
    if env.get("KUBERNETES_SERVICE_HOST"):
        found.update(_kubernetes(env))
    return {key: value for key, value in found.items() if value not in (None, "")}


def _kubernetes(env: Mapping[str, str]) -> dict[str, str | None]:
    found = {key: next((env[v] for v in variables if env.get(v)), None) for key, variables in _KUBERNETES.items()}
    found["k8s.pod.name"] = found["k8s.pod.name"] or env.get("HOSTNAME")  # a pod's host name is its own
    if found["k8s.namespace.name"] is None:
        try:
            found["k8s.namespace.name"] = _KUBERNETES_NAMESPACE.read_text().strip()
        except OSError:
            pass
    return found


def _handed_down(env: Mapping[str, str]) -> dict[str, Any]:
    try:
        told = json.loads(env.get(HANDED_DOWN) or "{}")
        return {str(key): value for key, value in told.items() if isinstance(value, (str, int, float, bool))}
    except (ValueError, AttributeError):
        return {}


# -- what is learned late -------------------------------------------------------------------------------

_earlier: list[Any] = []
"""Resources of this process that others have taken the place of."""
_completions: dict[int, tuple[Any, Any]] = {}
"""By id of an earlier resource: the newest one as it was completed, and what came out."""
_newest: Any = None
_of_the_run: dict[str, Any] = {}
_told: str | None = None
_learning = threading.RLock()
"""Without it, of two threads that learn at once one would be forgotten."""


def _in_child() -> None:
    global _learning
    _learning = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_in_child)


def to_hand_down() -> str | None:
    """What this process has learned of the run, as JSON; None where that is nothing."""
    return _told


def hear(told: str) -> None:
    """Learn what another process of the run has told. Never raises."""
    if told != _told:
        learn(_handed_down({HANDED_DOWN: told}), of_the_run=True)


def learn(found: Mapping[str, Any], provider: Any = None, *, of_the_run: bool = False) -> None:
    """Add attributes to the resource of this process, on every provider of the SDK. Never raises.

    What `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` say stands. `of_the_run`: it goes on to the processes that
    are started, or called over Ray, inside a span.
    """
    try:
        with _learning:
            _learn(found, provider, of_the_run)
    except Exception as error:
        say(f"the resource lacks {', '.join(found)}: {type(error).__name__}: {error}", once="learn")


def _learn(found: Mapping[str, Any], provider: Any, of_the_run: bool) -> None:
    global _newest, _told
    from opentelemetry import trace

    provider = provider or trace.get_tracer_provider()
    current = getattr(provider, "resource", None)
    if current is None or not hasattr(provider, "_resource"):
        return
    theirs = _said_by_the_user()
    new = {k: v for k, v in found.items() if k not in theirs and current.attributes.get(k) != v}
    if not new:
        return
    if of_the_run:
        # not into `os.environ`: a library's thread may be reading the environment right now
        _of_the_run.update(new)
        _told = json.dumps({**_handed_down(os.environ), **_of_the_run})
    from opentelemetry.sdk.resources import Resource

    merged = _newest = current.merge(Resource(new))
    _earlier.append(current)  # from here on, another thread completes it from the newest
    _completions.clear()
    spread(merged, provider)


def learn_service_name(provider: Any, name: str) -> None:
    """Give the resource a `service.name` where the user gave none."""
    current = getattr(provider, "resource", None)
    if current is None or os.environ.get("OTEL_SERVICE_NAME"):
        return
    if str(current.attributes.get("service.name", _UNKNOWN_SERVICE)).startswith(_UNKNOWN_SERVICE):
        learn({"service.name": name}, provider)


def completed(resource: Any) -> Any:
    """`resource` with what has been learned since, where it is an earlier one of this process; else itself.

    What it has stands: it was made for another configuration than the newest, maybe.
    """
    if not any(one is resource for one in _earlier):
        return resource
    newest, known = _newest, _completions.get(id(resource))
    if known is None or known[0] is not newest:
        from opentelemetry.sdk.resources import Resource

        own = dict(resource.attributes)
        if str(own.get("service.name", "")).startswith(_UNKNOWN_SERVICE):
            del own["service.name"]
        known = _completions[id(resource)] = newest, newest.merge(Resource(own))
    return known[1]


def complete(item: Any) -> None:
    """Complete the resource of a finished span that is on its way out."""
    if _earlier:
        resource = completed(item.resource)
        if resource is not item.resource:
            item._resource = resource


def _said_by_the_user() -> set[str]:
    pairs = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    return {pair.partition("=")[0].strip() for pair in pairs if "=" in pair}


def spread(resource: Any, provider: Any) -> None:
    """Make it the resource of `provider` and its tracers, and a part of those of the SDK's other providers."""
    provider._resource = resource
    for tracer in list(getattr(provider, "_tracers", {}).values()):
        if hasattr(tracer, "resource"):
            tracer.resource = resource
    # those of the other signals, where there are any
    if "opentelemetry.sdk.metrics" in sys.modules:
        from opentelemetry import metrics

        config = getattr(metrics.get_meter_provider(), "_sdk_config", None)
        if config is not None:
            config.resource = config.resource.merge(resource)
    if "opentelemetry.sdk._logs" in sys.modules:
        from opentelemetry import _logs

        logs = _logs.get_logger_provider()
        if hasattr(logs, "_resource"):
            logs._resource = merged = logs._resource.merge(resource)
            for logger in [*getattr(logs, "_logger_cache", {}).values(), *getattr(logs, "_active_loggers", ())]:
                if hasattr(logger, "_resource"):
                    logger._resource = merged

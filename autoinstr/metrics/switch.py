"""Whether metrics are on in this process. Where they are off, no function is tapped and nothing is counted."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from autoinstr.settings import wants_metrics

EXPORTER = "OTEL_METRICS_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")


def are_on(environ: Mapping[str, str] | None = None) -> bool:
    """Whether there is an exporter for metrics, and nobody has switched ours off.

    A configuration file of OpenTelemetry's (`OTEL_CONFIG_FILE`) names its exporters itself.
    """
    env = os.environ if environ is None else environ
    if not wants_metrics(env):
        return False
    if env.get("OTEL_CONFIG_FILE", "").strip():
        return True
    return env.get(EXPORTER, "").strip().lower() not in ("", "none")


def set_default_exporter(environ: MutableMapping[str, str] | None = None) -> None:
    """`OTEL_METRICS_EXPORTER=otlp` where an OTLP endpoint is set, and the user has said nothing else."""
    env = os.environ if environ is None else environ
    if wants_metrics(env) and any(env.get(name, "").strip() for name in _ENDPOINTS):
        env.setdefault(EXPORTER, "otlp")

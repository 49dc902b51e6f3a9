"""Whether metrics are on in this process. Where they are off, no function is tapped and nothing is counted."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

EXPORTER = "OTEL_METRICS_EXPORTER"
_ENABLED = ("AUTOINSTR_METRICS_ENABLED", "NEMO_RL_OTEL_METRICS_ENABLED", "NEMO_LENS_METRICS_ENABLED")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_FALSE = ("0", "false", "no", "off")


def are_on(environ: Mapping[str, str] | None = None) -> bool:
    """Whether there is an exporter for metrics, and nobody has switched ours off.

    A configuration file of OpenTelemetry's (`OTEL_CONFIG_FILE`) names its exporters itself.
    """
    env = os.environ if environ is None else environ
    if not _enabled(env):
        return False
    if env.get("OTEL_CONFIG_FILE", "").strip():
        return True
    return env.get(EXPORTER, "").strip().lower() not in ("", "none")


def set_default_exporter(environ: MutableMapping[str, str] | None = None) -> None:
    """`OTEL_METRICS_EXPORTER=otlp` where an OTLP endpoint is set, and the user has said nothing else."""
    env = os.environ if environ is None else environ
    if _enabled(env) and any(env.get(name, "").strip() for name in _ENDPOINTS):
        env.setdefault(EXPORTER, "otlp")


def _enabled(env: Mapping[str, str]) -> bool:
    said = next((word for word in (env.get(name, "").strip().lower() for name in _ENABLED) if word), "true")
    return said not in _FALSE

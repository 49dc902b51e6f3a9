"""What a process imports because of autoinstr, when it imports none of the packages that maps speak for.

Every process of a job pays this: Ray's workers, the forked helpers, `python -c`. The list is exact, so that a
module more is a decision and no accident; `make bench` says what it costs in milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from runs import HUNG, INSTRUMENT, clean_environment

OURS = {
    "autoinstr.environment_variables",
    "autoinstr",
    "autoinstr.bridges",
    "autoinstr.bridges.processes",
    "autoinstr.distro",
    "autoinstr.instrumentor",
    "autoinstr.maps",
    "autoinstr.maps.catalog",
    "autoinstr.metrics",
    "autoinstr.metrics.switch",
    "autoinstr.notices",
    "autoinstr.patch",
    "autoinstr.patch.importing",
    "autoinstr.ranks",
    "autoinstr.resource",
    "autoinstr.second_provider",
    "autoinstr.settings",
    "autoinstr.signal_masks",
    "autoinstr.sitecustomize_chain",
    "autoinstr.spans",
    "autoinstr.spans.ids",
}
"""Our own modules, no more and no less."""

OTHERS = {"_sha2"}
"""From the standard library, beyond what OpenTelemetry's own set-up imports: the hash that seeds the trace id."""

STARTER = {"sitecustomize"}
"""How `opentelemetry-instrument` gets into the process."""

NEVER = (
    "asyncio",
    "autoinstr.report",
    "autoinstr.testing",
    "ctypes.util",
    "grpc",
    "google",
    "http.client",
    "jsonschema",
    "multiprocessing",
    "numpy",
    "opentelemetry.exporter",
    "opentelemetry.proto",
    "packaging.version",
    "pydantic",
    "ray",
    "requests",
    "torch",
    "vllm",
    "yaml",
)

_NONE = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
_TELL = "import json, sys; print(json.dumps(sorted(sys.modules)))"
# what `opentelemetry-instrument` and the SDK's own configurator do in a process without autoinstr
_REFERENCE = """
import opentelemetry.instrumentation.auto_instrumentation._load
from opentelemetry.instrumentation.distro import DefaultDistro
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.trace.export import BatchSpanProcessor
_OTelSDKConfigurator().configure()
"""


def _modules(*command: str | Path, **env: str) -> set[str]:
    done = subprocess.run(
        [str(part) for part in command],
        env=clean_environment(**_NONE, **env),
        capture_output=True,
        text=True,
        timeout=HUNG,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@cache
def traced() -> set[str]:
    return _modules(INSTRUMENT, sys.executable, "-c", _TELL, AUTOINSTR_BUILTIN_MAPS="all", AUTOINSTR_SPAN_GROUPS="all")


@cache
def reference() -> set[str]:
    return _modules(sys.executable, "-c", _REFERENCE + _TELL)


def within(modules: set[str], package: str) -> set[str]:
    return {m for m in modules if m == package or m.startswith(package + ".")}


def test_our_own_modules_are_these():
    assert within(traced(), "autoinstr") == OURS


def test_little_else_is_imported_because_of_us():
    extra = traced() - reference() - within(traced(), "autoinstr")
    # what `importlib.metadata` reads a distribution's metadata with, where it has to
    metadata = within(extra, "email") | within(extra, "importlib.metadata") | {"quopri"}
    assert extra - OTHERS - STARTER - metadata - {"gc"} == set()


@pytest.mark.parametrize("package", NEVER)
def test_what_is_dear_waits_for_its_use(package: str):
    if within(reference(), package):
        pytest.skip(f"OpenTelemetry itself imports {package}")
    assert within(traced(), package) == set()


def test_a_process_with_autoinstr_off_imports_even_less():
    off = _modules(INSTRUMENT, sys.executable, "-c", _TELL, AUTOINSTR_ENABLED="false")
    assert within(off, "autoinstr") <= OURS

"""The OpenTelemetry distro and configurator: defaults, and the SDK with ids that no seed repeats."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

from opentelemetry.environment_variables import OTEL_PYTHON_ID_GENERATOR, OTEL_TRACES_EXPORTER
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.trace import TracerProvider

from autoinstr import resource
from autoinstr.metrics import switch
from autoinstr.notices import say
from autoinstr.settings import Settings
from autoinstr.signal_masks import no_signals_over_forks
from autoinstr.spans.ids import RunIdGenerator

QUEUE_SIZE = 32_768
"""Spans that may wait for the exporter: a burst of a large rollout, where the SDK's default is 2,048."""
SEND_EVERY_MILLISECONDS = 1_000
"""How long a span may wait, where the SDK's default is 5 s: what a killed process has not sent is lost with it."""
_METRICS = switch.EXPORTER
_LOGS = "OTEL_LOGS_EXPORTER"
_SIGNALS = {_METRICS: "metrics", _LOGS: "logs"}


class AutoinstrDistro(BaseDistro):  # type: ignore[misc,unused-ignore]
    """Sets the defaults that a run wants, where the user has set nothing."""

    def _configure(self, **kwargs: Any) -> None:
        settings = Settings.from_environ()
        if not settings.enabled:
            return
        if any(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT") for signal in ("", "TRACES_")):
            os.environ.setdefault(OTEL_TRACES_EXPORTER, "otlp")
        switch.set_default_exporter()
        os.environ.setdefault("OTEL_BSP_MAX_QUEUE_SIZE", str(QUEUE_SIZE))
        os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", str(SEND_EVERY_MILLISECONDS))
        if settings.logs:
            if any(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT") for signal in ("", "LOGS_")):
                os.environ.setdefault(_LOGS, "otlp")
            os.environ.setdefault("OTEL_BLRP_MAX_QUEUE_SIZE", str(QUEUE_SIZE))
            os.environ.setdefault("OTEL_BLRP_SCHEDULE_DELAY", str(SEND_EVERY_MILLISECONDS))
            # of `opentelemetry-instrumentation-logging`, which would put a handler on the root logger
            os.environ.setdefault("OTEL_PYTHON_LOG_AUTO_INSTRUMENTATION", "false")


class AutoinstrConfigurator(_OTelSDKConfigurator):
    """Sets the SDK up as OpenTelemetry's variables say; a wrong exporter costs the exporter, not the journal."""

    def _configure(self, **kwargs: Any) -> None:
        settings = Settings.from_environ()
        if not settings.enabled:
            return
        settings.hand_down(told=False)
        with no_signals_over_forks():
            self._set_up(settings, kwargs)

    def _set_up(self, settings: Settings, kwargs: dict[str, Any]) -> None:
        if os.environ.get("OTEL_CONFIG_FILE", "").strip():
            super()._configure(**kwargs)  # type: ignore[no-untyped-call]
            return
        kwargs["resource_attributes"] = {
            **resource.attributes(settings),
            **kwargs.get("resource_attributes", {}),
        }
        if not os.environ.get(OTEL_PYTHON_ID_GENERATOR):
            kwargs["id_generator"] = RunIdGenerator(settings.run_id)
        if settings.logs:
            kwargs["setup_logging_handler"] = False  # `logs.bridge` puts none on the root logger

        def configure() -> None:
            super(AutoinstrConfigurator, self)._configure(**kwargs)  # type: ignore[no-untyped-call]

        try:
            configure()
        except Exception as error:
            if _failed_after_the_spans(error) or _set_up_without_metrics(configure, error):
                return
            _set_up_without_exporters(kwargs)
            if os.environ.get("AUTOINSTR_JOURNAL", "auto").strip().lower() in ("", "auto"):
                # without it nothing at all would be left of the run
                os.environ["AUTOINSTR_JOURNAL"] = "on"
            where = "the journal only" if Settings.from_environ().journal else "nowhere (the journal is off)"
            say(f"OpenTelemetry's exporters could not be set up: {error}; spans go to {where}")


def _failed_after_the_spans(error: Exception) -> bool:
    """Whether it was an exporter of metrics or logs that failed as it was made, a port that is taken for one.

    The spans' exporters are set up by then. What comes after the one that failed is not.
    """
    made = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    for step, variables in (("_init_metrics", (_METRICS, _LOGS)), ("_init_logging", (_LOGS,))):
        if step not in made:
            continue
        asked = [variable for variable in variables if _asks_for_one(variable)]
        for variable in variables:
            os.environ[variable] = "none"
        signals = " and ".join(_SIGNALS[variable] for variable in asked or variables[:1])
        say(f"OpenTelemetry's exporters of {signals} could not be set up: {error}; there are none")
        return True
    return False


def _asks_for_one(variable: str) -> bool:
    return os.environ.get(variable, "none").strip().lower() not in ("", "none")


def _set_up_without_metrics(configure: Callable[[], None], error: Exception) -> bool:
    """Try again without exporters of metrics and logs, if there are any: they should not cost the spans."""
    from opentelemetry import trace

    names = (_METRICS, _LOGS)
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return False  # what failed is one of the spans' exporters
    if not any(map(_asks_for_one, names)):
        return False
    for name in names:
        os.environ[name] = "none"
    try:
        configure()
    except Exception:
        return False
    say(f"OpenTelemetry's exporters of metrics and logs could not be set up: {error}; there are none")
    return True


def _set_up_without_exporters(kwargs: dict[str, Any]) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return  # it had come that far
    trace.set_tracer_provider(
        TracerProvider(resource=Resource.create(kwargs["resource_attributes"]), id_generator=kwargs.get("id_generator"))
    )

"""The entry point: settings → maps → patches, and the journal on whatever tracer provider there is."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Collection
from typing import Any, NoReturn

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from autoinstr import exporting, ranks, sitecustomize_chain
from autoinstr.maps import catalog, groups
from autoinstr.maps.model import Mistake
from autoinstr.notices import say
from autoinstr.patch.importing import PackageWatch
from autoinstr.patch.patcher import Patcher
from autoinstr.resource import adopt_service_name
from autoinstr.settings import Settings
from autoinstr.spans.ids import RunIdGenerator
from autoinstr.spans.opening import Tracers, leave_at_exit

USAGE_EXIT = 2
"""The exit status of a process that AUTOINSTR_STRICT stops."""


class AutoinstrInstrumentor(BaseInstrumentor):  # type: ignore[misc,unused-ignore]
    """Patches what the active maps name. Undone by `uninstrument()`."""

    patcher: Patcher | None = None
    _watch: PackageWatch | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: a map speaks for packages that may or may not be installed."""
        return []

    def _instrument(self, **kwargs: Any) -> None:
        try:
            self._start(Settings.from_environ())
        except Exception as error:  # whatever it is, training goes on
            say(f"nothing is traced: {type(error).__name__}: {error}")
        sitecustomize_chain.run_next()

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self.patcher is not None:
            self.patcher.undo()

    def _start(self, settings: Settings) -> None:
        if not settings.enabled:
            return
        mistakes = list(settings.mistakes)
        selected, wrong = ranks.is_selected(settings.ranks, os.environ)
        if wrong:
            mistakes.append(wrong)
        maps = catalog.Catalog(on_mistake=lambda m: _report(m, settings.strict))
        maps.add_builtin(settings.builtin_maps)
        maps.add_installed()
        maps.add_user(settings.span_maps)
        selection = groups.select(settings.span_groups, maps.table)
        mistakes += [f"AUTOINSTR_SPAN_GROUPS: {groups.explain_unknown(n, maps.table)}" for n in selection.unknown]
        for text in mistakes:
            say(text)
        if mistakes and settings.strict:
            _stop()
        if settings.strict:
            maps.maps_for()  # read them all now: a mistake stops the process before any training
        if not selected:
            return
        settings.hand_down()
        provider = trace.get_tracer_provider()
        self._prepare(provider, settings)
        self.patcher = patcher = Patcher(maps.table, selection, Tracers(), settings.capture_content)

        def activate(package: str) -> None:
            read = maps.maps_for(package)
            # a group of a map is known once the map is read
            current = groups.select(settings.span_groups, maps.table)
            patcher.use(maps.table, current)
            patcher.add(catalog.layered(read))
            service = next((m.service for _, m in reversed(read) if m.service), None)
            if service is not None:
                adopt_service_name(provider, service)

        self._watch = PackageWatch(maps.packages(), activate)
        self._watch.start()

    def _prepare(self, provider: Any, settings: Settings) -> None:
        """The journal, ids and guarded exporters, on our provider or on whatever another distro has set up."""
        if not hasattr(provider, "add_span_processor"):
            say(
                "no OpenTelemetry SDK is set up (another distro or configurator is in charge): spans go nowhere; "
                "OTEL_PYTHON_DISTRO=autoinstr OTEL_PYTHON_CONFIGURATOR=autoinstr put this one in charge"
            )
            return
        _mend_ids(provider, settings)
        journal = None
        if settings.journal:
            from autoinstr.journal.writer import JournalProcessor

            journal = JournalProcessor(settings.run_dir, settings.run_id)
            provider.add_span_processor(journal)
        guards = exporting.guard(provider)
        for exporter in guards:
            exporter.warn_of_loss = journal is None
        exporting.leave_random_alone()

        def at_exit() -> None:
            leave_at_exit()
            exporting.finish(provider, guards)

        atexit.register(at_exit)


def _mend_ids(provider: Any, settings: Settings) -> None:
    """Replace the SDK's default id generator, which a seed of the training code would make repeat itself."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    if type(getattr(provider, "id_generator", None)) is RandomIdGenerator:
        provider.id_generator = generator = RunIdGenerator(settings.run_id)
        for tracer in list(getattr(provider, "_tracers", {}).values()):
            if hasattr(tracer, "id_generator"):
                tracer.id_generator = generator


def _report(mistake: Mistake, strict: bool) -> None:
    say(str(mistake))
    if strict:
        _stop()


def _stop() -> NoReturn:
    say("AUTOINSTR_STRICT is on: the process stops here")
    sys.stderr.flush()
    # raising would not do: `opentelemetry-instrument` and `site` catch what a start-up module raises
    os._exit(USAGE_EXIT)

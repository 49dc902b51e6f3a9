"""The entry point: settings → maps → patches, and the journal on whatever tracer provider there is."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from autoinstr import sitecustomize_chain
from autoinstr.notices import say
from autoinstr.settings import Settings

if TYPE_CHECKING:  # a process that has nothing to patch should not notice us: the rest is imported when it is needed
    from autoinstr.activation import Activation
    from autoinstr.bridges import processes
    from autoinstr.bridges.ray import RayBridge
    from autoinstr.exporting.guards import GuardedExporter
    from autoinstr.logs.active import ActiveLogs
    from autoinstr.maps.catalog import Catalog
    from autoinstr.maps.model import Mistake
    from autoinstr.patch.importing import PackageWatch
    from autoinstr.patch.patcher import Patcher
    from autoinstr.termination import Termination

USAGE_EXIT = 2
"""The exit status of a process that AUTOINSTR_STRICT stops."""


class AutoinstrInstrumentor(BaseInstrumentor):  # type: ignore[misc,unused-ignore]
    """Patches what the active maps name. Undone by `uninstrument()`."""

    _activation: Activation | None = None
    _maps: Catalog | None = None
    _watch: PackageWatch | None = None
    _ray: RayBridge | None = None
    _forget_ray: Callable[[], None] | None = None
    _forget_closing: Callable[[], None] | None = None
    _processes: processes.Bridge | None = None
    _logs: ActiveLogs | None = None
    _termination: Termination | None = None
    _no_second: Callable[[], None] | None = None
    _prepared: tuple[Any, tuple[list[GuardedExporter], Any]] | None = None

    @property
    def patcher(self) -> Patcher | None:
        """What patches this process; None before anything is to be patched."""
        return self._activation.patcher if self._activation is not None else None

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
        for part in (self._ray, self._processes, self._termination):
            if part is not None:
                part.remove()
        if self._logs is not None:
            self._logs.stop()
        for forget in (self._forget_ray, self._forget_closing, self._no_second):
            if forget is not None:
                forget()
        if self._watch is not None:
            self._watch.stop()
        if self._activation is not None:
            self._activation.undo()
            self._activation = None

    def _start(self, settings: Settings) -> None:
        if not settings.enabled:
            return
        maps, selected = _read_the_environment(settings)
        self._maps = maps
        if not selected:
            self._wait_for_ray(lambda: None)
            return
        from autoinstr.metrics import switch
        from autoinstr.patch.importing import PackageWatch

        settings.hand_down()
        provider = trace.get_tracer_provider()
        if self._prepared is None or self._prepared[0] is not provider:  # not again after `uninstrument()`
            self._prepared = provider, self._prepare(provider, settings)
        guards, journal = self._prepared[1]
        if self._logs is not None:
            self._logs.start()

        def activation() -> Activation:
            if self._activation is None:
                from autoinstr.activation import Activation

                self._activation = Activation(settings, maps, provider)
            return self._activation

        if switch.are_on():
            from autoinstr.metrics.active import ActiveMetrics

            active = activation()
            active.metrics = ActiveMetrics(settings, provider, guards, journal)
            active.metrics.start(active.patcher.ledger)
        self._watch = PackageWatch(maps.packages(), lambda package: activation().package(package))
        self._watch.start()
        self._wait_for_ray(lambda: activation().patcher)

    def _wait_for_ray(self, patcher: Callable[[], Patcher | None]) -> None:
        from autoinstr.patch.importing import when_imported

        def on_ray(ray: Any) -> None:
            from autoinstr.bridges.ray import RayBridge

            self._ray = RayBridge(patcher(), self._watch)
            self._ray.install()

        self._forget_ray = when_imported("ray", on_ray)

    def _prepare(self, provider: Any, settings: Settings) -> tuple[list[GuardedExporter], Any]:
        """The journal, ids and guarded exporters, on our provider or on whatever another distro has set up.

        Returns the guards and the journal.
        """
        if not hasattr(provider, "add_span_processor"):
            say(
                "no OpenTelemetry SDK is set up (another distro or configurator is in charge): spans go nowhere; "
                "OTEL_PYTHON_DISTRO=autoinstr OTEL_PYTHON_CONFIGURATOR=autoinstr put this one in charge"
            )
            return [], None
        from autoinstr import second_provider
        from autoinstr.bridges import processes
        from autoinstr.spans.ids import trace_id_of

        _mend_ids(provider, settings)
        guards = _guard(provider)
        journal = None
        if settings.journal:
            from autoinstr.journal.writer import JournalProcessor

            journal = JournalProcessor(settings.run_dir, settings.run_id)
            provider.add_span_processor(journal)
        _connect(guards, journal)
        log_guards: list[GuardedExporter] = []
        if settings.logs:
            from autoinstr.logs.active import ActiveLogs

            self._logs = ActiveLogs(journal, guards)
            log_guards += self._logs.guards
        if settings.hang_after is not None:
            _watch_for_hangs(provider, journal, self._logs, settings.hang_after)

        def every_guard() -> list[Any]:
            metrics = self._activation.metrics if self._activation is not None else None
            return [*guards, *log_guards, *(metrics.guards if metrics is not None else ())]

        def send_all() -> None:
            if everything := every_guard():
                from autoinstr.exporting import ending

                ending.finish(provider, everything)

        def at_sigterm() -> None:
            opening = sys.modules.get("autoinstr.spans.opening")
            if opening is not None:
                opening.end_at_rest()
            send_all()

        def at_exit() -> None:
            self._say_what_nobody_has()
            opening = sys.modules.get("autoinstr.spans.opening")
            if opening is not None:  # else no span of ours was ever opened
                opening.leave_at_exit()
            send_all()

        def end_child() -> None:
            at_exit()
            if journal is not None:
                journal.end_process()

        atexit.register(at_exit)
        trace_id = trace_id_of(settings.run_id)
        processes.adopt_parent(os.environ, trace_id)
        self._processes = processes.Bridge(provider, trace_id, end_child)
        self._processes.install()

        def guard_the_end() -> None:
            if not (guards or log_guards) or self._termination is not None:
                return
            from autoinstr.descriptors import before_all_are_closed
            from autoinstr.exporting.ending import EXIT_SECONDS
            from autoinstr.termination import Termination

            self._termination = termination = Termination(at_sigterm, EXIT_SECONDS + 1)
            termination.install()

            def let_go() -> Callable[[], None]:
                from autoinstr.exporting import connections

                termination.let_go()
                connections.AT_WORK.hold()  # a connection in use can't be given up
                try:
                    connections.let_go_of_descriptors(every_guard())
                except BaseException:
                    connections.AT_WORK.release()
                    raise
                return connections.AT_WORK.release

            self._forget_closing = before_all_are_closed(let_go)

        def on_exporters() -> None:
            more = _guard(provider)
            _connect(more, journal)
            guards.extend(more)
            guard_the_end()

        guard_the_end()
        self._no_second = second_provider.install(provider, on_exporters)
        return guards, journal

    def _say_what_nobody_has(self) -> None:
        """Modules and packages that the user's maps name and that do not exist; one process of a run speaks."""
        from autoinstr import ranks

        mine = [file for file in (self._maps.files if self._maps is not None else ()) if file.layer == _OF_THE_USER]
        processes_ = sys.modules.get("multiprocessing.process")
        is_child = processes_ is not None and processes_.parent_process() is not None
        if not mine or is_child or ranks.rank(os.environ) not in (None, 0):
            return
        try:
            from autoinstr.patch import never_imported

            lines = list(never_imported.packages_of_nobody((file.path, file.package) for file in mine))
            if self._activation is not None:
                files = {str(file.path) for file in mine}
                lines += never_imported.modules_of_nobody(files, self._activation.patcher)
            for line in dict.fromkeys(lines):
                say(line)
        except Exception:  # the process ends, and nothing was asked for
            pass


_OF_THE_USER = 2
"""The layer of the user's maps in the catalog."""


def _read_the_environment(settings: Settings) -> tuple[Catalog, bool]:
    """The maps that are active, and whether this rank is traced. Says every mistake; `strict` then stops here."""
    from opentelemetry.util._importlib_metadata import entry_points

    from autoinstr.maps.catalog import Catalog

    mistakes: list[str] = []

    def note(mistake: Mistake | str) -> None:
        mistakes.append(str(mistake))
        say(str(mistake))

    for text in settings.mistakes:
        note(text)
    selected = True
    if settings.ranks != "all":
        from autoinstr import ranks

        selected, wrong = ranks.is_selected(settings.ranks, os.environ)
        if wrong:
            note(wrong)
    maps = Catalog(note)
    maps.add_builtin(settings.builtin_maps)
    maps.add_installed(entry_points)
    maps.add_user(settings.span_maps)
    if not maps.knows(settings.span_groups):
        for text in maps.unknown(settings.span_groups):
            note(f"AUTOINSTR_SPAN_GROUPS: {text}")
    if settings.strict:
        maps.maps_for()  # read them all now: a mistake stops the process before any training
    for mistake in maps.lost_additions():
        note(mistake)
    if settings.strict and mistakes:
        _stop()
    return maps, selected


def _connect(guards: list[GuardedExporter], journal: Any) -> None:
    for exporter in guards:
        exporter.warn_of_loss = journal is None
        if journal is not None:
            exporter.on_delivery = journal.delivered
            journal.endpoints.append(exporter.endpoint)


def _guard(provider: Any) -> list[GuardedExporter]:
    """Guards around the exporters of spans that there are; without exporters of any kind, nothing of ours is needed."""
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    if not processors and "opentelemetry.exporter" not in sys.modules:
        return []
    from autoinstr.exporting.guards import guard
    from autoinstr.exporting.random_source import leave_random_alone
    from autoinstr.exporting.standing_by import stand_by

    stand_by()
    leave_random_alone()  # exporters of metrics and logs draw from it as well
    return guard(provider)


def _mend_ids(provider: Any, settings: Settings) -> None:
    """Replace the SDK's default id generator, which a seed of the training code would make repeat itself."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    from autoinstr.spans.ids import RunIdGenerator

    if type(getattr(provider, "id_generator", None)) is RandomIdGenerator:
        provider.id_generator = generator = RunIdGenerator(settings.run_id)
        for tracer in list(getattr(provider, "_tracers", {}).values()):
            if hasattr(tracer, "id_generator"):
                tracer.id_generator = generator


def _watch_for_hangs(provider: Any, journal: Any, logs: ActiveLogs | None, after: float | Literal["auto"]) -> None:
    events = journal
    if logs is not None and logs.provider is not None:
        from autoinstr.logs.events import LogEvents

        events = LogEvents(logs.provider)  # into the journal too, where it is on
    if events is None:
        say("AUTOINSTR_HANG_AFTER writes into the journal, which is off; AUTOINSTR_JOURNAL=on turns it on")
        return
    from autoinstr.hang import HangWatch

    provider.add_span_processor(HangWatch(events, after))


def _stop() -> NoReturn:
    say("AUTOINSTR_STRICT is on: the process stops here")
    # raising would not do: `opentelemetry-instrument` and `site` catch what a start-up module raises
    os._exit(USAGE_EXIT)

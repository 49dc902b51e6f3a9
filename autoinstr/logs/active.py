"""All of logs in a process where they are on: the bridge from `logging`, guarded exporters, the journal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from opentelemetry import _logs

from autoinstr.exporting.guards import GuardedExporter
from autoinstr.exporting.standing_by import stand_by
from autoinstr.logs import exporting
from autoinstr.logs.bridge import LogBridge
from autoinstr.notices import say


class ActiveLogs:
    """Made once, after the SDK was set up; `start` and `stop` may follow each other.

    `provider` is None where there is nowhere for records to go, which is said.
    """

    def __init__(self, journal: Any | None, span_guards: Sequence[GuardedExporter]) -> None:
        self.provider: Any = _logs.get_logger_provider()
        self.guards: list[exporting.GuardedLogExporter] = []
        self._bridge: LogBridge | None = None
        processors = getattr(getattr(self.provider, "_multi_log_record_processor", None), "_log_record_processors", ())
        if not hasattr(self.provider, "add_log_record_processor") or not (processors or journal):
            say("log records go nowhere: no exporter of logs is set up (OTEL_LOGS_EXPORTER), and the journal is off")
            self.provider = None
            return
        self.guards = exporting.guard(self.provider, span_guards)
        if self.guards:
            stand_by()
        for exporter in self.guards:
            exporter.warn_of_loss = journal is None
            if journal is not None:
                exporter.on_delivery = partial(journal.delivered, what="logs")
                journal.log_endpoints.append(exporter.endpoint)
        if journal is not None:
            from autoinstr.journal.logs import JournalLogs

            self.provider.add_log_record_processor(JournalLogs(journal))
        self._bridge = LogBridge(self.provider)

    def start(self) -> None:
        if self._bridge is not None:
            self._bridge.install()

    def stop(self) -> None:
        if self._bridge is not None:
            self._bridge.remove()

"""Log records in the journal: each is on disk before the call that logged it returns."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk._logs import LogRecordProcessor

from autoinstr.journal.writer import JournalProcessor


class JournalLogs(LogRecordProcessor):
    """Writes to the file that the process's spans go to."""

    def __init__(self, journal: JournalProcessor) -> None:
        self._journal = journal

    def on_emit(self, log_record: Any) -> None:
        self._journal.log(log_record)

    def shutdown(self) -> None:
        """Nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True

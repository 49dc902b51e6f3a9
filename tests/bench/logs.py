"""What a log record costs: ours, against OpenTelemetry's handler on the root logger, and against logging alone.

    python tests/bench/logs.py [--rounds N] [--json FILE]

A record is formatted and written to nowhere, as a training loop's line is; the exporter behind the batch processor
does nothing.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from interleave import Side, compare
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult

from autoinstr.journal.logs import JournalLogs
from autoinstr.journal.writer import JournalProcessor
from autoinstr.logs.bridge import LogBridge, otel_handler

CALLS = 100
ROUNDS = 200


class Nowhere(LogRecordExporter):
    def export(self, batch: Any) -> LogRecordExportResult:
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


def provider(journal: Path | None = None) -> LoggerProvider:
    made = LoggerProvider(shutdown_on_exit=False)
    made.add_log_record_processor(
        BatchLogRecordProcessor(Nowhere()) if journal is None else JournalLogs(JournalProcessor(journal, "run"))
    )
    return made


def logging_lines(before: Callable[[], None], after: Callable[[], None]) -> Callable[[], float]:
    log = logging.getLogger("bench")

    def sample() -> float:
        before()
        try:
            start = time.perf_counter_ns()
            for number in range(CALLS):
                log.info("loss %.3f at step %d", 0.5, number)
            return (time.perf_counter_ns() - start) / CALLS
        finally:
            after()

    return sample


def main() -> None:
    rows = report.Rows(report.parser(__doc__ or "", ROUNDS).parse_args())
    root = logging.getLogger()
    stream = logging.StreamHandler(open(os.devnull, "w"))  # noqa: SIM115
    stream.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(stream)
    logging.getLogger("bench").setLevel("INFO")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = otel_handler(provider())
    assert theirs is not None
    bridge = LogBridge(provider())
    with tempfile.TemporaryDirectory() as folder:
        into_journal = LogBridge(provider(Path(folder)))
        ours = Side("ours", logging_lines(bridge.install, bridge.remove))
        journal = Side("journal", logging_lines(into_journal.install, into_journal.remove))
        on_root = Side("root", logging_lines(lambda: root.addHandler(theirs), lambda: root.removeHandler(theirs)))
        alone = Side("alone", logging_lines(lambda: None, lambda: None))
        rows.ratio("log record, exporter", "handler on the root logger", lambda n: compare(ours, on_root, n))
        rows.difference("log record, exporter", "logging alone", lambda n: compare(ours, alone, n))
        rows.difference("log record, journal", "logging alone", lambda n: compare(journal, alone, n))
    rows.finish()


if __name__ == "__main__":
    main()

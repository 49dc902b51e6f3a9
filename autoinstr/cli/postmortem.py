"""``autoinstr postmortem``: what became of each process of a run."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from autoinstr.cli import which_run

if TYPE_CHECKING:
    from autoinstr.journal.reader import Run
    from autoinstr.report.postmortem import Apart, Fate


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "postmortem",
        help="each process of a run: alive, ended or killed, and what it was in",
        description="Read a run's journal and say of each process whether it lives, ended or was killed, which "
        "spans it was in and since when, what it finished last, and which ranks stand apart from the others.",
        epilog=which_run.LOOKED_FOR,
    )
    which_run.add_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.journal.reader import JournalError, default_run_dir, find_run, read_run
    from autoinstr.report.postmortem import fates, render, standing_apart

    try:
        found = read_run(find_run(args.run_id, default_run_dir()))
    except JournalError as error:
        print(f"autoinstr postmortem: {error}", file=sys.stderr)
        return 1
    processes = fates(found)
    apart = standing_apart(processes)
    if args.json:
        import json

        print(json.dumps(_document(found, processes, apart), indent=2, allow_nan=False))
    else:
        print(render(found, processes, apart))
    return 0


def _document(found: Run, processes: list[Fate], apart: list[Apart]) -> dict[str, Any]:
    """The ``--json`` object. Its keys are public: add, never rename."""
    from dataclasses import asdict

    from autoinstr.report.text import timestamp

    return {
        "run": {"id": found.run_id, "folder": str(found.folder), "broken_lines": found.broken_lines},
        "processes": [
            {
                "file": fate.process.file,
                "host": fate.process.host,
                "pid": fate.process.pid,
                "service": fate.process.service,
                "rank": fate.process.rank,
                "command": fate.process.command,
                "state": fate.state,
                "why": fate.why,
                "iteration": fate.iteration,
                "last_record": None if fate.process.last_ns is None else timestamp(fate.process.last_ns),
                "open": [
                    {
                        "name": span.name,
                        "group": span.group,
                        "trace_id": span.trace_id,
                        "span_id": span.span_id,
                        "parent_id": span.parent_id,
                        "started": timestamp(span.start_ns),
                        "depth": depth,
                    }
                    for span, depth in fate.open
                ],
                "last_finished": _finished(fate, timestamp),
                "hangs": [
                    {
                        "name": hang.name,
                        "span_id": hang.span[1],
                        "time": timestamp(hang.time_ns),
                        "open_for_s": hang.open_for_s,
                        "stacks": hang.stacks,
                    }
                    for hang in fate.hangs
                ],
            }
            for fate in processes
        ],
        "apart": [asdict(one) for one in apart],
    }


def _finished(fate: Fate, timestamp: Any) -> dict[str, Any] | None:
    span = fate.last_finished
    if span is None or span.end_ns is None:
        return None
    return {
        "name": span.name,
        "span_id": span.span_id,
        "started": timestamp(span.start_ns),
        "ended": timestamp(span.end_ns),
    }

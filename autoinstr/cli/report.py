"""``autoinstr report``: a run as tables, as JSON, or one of its steps as a tree."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from autoinstr.cli import which_run

if TYPE_CHECKING:
    from autoinstr.journal.reader import Run

_LAST = "last"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "report",
        help="a run as tables: phases, goodput, what is still open",
        description="Read a run's journal and print its phases, its goodput, and what is still open.",
        epilog=which_run.LOOKED_FOR,
    )
    which_run.add_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument(
        "--tree",
        metavar="ITERATION",
        nargs="?",
        const=_LAST,
        type=_iteration,
        help="print the spans of one step: of that rl.iteration, or of the last finished step",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.journal.reader import JournalError, default_run_dir, find_run, read_run

    try:
        found = read_run(find_run(args.run_id, default_run_dir()))
    except JournalError as error:
        return _bad(error)
    if args.tree is not None:
        return _print_tree(found, None if args.tree == _LAST else args.tree)
    if args.json:
        import json

        print(json.dumps(_document(found), indent=2, allow_nan=False))
        return 0
    from autoinstr.report.goodput import goodput
    from autoinstr.report.phases import phases
    from autoinstr.report.text import render

    print(render(found, phases(found), goodput(found), _algorithms(found)))
    return 0


def _iteration(text: str) -> int | str:
    try:
        return text if text == _LAST else int(text)
    except ValueError:
        # most likely it is the run, which a bare --tree in front of it takes for its own
        raise argparse.ArgumentTypeError(
            f"{text!r} is no iteration; a run comes first: autoinstr report RUN --tree"
        ) from None


def _bad(error: Exception) -> int:
    print(f"autoinstr report: {error}", file=sys.stderr)
    return 1


def _print_tree(found: Run, iteration: int | None) -> int:
    from autoinstr.report.tree import NoSuchStep, step_tree

    try:
        print(step_tree(found, iteration))
    except NoSuchStep as error:
        return _bad(error)
    return 0


def _document(found: Run) -> dict[str, Any]:
    """The ``--json`` object. Its keys are public: add, never rename. ``process`` refers to ``file``."""
    from dataclasses import asdict

    from autoinstr.report.goodput import goodput
    from autoinstr.report.launches import launches
    from autoinstr.report.liveness import state_of
    from autoinstr.report.phases import phases
    from autoinstr.report.text import open_for_ns, timestamp

    started_ns, last_ns = found.started_ns, found.last_ns
    return {
        "run": {
            "id": found.run_id,
            "folder": str(found.folder),
            "started": None if started_ns is None else timestamp(started_ns),
            "duration_s": 0.0 if started_ns is None or last_ns is None else (last_ns - started_ns) / 1e9,
            "traces": list(dict.fromkeys(span.trace_id for span in (*found.spans, *found.open))),
            "algorithms": _algorithms(found),
            "model": found.about("rl.model").get("rl.model"),
            "broken_lines": found.broken_lines,
            "launches": [timestamp(begun_ns) for begun_ns in launches(found)],
        },
        "processes": [
            {
                "file": process.file,
                "pid": process.pid,
                "host": process.host,
                "service": process.service,
                "rank": process.rank,
                "resource": _plain(process.resource),
                "state": state_of(process)[0],
                "spans": process.spans,
                "open": process.open,
                "broken_lines": process.broken_lines,
                "lost_records": process.lost,
                "unreadable": process.unreadable or None,
            }
            for process in found.processes
        ],
        "phases": [asdict(phase) for phase in phases(found)],
        "goodput": asdict(goodput(found)),
        "open": [
            {
                "name": span.name,
                "group": span.group,
                "trace_id": span.trace_id,
                "span_id": span.span_id,
                "parent_id": span.parent_id,
                "process": found.processes[span.process].file,
                "started": timestamp(span.start_ns),
                "open_for_s": open_for_ns(found, span) / 1e9,
                "attributes": _plain(span.attributes),
            }
            for span in found.open
        ],
    }


def _algorithms(found: Run) -> list[str]:
    """The algorithms whose job or step was seen, from span names ``rl.<algorithm>.job`` and ``.step``."""
    names = {span.name for span in (*found.spans, *found.open)}
    matches = (re.fullmatch(r"rl\.([^.]+)\.(?:job|step)", name) for name in names)
    return sorted({match[1] for match in matches if match})


def _plain(value: Any) -> Any:
    """``value`` in JSON's own terms, which have no word for infinity or not-a-number."""
    if isinstance(value, float) and not float("-inf") < value < float("inf"):
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value

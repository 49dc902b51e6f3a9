"""``autoinstr ship``: a run's journal to an OTLP endpoint."""

from __future__ import annotations

import argparse
import sys

_FOLLOW_SECONDS = 2.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "ship",
        help="send a run's journal to an OTLP endpoint",
        description="Send a run's finished spans to an OTLP endpoint, from where it stopped last time. What the run "
        "itself has sent to that endpoint is left out.",
        epilog="OpenTelemetry's OTEL_EXPORTER_OTLP_* variables (endpoint, protocol, headers, timeout, certificates) "
        "count as for a run. Runs are looked for in $AUTOINSTR_RUN_DIR, else in autoinstr-runs/. Exit status: 0, or "
        "1 when something could not be sent; the next call goes on from there.",
    )
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run id, its beginning, or a run's folder (default: the newest run)",
    )
    parser.add_argument("--endpoint", metavar="URL", help="where to (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    parser.add_argument("--protocol", choices=("grpc", "http/protobuf"), help="default: OTEL_EXPORTER_OTLP_PROTOCOL")
    parser.add_argument("--follow", action="store_true", help="go on until every process of the run is gone")
    parser.add_argument("--all", action="store_true", help="send everything again, whatever was sent before")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.journal.reader import JournalError, default_run_dir, find_run
    from autoinstr.journal.shipping import EndpointError, ShipError, Shipper, follow, make_exporter
    from autoinstr.notices import say

    try:
        folder = find_run(args.run_id, default_run_dir())
        exporter, endpoint = make_exporter(args.endpoint, args.protocol)
        shipper = Shipper(folder, exporter, endpoint, resend=args.all, on_wait=lambda text: say(text, once=text))
    except EndpointError as error:
        _bad(error)
        return 2
    except (JournalError, ShipError) as error:
        return _bad(error)
    failed: Exception | None = None
    with shipper:
        try:
            if args.follow:
                follow(shipper, _FOLLOW_SECONDS, lambda error: say(f"{error}; trying again", once=str(error)))
            else:
                shipper.ship()
        except ShipError as error:
            failed = error
    exporter.shutdown()
    done = shipper.done
    notes = [
        f"{count} {what}"
        for count, what in (
            (done.sent_before, "had been sent by the run itself"),
            (done.held, "left to their processes, which live and send themselves"),
            (done.repeated, "on record twice, sent once"),
            (done.broken_lines, "broken lines left out"),
        )
        if count
    ]
    print(f"{done.spans} spans of run {folder.name} sent to {endpoint}{''.join(f'; {note}' for note in notes)}")
    return 0 if failed is None else _bad(failed)


def _bad(error: Exception) -> int:
    print(f"autoinstr ship: {error}", file=sys.stderr)
    return 1

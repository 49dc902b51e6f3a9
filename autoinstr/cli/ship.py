"""``autoinstr ship``: a run's journal to an OTLP endpoint."""

from __future__ import annotations

import argparse
import sys

from autoinstr.cli import which_run

_FOLLOW_SECONDS = 2.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "ship",
        help="send a run's journal to an OTLP endpoint",
        description="Send a run's finished spans and its log records to an OTLP endpoint, from where it stopped last "
        "time. What the run itself has sent to that endpoint is left out.",
        epilog="OpenTelemetry's OTEL_EXPORTER_OTLP_* variables (endpoint, protocol, headers, timeout, certificates) "
        f"count as for a run. {which_run.LOOKED_FOR} Exit status: 0, or 1 when something could not be sent; the next "
        "call goes on from there.",
    )
    which_run.add_argument(parser)
    parser.add_argument("--endpoint", metavar="URL", help="where to (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    parser.add_argument("--protocol", choices=("grpc", "http/protobuf"), help="default: OTEL_EXPORTER_OTLP_PROTOCOL")
    parser.add_argument("--follow", action="store_true", help="go on until every process of the run is gone")
    parser.add_argument("--no-logs", action="store_true", help="spans only: not every endpoint takes log records")
    parser.add_argument("--all", action="store_true", help="send everything again, whatever was sent before")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.journal.reader import JournalError, default_run_dir, find_run
    from autoinstr.journal.shipping import EndpointError, ShipError, Shipper, UnreadableError, follow, make_exporter
    from autoinstr.journal.shipping_logs import LogShipper
    from autoinstr.notices import say

    try:
        folder = find_run(args.run_id, default_run_dir())
        exporter, endpoint = make_exporter(args.endpoint, args.protocol)
        for_logs = None if args.no_logs else make_exporter(args.endpoint, args.protocol, "logs")
        shipper = Shipper(folder, exporter, endpoint, resend=args.all, on_wait=lambda text: say(text, once=text))
    except EndpointError as error:
        _bad(error)
        return 2
    except (JournalError, ShipError) as error:
        return _bad(error)
    failed: list[Exception] = []
    with shipper:
        shippers = [shipper]
        if for_logs is not None:
            shippers.append(LogShipper(shipper, *for_logs))
        if args.follow:
            try:
                follow(shippers, _FOLLOW_SECONDS, lambda error: say(f"{error}; trying again", once=str(error)))
            except ShipError as error:
                failed.append(error)
        else:
            for one in shippers:
                try:
                    one.ship()
                except UnreadableError as error:
                    if str(error) not in map(str, failed):
                        failed.append(error)
                except ShipError as error:
                    failed.append(error)
                    break  # who is not there for spans is not there for logs
        for one in shippers[1:]:
            one.close()
    exporter.shutdown()
    if for_logs is not None:
        for_logs[0].shutdown()
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
    for one in shippers[1:]:
        if one.done.spans or one.done.sent_before or one.done.held:
            before = f"; {one.done.sent_before} had been sent by the run itself" if one.done.sent_before else ""
            print(f"{one.done.spans} {one.what} sent to {for_logs[1] if for_logs else endpoint}{before}")
    for one in shippers:
        if one.done.rejected:
            because = f": {one.done.why_rejected}" if one.done.why_rejected else ""
            failed.append(ShipError(f"the endpoint has rejected {one.done.rejected} {one.what} of these{because}"))
    for why in failed:
        _bad(why)
    return 1 if failed else 0


def _bad(error: Exception) -> int:
    print(f"autoinstr ship: {error}", file=sys.stderr)
    return 1

"""``autoinstr check``: do the names that the maps refer to still exist in a release?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoinstr.check.facts import Facts
    from autoinstr.check.outcome import Finding, Outcome
    from autoinstr.maps.metric_model import MetricTap
    from autoinstr.maps.model import ArgumentsEntry, SpanEntry

    Entry = SpanEntry | MetricTap | ArgumentsEntry


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "check",
        help="whether targets, labels, arguments and logger keys still exist",
        description="Look up every target, label, argument and logger key of the active maps in the source of the "
        "packages they speak of. The source is read, never imported.",
        epilog="Which maps are active is read from AUTOINSTR_SPAN_MAPS and AUTOINSTR_BUILTIN_MAPS, as in a run. "
        "Exit status 1 if anything is missing. A row that is optional, or whose module a release does not have, "
        "is absent there, which is no problem.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--source", metavar="DIR", type=folder, help="a checkout of the package (default: what is installed here)"
    )
    where.add_argument(
        "--snapshot", metavar="FILE", type=Path, nargs="+", help="what 'autoinstr snapshot' wrote; several are compared"
    )
    parser.add_argument(
        "--since",
        metavar="FILE",
        type=Path,
        help="a snapshot of an earlier release: what was there and is absent now counts as missing",
    )
    parser.add_argument("--package", metavar="P", help="only the maps of this package")
    parser.add_argument(
        "--table", action="store_true", help="print Markdown tables, a line for each span, attribute and series"
    )
    parser.set_defaults(run=run)


def folder(text: str) -> Path:
    """An argument that has to be a folder; argparse says so where it is none."""
    if not os.path.isdir(text):  # which says no, where Path.is_dir() raises for a folder that is not ours
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}, or it may not be read")
    return Path(text)


def run(args: argparse.Namespace) -> int:
    from autoinstr.check.fitting import fit
    from autoinstr.check.outcome import note_losses

    entries = active_entries(args.package)
    if not entries:
        print(
            "autoinstr check: no active map has a span or a metric tap"
            + (f" for {args.package}" if args.package else "")
        )
        return 1
    try:
        if args.snapshot:
            facts = [read_snapshot(path) for path in args.snapshot]
        else:
            facts = [read_packages(entries, args.source)]
        before = None if args.since is None else fit([e for _, e in entries], read_snapshot(args.since))
    except UnreadableSnapshot as error:
        print(f"autoinstr check: {error}", file=sys.stderr)
        return 1
    outcomes = [(one, fit([entry for _, entry in entries], one)) for one in facts]
    for one, outcome in outcomes:
        if before is not None:
            note_losses(outcome, before)
        for package in sorted({package for package, _ in entries} - set(one.packages)):
            print(f"autoinstr check: {package} is not in {one.release}: its maps are not checked", file=sys.stderr)
    if not any(outcome.rows for _, outcome in outcomes):
        return 1
    if args.table:
        from autoinstr.check.table import table

        print(table(outcomes))
    else:
        for one, outcome in outcomes:
            if len(outcomes) > 1:
                print(f"{one.release}:")
            _print(outcome)
    return 1 if any(outcome.problems for _, outcome in outcomes) else 0


def active_entries(package: str | None) -> list[tuple[str, Entry]]:
    """All entries of the active maps, each with its top-level package; mistakes in the maps go to stderr."""
    from autoinstr.maps.active import read_active
    from autoinstr.settings import Settings

    settings = Settings.from_environ()
    active = read_active(settings.span_maps, settings.builtin_maps, settings.span_groups)
    for line in active.mistakes:
        print(f"autoinstr: {line}", file=sys.stderr)
    found: list[tuple[str, Entry]] = [(span.package.partition(".")[0], span.entry) for span in active.spans]
    found += [(package.partition(".")[0], tap) for package, tap in active.taps]
    found += [(package.partition(".")[0], entry) for package, entry in active.arguments]
    return [(top, entry) for top, entry in found if package is None or top == package]


class UnreadableSnapshot(Exception):
    """A snapshot that can't be read; the text names it."""


def read_snapshot(path: Path) -> Facts:
    """The facts in a file.

    Raises:
        UnreadableSnapshot: where it is none.
    """
    from autoinstr.check.facts import SnapshotError, from_json

    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, SnapshotError, UnicodeDecodeError) as error:
        raise UnreadableSnapshot(f"{path}: {error}") from None


def read_packages(entries: Sequence[tuple[str, Entry]], source: Path | None, release: str | None = None) -> Facts:
    """The facts of the entries' packages, in a checkout or as installed."""
    from autoinstr.check.fitting import callees_of, targets_of
    from autoinstr.check.source import installed_folder, package_folder, read_source

    def find(package: str) -> Path | None:
        return installed_folder(package) if source is None else package_folder(source, package)

    folders: dict[str, Path] = {}
    for package in sorted({package for package, _ in entries}):
        folder = find(package)
        if folder is not None:
            folders[package] = folder
    unreadable: list[str] = []
    callees = callees_of(entry for _, entry in entries)
    name = release or ("this environment" if source is None else source.resolve().name)
    targets = targets_of(entry for _, entry in entries)
    facts = read_source(folders, callees, name, unreadable, targets, find)
    for line in unreadable:
        print(f"autoinstr: {line}; the module is passed over", file=sys.stderr)
    return facts


def _print(outcome: Outcome) -> None:
    for finding in outcome.absent:
        print(f"{_line(finding)} (absent in this release)")
    problems = outcome.problems
    for finding in problems:
        print(_line(finding))
    absent = sum(row.state == "absent" for row in outcome.rows)
    tail = f"; {absent} of {len(outcome.rows)} rows absent in this release" if absent else ""
    if problems:
        print(f"{len(problems)} missing{tail}")
    else:
        there = ", ".join(f"{count} {what}" for what, count in outcome.counts.items())
        print(f"{there}: all there{tail}")


def _line(finding: Finding) -> str:
    place = str(finding.place)
    here = str(Path.cwd()) + "/"
    return f"{place.removeprefix(here)}: {finding.span}: {finding.text}"

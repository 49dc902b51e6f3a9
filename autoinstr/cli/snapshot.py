"""``autoinstr snapshot``: the names that ``autoinstr check`` needs of a release, without its source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autoinstr.cli.check import folder


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "snapshot",
        help="the names that 'check' needs of a release",
        description="Read the source of the packages that the active maps speak of, and write the names in it: "
        "functions with their parameters, labels with the functions that open them, local variables of those "
        "functions, keys of dicts. No code is copied, imported or run.",
    )
    parser.add_argument("source", metavar="DIR", type=folder, help="a checkout of the package")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write it (default: stdout)")
    parser.add_argument("--package", metavar="P", help="only this package")
    parser.add_argument("--release", metavar="NAME", help="what the release is called (default: the folder's name)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.check.facts import to_json
    from autoinstr.cli.check import active_entries, read_packages

    facts = read_packages(active_entries(args.package), args.source, args.release)
    if not facts.modules:
        print(f"autoinstr snapshot: {args.source} has no package that a map speaks of", file=sys.stderr)
        return 1
    text = to_json(facts)
    if args.output is None:
        sys.stdout.write(text)
    else:
        try:
            args.output.write_text(text, encoding="utf-8")
        except OSError as error:
            print(f"autoinstr snapshot: {args.output}: {error}", file=sys.stderr)
            return 1
        print(f"{args.output}: {', '.join(facts.packages)} of {facts.release}, {len(facts.modules)} modules")
    return 0

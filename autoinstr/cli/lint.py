"""``autoinstr lint``: every mistake in some maps, each with its place in the file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoinstr.maps.model import Mistake, SpanMap


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "lint",
        help="the mistakes in maps, with their places",
        description="Read maps as a run does and print every mistake as FILE:LINE:COLUMN: what; what happens then.",
        epilog="Exit status 1 if there is any mistake. Whether the targets exist is not looked at here.",
    )
    parser.add_argument("paths", metavar="FILE|FOLDER", nargs="+", type=Path, help="a map, or a folder with maps")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    mistakes, maps = lint(args.paths)
    for mistake in mistakes:
        print(mistake)
    if mistakes:
        print(f"{_count(len(mistakes), 'mistake')} in {_count(maps, 'map')}")
        return 1
    print(f"{_count(maps, 'map')}, no mistakes")
    return 0


def lint(paths: list[Path]) -> tuple[list[Mistake], int]:
    """The mistakes in maps and folders of maps, and how many maps were looked at."""
    from autoinstr.maps.catalog import Catalog, is_shipped_groups

    mistakes: list[Mistake] = []
    catalog = Catalog(mistakes.append)
    _ = catalog.table  # the shipped groups' own mistakes come first, in a run too
    catalog.add_user(path for path in paths if not is_shipped_groups(path))
    mistakes += catalog.lost_additions(_other_maps)
    return mistakes, catalog.looked_at()


def _other_maps() -> list[SpanMap]:
    """The maps that are beside those of the user in a run."""
    from autoinstr.maps.catalog import Catalog

    others = Catalog(lambda mistake: None)
    others.add_builtin("all")
    others.add_installed()
    return [span_map for _, span_map in others.maps_for()]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

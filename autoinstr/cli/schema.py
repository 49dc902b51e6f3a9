"""``autoinstr schema``: the JSON Schema of span maps, for editors."""

from __future__ import annotations

import argparse
import sys


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "schema",
        help="the JSON Schema of maps",
        description="Print the JSON Schema of span maps (draft 2020-12), for editors.",
        epilog="An editor with the YAML language server takes it from a map's first line: "
        "# yaml-language-server: $schema=schema.json",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json

    from autoinstr.maps.catalog import Catalog
    from autoinstr.maps.model import Mistake
    from autoinstr.maps.schema import map_schema

    mistakes: list[Mistake] = []
    table = Catalog(mistakes.append).table
    for mistake in mistakes:
        print(f"autoinstr schema: {mistake}", file=sys.stderr)
    print(json.dumps(map_schema(table), indent=2))
    return 1 if mistakes else 0

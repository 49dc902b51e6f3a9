"""``autoinstr bundle``: a folder for the path of worker environments that have no autoinstr."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bundle",
        help="a folder for the path of environments without autoinstr",
        description="Copy autoinstr and what it needs from this environment into a folder. With the folder on "
        "PYTHONPATH, processes of other environments and other Pythons are traced too. What such an environment has "
        "itself is used; where its versions do not fit, that is said in one line and nothing is changed.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new folder, or an earlier bundle to replace")
    parser.add_argument("--with", dest="also", metavar="DIST", action="append", default=[], help="more distributions")
    parser.add_argument(
        "--replace-older",
        action="store_true",
        help="where an environment's OpenTelemetry is too old, put all of the bundle's in its place",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.bundle.making import BundleError, make

    try:
        made = make(args.folder, args.also, args.replace_older)
    except (BundleError, OSError) as error:
        print(f"autoinstr bundle: {error}", file=sys.stderr)
        return 1
    print(f"{made.folder}: {len(made.versions)} distributions, {made.size / 1e6:.1f} MB")
    print("  " + ", ".join(f"{name} {version}" for name, version in sorted(made.versions.items())))
    for name, why in sorted(made.left_out.items()):
        print(f"  without {name}: {why}")
    if "grpcio" in made.left_out:
        print("  OTLP over gRPC works where the environment has grpcio; OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf does")
        print("  everywhere, and so does the journal")
    print(f"use it: PYTHONPATH={made.folder} python train.py")
    return 0

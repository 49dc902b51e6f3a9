"""The run that a command is about, as it is given on the command line."""

from __future__ import annotations

import argparse

LOOKED_FOR = "Runs are looked for in $AUTOINSTR_RUN_DIR, else in autoinstr-runs/."
"""For the end of a command's help."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """`RUN`, as `args.run_id`; None where it is not given."""
    parser.add_argument(
        "run_id",
        metavar="RUN",
        nargs="?",
        help="a run id, its beginning, or a run's folder (default: the newest run)",
    )

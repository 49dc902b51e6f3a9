"""The ``autoinstr`` command: a module per subcommand.

A subcommand is a module of this package, named for the word typed, with ``add_parser(subparsers)`` and
``run(args) -> int``. The first sets the second as its parser's default, the second gives the exit status:
0 good, 1 the thing asked about is bad, 2 it could not be asked (wrong usage, a full disk). To add a subcommand,
write the module and list it in ``COMMANDS``. What it needs beyond argparse it imports in ``run``:
``autoinstr --help`` imports every module.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from autoinstr import __version__

COMMANDS = ("report", "postmortem", "ship", "spans", "lint", "schema", "check", "snapshot", "bundle")

_PLAIN = {"├": "|", "└": "`", "│": "|", "─": "-", "×": "x", "…": "~"}
"""What stands for the characters of our own that a terminal's encoding lacks; for others, a question mark."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("autoinstr.plain", _plain)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default ``sys.argv``) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A log file under LC_ALL=C must not turn a box character into a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="autoinstr.plain")
    try:
        args = _parser(arguments).parse_args(arguments)
    except SystemExit as exit_:
        # argparse's way of returning: 0 after --help and --version, 2 after a wrong word.
        return exit_.code if isinstance(exit_.code, int) else 2
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except OSError as error:
        # What the system refuses, a full disk or a folder that is not ours, is one line and no traceback.
        _silence_stdout()
        print(f"autoinstr {arguments[0]}: {_refusal(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _refusal(error: OSError) -> str:
    try:
        os.getcwd()
    except OSError:
        return "the working directory has been deleted; go to another"
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename is not None else "")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autoinstr", description="Tracing LLM post-training from outside.")
    parser.add_argument("--version", action="version", version=f"autoinstr {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    # Only the module that is asked for is imported; help and a wrong word need them all.
    asked = arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS
    for name in asked:
        import_module(f"autoinstr.cli.{name}").add_parser(subparsers)
    return parser


def _open_closed_streams() -> None:
    """Where the caller has closed stdout or stderr (`>&-`) Python has None, and `print` takes the one for the other."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _silence_stdout() -> None:
    """Point stdout to nowhere, or the interpreter complains when it flushes what the pipe did not take."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass

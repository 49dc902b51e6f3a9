"""Start-up: whole processes run in turns, `opentelemetry-instrument python -c pass`, exporters none, wall time.

`python tests/bench/startup.py OURS DISTRO BARE` takes three environments: with autoinstr; the same packages with
opentelemetry-distro instead; and neither, where `opentelemetry-instrument` sets no SDK up at all. The distro's
is what ours replaces, and the target is against it. All built-in maps and groups are on, no target is imported.
The modules that only ours imports, with their time, go into the JSON; tests/unit/test_startup_imports.py holds
the list.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import report
from interleave import Side, compare

ROUNDS = 40
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|\s*(\S+)")
_INHERITED = ("AUTOINSTR_", "OTEL_", "NEMO_", "PYTHON", "SLURM_")


def environment(folder: Path, **extra: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(_INHERITED)}
    env["PATH"] = f"{folder / 'bin'}{os.pathsep}{env.get('PATH', '')}"
    none = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    return {**env, **none, "AUTOINSTR_BUILTIN_MAPS": "all", "AUTOINSTR_SPAN_GROUPS": "all", **extra}


def run(folder: Path, **extra: str) -> str:
    """One process from start to end; returns its standard error."""
    with tempfile.TemporaryDirectory() as empty:  # the working directory is searched for installed packages too
        done = subprocess.run(
            [folder / "bin" / "opentelemetry-instrument", folder / "bin" / "python", "-c", "pass"],
            env=environment(folder, **extra),
            cwd=empty,
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stderr


def starting(folder: Path, **extra: str) -> Callable[[], float]:
    def sample() -> float:
        start = time.perf_counter_ns()
        run(folder, **extra)
        return float(time.perf_counter_ns() - start)

    return sample


def working(folder: Path, **extra: str) -> Callable[[], float]:
    """Like `starting`, but the processor time, which a busy machine disturbs less."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def sample() -> float:
        before = spent()
        run(folder, **extra)
        return (spent() - before) * 1e9

    return sample


def imports(folder: Path) -> dict[str, int]:
    """Every module that both processes of the command import, with its own time in microseconds."""
    found: dict[str, int] = {}
    for own, _, name in _IMPORT.findall(run(folder, PYTHONPROFILEIMPORTTIME="1")):
        found[name] = found.get(name, 0) + int(own)
    return found


def main() -> None:
    parser = report.parser(__doc__ or "", ROUNDS)
    parser.add_argument("environments", nargs=3, type=Path, metavar="FOLDER", help="OURS DISTRO BARE")
    options = parser.parse_args()
    rows = report.Rows(options)
    ours, distro, bare = (folder.absolute() for folder in options.environments)
    command = "opentelemetry-instrument"

    def measure(
        folder: Path, sampler: Callable[..., Callable[[], float]] = starting, **extra: str
    ) -> Callable[[int], report.Comparison]:
        return lambda rounds: compare(
            Side("ours", sampler(ours, **extra)), Side("other", sampler(folder)), rounds, warm_up=2
        )

    rows.difference("start-up, no target imported", f"{command}, stock distro", measure(distro), at_most_ns=15e6)
    rows.difference("start-up, processor time", f"{command}, stock distro", measure(distro, working))
    rows.difference(
        "start-up, no target imported, journal on",
        f"{command}, stock distro",
        measure(distro, AUTOINSTR_JOURNAL="on"),
        at_most_ns=15e6,
    )
    rows.difference("start-up, no target imported", f"{command}, no distro: no SDK", measure(bare))
    mine, theirs = imports(ours), imports(distro)
    extra = {name: own for name, own in sorted(mine.items(), key=lambda item: -item[1]) if name not in theirs}
    rows.extra["startup_imports_us"] = extra
    listed = ", ".join(f"{name} {own / 1000:.1f} ms" for name, own in list(extra.items())[:12])
    print(f"{len(extra)} modules more than the stock distro, {sum(extra.values()) / 1000:.1f} ms: {listed}, …")
    sys.stdout.flush()
    rows.finish()


if __name__ == "__main__":
    main()

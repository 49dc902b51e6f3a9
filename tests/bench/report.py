"""The table of the bench, and the JSON beside it.

`python tests/bench/report.py FOLDER` prints the parts in a folder as one table and writes `results.json` there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from interleave import ROUNDS, Comparison, Spread


@dataclass
class Row:
    """One line of the table. `unit` is `ratio`, `ns` or `count`: what `value` and `target` (at most) are in."""

    what: str
    other: str
    unit: str
    ours: float | None = None
    theirs: float | None = None
    value: Spread | None = None
    target: float | None = None
    below: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not run"
        if self.target is None:
            return ""
        met = self.value.median < self.target if self.below else self.value.median <= self.target
        return "met" if met else "MISSED"

    def cells(self) -> list[str]:
        if self.value is None:
            return [self.what, "", self.other, self.note, "", self._target(), self.verdict]
        if self.unit == "count":
            return [
                self.what,
                f"{self.ours:g}",
                f"{self.other} {self.theirs:g}",
                "",
                "",
                self._target(),
                self.verdict,
            ]
        show = (lambda v: f"{v:.2f}") if self.unit == "ratio" else _time
        return [
            self.what,
            _time(self.ours),
            f"{self.other} {_time(self.theirs)}",
            ("÷ " if self.unit == "ratio" else "+ ") + show(self.value.median),
            f"{show(self.value.p25)} – {show(self.value.p75)}, min {show(self.value.minimum)}",
            self._target(),
            self.verdict,
        ]

    def _target(self) -> str:
        if self.target is None:
            return ""
        if self.unit == "count":
            return f"≤ {self.target:g}"
        sign = "<" if self.below else "≤"
        return f"{sign} {self.target:.2f}" if self.unit == "ratio" else f"{sign} {_time(self.target)}"


HEAD = ["what", "ours", "other", "median", "p25 – p75, min", "target", ""]


class Rows:
    """Measures row by row, and says each as it is done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rows: list[Row] = []
        self.extra: dict[str, Any] = {}
        """What else goes into the JSON."""
        self._options = options

    def ratio(
        self,
        what: str,
        other: str,
        measure: Callable[[int], Comparison],
        at_most: float | None = None,
        below: float | None = None,
    ) -> None:
        """A row of ours ÷ other."""
        if self._options.only in f"{what} {other}":
            found = measure(self._options.rounds)
            target = at_most if at_most is not None else below
            self._add(
                Row(
                    what,
                    other,
                    "ratio",
                    found.ours.median,
                    found.other.median,
                    found.ratio,
                    target,
                    below is not None,
                )
            )

    def difference(
        self, what: str, other: str, measure: Callable[[int], Comparison], at_most_ns: float | None = None
    ) -> None:
        """A row of ours − other, in time per call."""
        if self._options.only in f"{what} {other}":
            found = measure(self._options.rounds)
            self._add(Row(what, other, "ns", found.ours.median, found.other.median, found.difference, at_most_ns))

    def count(self, what: str, other: str, measure: Callable[[], tuple[float, float]], at_most: float) -> None:
        """A row of how many there are, on both sides, which no noise changes."""
        if self._options.only in f"{what} {other}":
            mine, theirs = measure()
            self._add(Row(what, other, "count", mine, theirs, Spread(mine, mine, mine, mine), at_most))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print("  ".join(cell for cell in row.cells() if cell), file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Print the table, and write the JSON where it was asked for."""
        if self._options.json:
            save(self.rows, Path(self._options.json), **self.extra)
        else:
            print(table(self.rows))


def parser(doc: str, rounds: int = ROUNDS) -> argparse.ArgumentParser:
    """The options that every part of the bench has."""
    made = argparse.ArgumentParser(description=doc.partition("\n")[0])
    made.add_argument("--rounds", type=int, default=rounds, help="pairs of samples for each row")
    made.add_argument("--only", default="", metavar="WORD", help="only the rows whose name has this word")
    made.add_argument("--json", metavar="FILE", help="write the rows there instead of a table")
    return made


def table(rows: list[Row]) -> str:
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def save(rows: list[Row], path: Path, **extra: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    python, sdk = platform.python_version(), metadata.version("opentelemetry-sdk")
    listed = [{"python": python, "sdk": sdk, **asdict(row), "verdict": row.verdict} for row in rows]
    path.write_text(json.dumps({"machine": machine(), "rows": listed, **extra}, indent=1) + "\n")


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def main() -> None:
    folder = Path(sys.argv[1])
    whole: dict[str, Any] = {"machine": machine(), "rows": []}
    rows: list[Row] = []
    for part in sorted(folder.glob("[0-9]-*.json")):
        read = json.loads(part.read_text())
        whole["rows"] += read.pop("rows")
        whole.update(read)
    for given in whole["rows"]:
        known = {f.name: given[f.name] for f in fields(Row)}
        rows.append(Row(**{**known, "value": Spread(**known["value"])}))
    missing = folder / "missing.tsv"
    for line in missing.read_text().splitlines() if missing.exists() else ():
        rival, _, reason = line.partition("\t")
        row = Row("function span", rival, "ratio", target=1.0, below=True, note=reason)
        rows.append(row)
        whole["rows"].append({**asdict(row), "verdict": row.verdict})
    (folder / "results.json").write_text(json.dumps(whole, indent=1) + "\n")
    print(table(rows))
    versions = sorted({f"Python {row['python']}, SDK {row['sdk']}" for row in whole["rows"] if "sdk" in row})
    print(f"\n{'; '.join(versions)}; {whole['machine']}; medians over interleaved rounds. JSON: {folder}/results.json")
    missed = [row.what for row in rows if row.verdict == "MISSED"]
    if missed:
        print("MISSED: " + "; ".join(missed))


def _time(ns: float | None) -> str:
    if ns is None:
        return ""
    if abs(ns) < 1000:
        return f"{ns:.0f} ns"
    return f"{ns / 1e3:.2f} µs" if abs(ns) < 1e6 else f"{ns / 1e6:.1f} ms"


if __name__ == "__main__":
    main()

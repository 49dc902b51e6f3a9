"""NeMo RL's own unit tests under its in-tree telemetry, under autoinstr, and under both: are the spans the same?

Each test file, or folder of them, runs in a pytest process of its own, on three sides:

- ``in-tree``: on the telemetry branch, with nemo-lens on, and all its span groups;
- ``autoinstr``: on a tree without telemetry under ``opentelemetry-instrument``, all groups, into the journal;
- ``both``: on the telemetry branch with nemo-lens on, under ``opentelemetry-instrument``.

The spans of every process count, Ray's workers included. Names, parents, groups, buckets, attributes and errors are
compared, test by test: ``in-tree`` with ``autoinstr``, ``in-tree`` with ``both``, and, where in-tree has no span,
``autoinstr`` with ``both``::

    python tests/real/parity.py --branch RL-telemetry --plain RL --lens LENS --python VENV/bin/python \\
        --stand-ins STANDINS --keep OUT -o tables.md tests/unit/algorithms/test_grpo.py tests/unit/experience

``--branch`` and ``--plain`` are checkouts of NVIDIA-NeMo/RL: ``rajsin/lens-with-goodput``, and a tree of the same
days. ``--lens`` is a folder that holds nemo-lens, as ``pip install --target`` makes it (on Python 3.11 the ``type``
alias in ``nemo/lens/strategies.py`` must become a plain assignment). ``--python`` and ``--stand-ins``: as in
``nemo_rl_unit_tests.py``. An absolute path is a test file of ours, such as ``parity_tests/test_collector_on_ray.py``.
This script runs in an environment with this package.

What a side was observed to do stays in ``--keep``; another call with the same folder does not run it again.

Exit status: 0 when no difference is left but those that ``parity_reasons.py`` gives a reason for; 1 otherwise, also
when a test ended differently; 2 when used wrongly.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import nemo_rl_unit_tests as unit_tests  # noqa: E402
import parity_reasons as reasons  # noqa: E402
from parity_observing import SIDES, observe, run_name  # noqa: E402

from autoinstr.maps.catalog import Catalog  # noqa: E402

# -- comparing ------------------------------------------------------------------------------------------


def same_names() -> dict[str, str]:
    """Another instrumentation's name of a span → ours, as the maps say with `also`."""
    catalog = Catalog(lambda mistake: None)
    catalog.add_builtin("all")
    pairs = [(also, entry.name) for _, read in catalog.maps_for() for entry in read.spans for also in entry.also]
    # the collector of PPO calls its batches as that of GRPO does; a name of the same algorithm comes last, and counts
    return dict(sorted(pairs, key=lambda pair: pair[0].split(".")[1] == pair[1].split(".")[1]))


@dataclass
class Row:
    """One span name in one test file, in-tree and on another side."""

    name: str
    in_tree_name: str | None = None
    in_tree: list[dict[str, Any]] = field(default_factory=list)
    compared: list[dict[str, Any]] = field(default_factory=list)
    """The other side's spans in the tests in which in-tree has the name too."""
    more: list[dict[str, Any]] = field(default_factory=list)
    """Those in other tests: the gaps."""
    differences: list[tuple[str, str | None]] = field(default_factory=list)
    """Each with its reason, if it has one."""


def by_name(seen: Mapping[str, Any], tests: Iterable[str], to_ours: Mapping[str, str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for test in tests:
        for span in seen["spans"].get(test, ()):
            name = to_ours.get(span["name"], span["name"])
            above = [to_ours.get(a, a) for a in span["above"]]
            found[name].append({**span, "test": test, "spelt": span["name"], "name": name, "above": above})
    return found


def compare(tests: Sequence[str], in_tree: Mapping[str, Any], other: Mapping[str, Any], side: str) -> list[Row]:
    """A row for each span name of either side in these tests."""
    to_ours = same_names()
    theirs, ours = by_name(in_tree, tests, to_ours), by_name(other, tests, to_ours)
    for span in (span for spans in (*theirs.values(), *ours.values()) for span in spans):
        # what the in-tree telemetry has no span for lies between: the nearest one above that it has
        span["parent"] = next((a for a in span["above"] if a in theirs), None)
    rows = []
    for name in sorted({*theirs, *ours}):
        row = Row(name, next((s["spelt"] for s in theirs[name]), None), theirs[name])
        known = {span["test"] for span in row.in_tree}
        row.compared = [span for span in ours[name] if span["test"] in known]
        row.more = [span for span in ours[name] if span["test"] not in known]
        row.differences = [
            (text, reasons.of_difference(name, text)) for text in differences(row.in_tree, row.compared, side)
        ]
        if row.in_tree:
            extra = {k for s in row.compared for k in s["attributes"]} - {
                k for s in row.in_tree for k in s["attributes"]
            }
            row.differences += [
                (f"attribute {key}: {side} only", reasons.of_attribute(name, key)) for key in sorted(extra)
            ]
        row.differences += [
            (f"gap: {side} {times} in {test}", None)
            for test, times in sorted(Counter(s["test"] for s in row.more).items())
            if reasons.of_gap(name, test) is None
        ]
        rows.append(row)
    return rows


def differences(theirs: list[dict[str, Any]], ours: list[dict[str, Any]], side: str) -> list[str]:
    missing = Counter(span["test"] for span in theirs) - Counter(span["test"] for span in ours)
    lines = [f"count: in-tree {times} more in {test}" for test, times in sorted(missing.items())]
    theirs = [span for span in theirs if span["test"] not in missing]
    ours = [span for span in ours if span["test"] not in missing]
    lines += unequal("count", theirs, ours, side, lambda span: "span")
    for key in ("group", "bucket", "parent", "error", *(("spelt",) if side == "both" else ())):
        lines += unequal(key, theirs, ours, side, lambda span, key=key: span[key])
    for key in sorted({key for span in theirs for key in span["attributes"]}):
        lines += unequal(
            f"attribute {key}", theirs, ours, side, lambda span, key=key: repr(span["attributes"].get(key))
        )
    return lines


def unequal(what: str, theirs: list[Any], ours: list[Any], side: str, value: Any, first: str = "in-tree") -> list[str]:
    """What the two say otherwise, added up over the tests: `parent: in-tree 3 x a; autoinstr 3 x b`.

    What only the other side has more of is told once, as `count`.
    """
    left = Counter((span["test"], value(span)) for span in theirs)
    right = Counter((span["test"], value(span)) for span in ours)
    if what != "count" and not left - right:
        return []
    told = []
    for name, more in ((first, left - right), (side, right - left)):
        values: Counter[Any] = Counter()
        for (_, one), times in more.items():
            values[one] += times
        if values:
            told.append(f"{name} " + ", ".join(f"{n} x {one}" for one, n in sorted(values.items(), key=str)))
    return [f"{what}: " + "; ".join(told)] if told else []


def compare_gaps(alone: list[Row], both: list[Row]) -> list[tuple[str, str, str | None]]:
    """What autoinstr adds on the plain tree and beside the in-tree telemetry: name, difference, reason."""
    there = {row.name: row.more for row in both}
    here = {row.name: row.more for row in alone}
    found = []
    for name in sorted({*here, *there}):
        left, right = here.get(name, []), there.get(name, [])
        lines = unequal("count", left, right, "both", lambda span: "span", "autoinstr")
        for key in ("group", "bucket", "error"):
            lines += unequal(key, left, right, "both", lambda span, key=key: span[key], "autoinstr")
        lines += unequal("inside", left, right, "both", lambda span: next(iter(span["above"]), None), "autoinstr")
        lines += unequal("attributes", left, right, "both", lambda span: words(span["attributes"]), "autoinstr")
        found += [(name, f"in gaps, {line}", reasons.of_difference(name, f"in gaps, {line}")) for line in lines]
    return found


def words(items: Iterable[Any]) -> str:
    return ", ".join(sorted({str(item) for item in items if item is not None}))


# -- telling --------------------------------------------------------------------------------------------


@dataclass
class Told:
    """One test file, compared."""

    file: str
    outcomes: Counter[str]
    unpassed: dict[str, Counter[str]]
    """Per outcome but `passed`: the reasons given."""
    counts: dict[str, int]
    rows: dict[str, list[Row]]
    between: list[tuple[str, str, str | None]]
    complaints: list[str]

    def unexplained(self) -> list[str]:
        lines = [
            f"`{row.name}` ({side}): {text}"
            for side, rows in self.rows.items()
            for row in rows
            for text, why in row.differences
            if why is None
        ]
        return [*self.complaints, *lines, *(f"`{name}`: {text}" for name, text, why in self.between if why is None)]


def tell(file: str, seen: Mapping[str, Mapping[str, Any]]) -> Told:
    ended = {side: {t: o for t, o in one["tests"].items() if t.split("::")[0] == file} for side, one in seen.items()}
    tests = [test for test in ended["in-tree"] if all(test in of for of in ended.values())]
    complaints = []
    for test in tests:
        how = {side: of[test] for side, of in ended.items()}
        if len(set(how.values())) > 1 or None in how.values():
            why = reasons.of_outcome(test)
            complaints += [] if why else [f"{test} ended differently: {how}"]
    rows = {side: compare(tests, seen["in-tree"], seen[side], side) for side in seen if side != "in-tree"}
    between = compare_gaps(rows["autoinstr"], rows["both"]) if {"autoinstr", "both"} <= {*rows} else []
    counts = {side: sum(len(one["spans"].get(test, ())) for test in tests) for side, one in seen.items()}
    outcomes = {test: ended["in-tree"][test] or "no end" for test in tests}
    unpassed: dict[str, Counter[str]] = defaultdict(Counter)
    for test, outcome in outcomes.items():
        if outcome not in ("passed", "not selected"):
            unpassed[outcome][seen["in-tree"].get("why", {}).get(test) or "no reason given"] += 1
    return Told(file, Counter(outcomes.values()), unpassed, counts, rows, between, complaints)


def table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> list[str]:
    return [f"| {' | '.join(map(str, line))} |" for line in (head, ["---"] * len(head), *lines)]


def short(file: str) -> str:
    return file.removeprefix("tests/unit/").removesuffix(".py")


def overview(all_told: Sequence[Told], sides: Sequence[str]) -> list[str]:
    lines = []
    for one in all_told:
        outcomes = ", ".join(f"{n} {word}" for word, n in sorted(one.outcomes.items()))
        lines.append([f"`{short(one.file)}`", outcomes, *(one.counts[side] for side in sides)])
    total = ["together", "", *(sum(one.counts[side] for one in all_told) for side in sides)]
    return ["## What was run", "", *table(["File", "Tests", *sides], [*lines, total]), ""]


def not_run(all_told: Sequence[Told]) -> list[str]:
    """What this environment cannot run, on any side, and what pytest gave as the reason."""
    lines = []
    for one in all_told:
        for outcome, whys in sorted(one.unpassed.items()):
            said = "; ".join(f"{n} x {why[:110].replace('|', '/')}" for why, n in whys.most_common(3))
            rest = len(whys) - 3
            lines.append(
                [
                    f"`{short(one.file)}`",
                    f"{sum(whys.values())} {outcome}",
                    said + (f"; {rest} others" if rest > 0 else ""),
                ]
            )
    return ["## What cannot be run here", "", *table(["File", "Tests", "Why"], lines), ""] if lines else []


def gaps(all_told: Sequence[Told]) -> list[str]:
    """Every span that in-tree does not have in some test, why, and how many in all files."""
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in all_told:
        for side, rows in one.rows.items():
            for row in rows:
                for span in row.more:
                    why = reasons.of_gap(row.name, span["test"]) or "NO REASON KNOWN"
                    found[row.name, why][side] += 1
    sides = list(all_told[0].rows)
    lines = [[f"`{name}`", *(n[side] for side in sides), why] for (name, why), n in sorted(found.items())]
    return ["## Gaps", "", *table(["Span", *sides, "In-tree"], lines), ""]


def section(one: Told) -> list[str]:
    """Span by span, where in-tree has any."""
    if not one.counts["in-tree"]:
        return []
    of_side = {side: {row.name: row for row in rows if row.in_tree} for side, rows in one.rows.items()}
    lines = []
    for name in sorted({name for rows in of_side.values() for name in rows}):
        rows = [of_name[name] for of_name in of_side.values()]
        first, spans = rows[0], [s for row in rows for s in (*row.in_tree, *row.compared)]
        counts = [f"{len(row.compared)} + {len(row.more)}" if row.more else len(row.compared) for row in rows]
        attributes = sorted({k for s in first.in_tree for k in s["attributes"]})
        lines.append(
            [
                f"`{name}`",
                "same" if first.in_tree_name == name else f"`{first.in_tree_name}`",
                len(first.in_tree),
                *counts,
                words(s["group"] for s in spans),
                words(s["bucket"] or "none" for s in spans),
                words(s["parent"] or "root" for s in spans),
                ", ".join(f"`{a}`" for a in attributes),
            ]
        )
    head = ["Span", "In-tree name", "in-tree", *of_side, "Group", "Bucket", "Inside", "Attributes"]
    return [f"### `{short(one.file)}`", "", *table(head, lines), "", *explained(one)]


def explained(one: Told) -> list[str]:
    lines = []
    for side, rows in one.rows.items():
        for row in rows:
            lines += [f"- `{row.name}` ({side}): {text}: {why}." for text, why in row.differences if why is not None]
    lines += [f"- `{name}`: {text}: {why}." for name, text, why in one.between if why is not None]
    return [*lines, ""] if lines else []


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="NeMo RL's in-tree telemetry and autoinstr, span by span.")
    parser.add_argument("--branch", type=Path, required=True, metavar="DIR", help="checkout with nemo_rl.telemetry")
    parser.add_argument("--plain", type=Path, required=True, metavar="DIR", help="checkout without it")
    parser.add_argument("--lens", type=Path, required=True, metavar="DIR", help="folder that holds nemo-lens")
    parser.add_argument("--python", type=Path, required=True, help="interpreter that can run the tests")
    parser.add_argument("--stand-ins", type=Path, metavar="DIR", help="holds absent_packages.py and decord.py")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="what was observed stays here")
    parser.add_argument("--sides", default=",".join(SIDES), help="%(default)s")
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="a pytest process is killed after")
    parser.add_argument("--test-limit", type=int, default=300, metavar="SECONDS", help="a test is ended after")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the tables go (standard output)")
    parser.add_argument(
        "tests",
        nargs="+",
        metavar="TESTS",
        help="test files or folders in the sources, of one process with commas between; 'TESTS -k EXPRESSION'",
    )
    options = parser.parse_args(argv)
    options.sides = options.sides.split(",")
    if set(options.sides) - set(SIDES) or options.sides[0] != "in-tree" or len(options.sides) < 2:
        parser.error(f"--sides: in-tree, and others of {', '.join(SIDES)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    keep = options.keep.resolve()
    keep.mkdir(parents=True, exist_ok=True)
    all_told = []
    for tests in options.tests:
        paths, _, select = tests.partition(" -k ")
        seen = {}
        for side in options.sides:
            source = (options.plain if side == "autoinstr" else options.branch).resolve()
            stand_ins = options.stand_ins.resolve() if options.stand_ins else None
            setup = unit_tests.Setup(
                source, options.python.absolute(), stand_ins, "all", keep, options.limit, options.test_limit
            )
            kept = keep / f"{run_name(paths, select)}.{side}.json"
            if not kept.exists():
                observed = observe(setup, paths, side, options.lens.resolve(), select)
                kept.write_text(json.dumps(observed, indent=1))
            seen[side] = json.loads(kept.read_text())
        ended = seen["in-tree"]["tests"].items()
        files = sorted({test.split("::")[0] for test, outcome in ended if outcome != "not selected"})
        if not files:
            print(f"{tests}: no test ran", file=sys.stderr)
            return 1
        all_told += [tell(file, seen) for file in files]
    lines = [*overview(all_told, options.sides), *not_run(all_told), *gaps(all_told), "## Span by span", ""]
    text = "\n".join([*lines, *(line for one in all_told for line in section(one))])
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    unexplained = [f"{short(one.file)}: {line}" for one in all_told for line in one.unexplained()]
    for line in unexplained:
        print(line, file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())

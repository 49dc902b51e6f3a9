"""NeMo RL's own unit tests under its in-tree telemetry, under autoinstr, and under both: are the spans the same?

Each test file runs in a pytest process of its own, on three sides:

- ``in-tree``: on the telemetry branch, with nemo-lens on, all its span groups, and its OTLP exporter;
- ``autoinstr``: on a tree without telemetry under ``opentelemetry-instrument``, all groups, into the journal;
- ``both``: on the telemetry branch with nemo-lens on, under ``opentelemetry-instrument``.

Spans are given to the test that ran when they started. Then names, parents, groups, buckets, attributes and errors
are compared, test by test: ``in-tree`` with ``autoinstr``, and ``in-tree`` with ``both``::

    python tests/real/parity.py --branch RL-telemetry --plain RL --lens LENS --python VENV/bin/python \\
        --stand-ins STANDINS --keep OUT -o tables.md tests/unit/algorithms/test_grpo.py

``--branch`` and ``--plain`` are checkouts of NVIDIA-NeMo/RL: ``rajsin/lens-with-goodput``, and a tree of the same
days. ``--lens`` is a folder that holds nemo-lens, as ``pip install --target`` makes it (on Python 3.11 the ``type``
alias in ``nemo/lens/strategies.py`` must become a plain assignment). ``--python`` and ``--stand-ins``: as in
``nemo_rl_unit_tests.py``. This script runs in an environment with this package, grpcio and opentelemetry-proto.

What a side was observed to do stays in ``--keep``; another call with the same folder does not run it again.

Exit status: 0 when no difference is left but those that ``EXPECTED`` gives a reason for; 1 otherwise, also when a
test ended differently; 2 when used wrongly.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import nemo_rl_unit_tests as unit_tests  # noqa: E402
from otlp_receiver import Receiver  # noqa: E402

from autoinstr.journal.reader import read_run  # noqa: E402
from autoinstr.maps.catalog import Catalog  # noqa: E402

SIDES = ("in-tree", "autoinstr", "both")
"""The branch with its own telemetry, the plain tree under autoinstr, and the branch with its telemetry under it."""


# -- observing ------------------------------------------------------------------------------------------


def observe(setup: unit_tests.Setup, test_file: str, side: str, lens: Path) -> dict[str, Any]:
    """Run one test file on one side: its spans, metrics, and how the tests ended."""
    name = unit_tests.run_name(test_file)
    report = setup.keep / f"{name}.{side}.xml"
    windows = setup.keep / f"{name}.{side}.windows.jsonl"
    log = setup.keep / f"{name}.{side}.log"
    for path in (report, windows):
        path.unlink(missing_ok=True)
    ray_folder = tempfile.mkdtemp(prefix="nrl", dir="/tmp")
    variables = unit_tests.environment(setup, os.environ, ray_folder)
    # last: a NeMo RL module must never be found here, nor a `nemo` where there should be none
    importable = [variables["PYTHONPATH"], str(HERE), *([] if side == "autoinstr" else [str(lens)])]
    variables |= {"PYTHONPATH": os.pathsep.join(importable), "PARITY_WINDOWS": str(windows)}
    command = unit_tests.pytest_command(setup, test_file, report)
    command[3:3] = ["-p", "parity_plugin"]
    runs = setup.keep / "runs"
    with Receiver() as receiver:
        variables |= {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }
        if side != "autoinstr":
            variables |= {
                "PARITY_IN_TREE": "1",
                "NEMO_RL_OTEL_ENABLED": "1",
                "NEMO_RL_OTEL_SPAN_GROUPS": "all",
                "NEMO_RL_OTEL_EXPORT_STRATEGY": "all_ranks",
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_endpoint,
                "OTEL_BSP_SCHEDULE_DELAY": "500",
            }
        if side != "in-tree":
            command.insert(0, str(unit_tests.instrumenter(setup.python)))
            shutil.rmtree(runs / f"{name}.{side}", ignore_errors=True)
            variables |= {
                "AUTOINSTR_SPAN_GROUPS": "all",
                "AUTOINSTR_RUN_DIR": str(runs),
                "AUTOINSTR_RUN_ID": f"{name}.{side}",
                "AUTOINSTR_JOURNAL": "on",
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.http_endpoint + "/v1/metrics",
            }
        try:
            status = unit_tests.run_to_end(command, variables, setup.source, log, setup.limit)
        finally:
            shutil.rmtree(ray_folder, ignore_errors=True)
        spans = received_spans(receiver) if side == "in-tree" else journal_spans(runs / f"{name}.{side}")
        metrics = received_metrics(receiver)
    tests = unit_tests.read_report(report)
    return {
        "status": status,
        "tests": sorted([test, outcome, times] for (test, outcome), times in (tests or {}).items()),
        "spans": by_test(spans, windows),
        "metrics": metrics,
    }


def received_spans(receiver: Receiver) -> list[dict[str, Any]]:
    spans = []
    for span in receiver.spans():
        attributes = {a.key: _value(a.value) for a in span.attributes}
        spans.append(
            {
                "name": span.name,
                "id": span.span_id.hex(),
                "parent": span.parent_span_id.hex() or None,
                "start": span.start_time_unix_nano,
                "group": attributes.pop("parity.group", None),
                "bucket": attributes.pop("rl.bucket", None),
                "attributes": attributes,
                "error": span.status.code == 2,
            }
        )
    return spans


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind or "", None)


_ELSEWHERE = ("rl.bucket", "autoinstr.group", "parity.group")


def journal_spans(folder: Path) -> list[dict[str, Any]]:
    run = read_run(folder)
    return [
        {
            "name": span.name,
            "id": span.span_id,
            "parent": span.parent_id,
            "start": span.start_ns,
            "group": span.attributes.get("parity.group") or span.group,
            "bucket": span.bucket,
            "attributes": {k: v for k, v in span.attributes.items() if k not in _ELSEWHERE},
            "error": span.error is not None,
        }
        for span in (*run.spans, *run.open)
    ]


def received_metrics(receiver: Receiver) -> dict[str, Any]:
    """By name: kind, unit and the sets of attribute names of its points."""
    found: dict[str, Any] = {}
    for request in receiver.metric_requests:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data") or "none"
                    keys = {a.key for point in getattr(metric, kind).data_points for a in point.attributes}
                    known = found.setdefault(metric.name, {"kind": kind, "unit": metric.unit, "attributes": []})
                    known["attributes"] = sorted(keys | set(known["attributes"]))
    return found


def by_test(spans: Iterable[Mapping[str, Any]], windows: Path) -> dict[str, list[dict[str, Any]]]:
    """The spans of each test, those that started while it ran; `above` are the names of a span's ancestors."""
    by_id = {span["id"]: span for span in spans}
    tests = [json.loads(line) for line in windows.read_text().splitlines()] if windows.exists() else []
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span["start"]):
        test = next((t["test"] for t in tests if t["start"] <= span["start"] <= t["end"]), "outside any test")
        above, parent = [], span["parent"]
        while parent is not None:
            above.append(by_id[parent]["name"] if parent in by_id else "?")
            parent = by_id[parent]["parent"] if parent in by_id else None
        kept = {key: span[key] for key in ("name", "group", "bucket", "attributes", "error")}
        found[test].append({**kept, "above": above})
    return dict(found)


# -- comparing ------------------------------------------------------------------------------------------


def same_names() -> dict[str, str]:
    """Another instrumentation's name of a span → ours, as the maps say with `also`."""
    catalog = Catalog(lambda mistake: None)
    catalog.add_builtin("all")
    pairs = [(also, entry.name) for _, read in catalog.maps_for() for entry in read.spans for also in entry.also]
    # the collector of PPO calls its batches as that of GRPO does; a name of the same algorithm comes last, and counts
    return dict(sorted(pairs, key=lambda pair: pair[0].split(".")[1] == pair[1].split(".")[1]))


def compare(test_file: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Row]:
    """A row for each span name of either side."""
    to_ours = same_names()
    spelt: dict[str, str] = {}
    in_tree: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test, spans in theirs["spans"].items():
        for span in spans:
            name = to_ours.get(span["name"], span["name"])
            spelt[name] = span["name"]
            above = [to_ours.get(a, a) for a in span["above"]]
            in_tree[name].append({**span, "test": test, "parent": above[0] if above else None})
    mine: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test, spans in ours["spans"].items():
        for span in spans:
            name = to_ours.get(span["name"], span["name"])
            # what the in-tree telemetry has no span for lies between: the nearest one above that it has
            parent = next((a for a in (to_ours.get(a, a) for a in span["above"]) if a in in_tree), None)
            mine[name].append({**span, "test": test, "parent": parent, "gap": test not in theirs["spans"]})
    return [row_of(test_file, name, spelt.get(name), in_tree[name], mine[name]) for name in sorted({*in_tree, *mine})]


@dataclass
class Row:
    """One span name in one test file, on both sides."""

    test_file: str
    name: str
    in_tree_name: str | None
    counts: tuple[int, int]
    in_gaps: int
    """How many of ours are from tests in which the in-tree telemetry opens no span at all."""
    group: str
    bucket: str
    parents: str
    attributes: str
    differences: list[str]

    @property
    def reason(self) -> str | None:
        return EXPECTED.get(self.name)


_BOTH_TIMERS = "the loop has two such timers in a step; in-tree there is a span for one of them"
EXPECTED = {
    "rl.idle.refit_bubble": "where an engine stays asleep for a save, the loop opens the timer for nothing, so that "
    "the label is there; in-tree leaves that one out, and here it is a span of no length. The plain tree starts and "
    "stops the timer by hand, so an exception is not seen there, and the span is marked `autoinstr.lost_end`",
    "rl.distillation.data_processing": _BOTH_TIMERS,
    "rl.ppo.data_processing": _BOTH_TIMERS,
}
"""Spans that differ, and why that is as it should be."""


def row_of(
    test_file: str, name: str, in_tree_name: str | None, theirs: list[dict[str, Any]], ours: list[dict[str, Any]]
) -> Row:
    differences = []
    in_gaps = sum(span["gap"] for span in ours)
    counts = len(theirs), len(ours) - in_gaps
    if theirs:  # else all of ours are a gap
        ours = [span for span in ours if not span["gap"]]
    if theirs and ours:
        for what, key in (("group", "group"), ("bucket", "bucket"), ("parent", "parent"), ("error", "error")):
            differences += unequal(what, Counter((s["test"], s[key]) for s in theirs if what != "group" or s[key]),
                                   Counter((s["test"], s[key]) for s in ours))  # fmt: skip
        known = {key for span in theirs for key in span["attributes"]}
        for key in sorted(known):
            differences += unequal(
                f"attribute {key}",
                Counter((s["test"], repr(s["attributes"].get(key))) for s in theirs),
                Counter((s["test"], repr(s["attributes"].get(key))) for s in ours),
            )
    elif theirs:
        differences.append("only in-tree")
    more = sorted({k for s in ours for k in s["attributes"]} - {k for s in theirs for k in s["attributes"]})
    attributes = sorted({k for s in theirs for k in s["attributes"]})
    both = [*theirs, *ours]
    return Row(
        test_file,
        name,
        in_tree_name,
        counts,
        in_gaps,
        words(s["group"] for s in both),
        words(s["bucket"] or "none" for s in both),
        words(s["parent"] or "root" for s in both),
        ", ".join([f"`{a}`" for a in attributes] + [f"+`{a}`" for a in more]),
        differences,
    )


def words(items: Iterable[Any]) -> str:
    return ", ".join(sorted({str(item) for item in items if item is not None}))


def unequal(what: str, theirs: Counter[Any], ours: Counter[Any]) -> list[str]:
    """What the two sides say otherwise, added up over the tests: `parent: in-tree 3 x 'a', autoinstr 3 x 'b'`."""
    sides = []
    for side, more in (("in-tree", theirs - ours), ("autoinstr", ours - theirs)):
        values: Counter[Any] = Counter()
        for (_, value), times in more.items():
            values[value] += times
        if values:
            shown = ", ".join(f"{times} x {value}" for value, times in sorted(values.items(), key=str))
            sides.append(f"{side} {shown}")
    return [f"{what}: " + "; ".join(sides)] if sides else []


# -- telling --------------------------------------------------------------------------------------------


def told(test_file: str, seen: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], bool]:
    """The section of the document on one file, and whether all is as expected. ``12 + 3``: 3 more in gaps."""
    theirs = seen["in-tree"]
    sides = [side for side in seen if side != "in-tree"]
    rows = {side: {row.name: row for row in compare(test_file, theirs, seen[side])} for side in sides}
    lines = [f"### `{test_file.removeprefix('tests/unit/')}`", ""]
    for side, one in seen.items():
        outcomes: Counter[str] = Counter()
        for _, outcome, times in one["tests"]:
            outcomes[outcome] += times
        lines.append(f"- {side}: " + ", ".join(f"{n} {word}" for word, n in sorted(outcomes.items())))
    good = all(one["tests"] == theirs["tests"] for one in seen.values())
    lines += [*([] if good else ["", "Tests ended differently."]), ""]
    lines += [f"| Span | In-tree name | {' | '.join(seen)} | Group | Bucket | Inside | Attributes |"]
    lines += ["|" + "---|" * (6 + len(seen))]
    for name in sorted({name for side in sides for name in rows[side]}):
        of_name = [rows[side].get(name) for side in sides]
        row = next(row for row in of_name if row is not None)
        in_tree = "-" if not row.counts[0] else f"`{row.in_tree_name}`" if row.in_tree_name != name else "same"
        counts = [str(row.counts[0])]
        for one in of_name:
            counts.append(
                "0" if one is None else f"{one.counts[1]} + {one.in_gaps}" if one.in_gaps else f"{one.counts[1]}"
            )
        cells = [f"`{name}`", in_tree, *counts, row.group, row.bucket, row.parents, row.attributes]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for side in sides:
        for row in rows[side].values():
            if row.differences:
                good = good and row.reason is not None
                lines += [f"`{row.name}` ({side}): {row.reason or 'NO REASON KNOWN'}.", ""]
                lines += [*(f"- {difference}" for difference in row.differences), ""]
    return lines, good


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
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the tables go (standard output)")
    parser.add_argument("test_files", nargs="+", metavar="TESTFILE", help="path of a test file inside the sources")
    options = parser.parse_args(argv)
    options.sides = options.sides.split(",")
    if set(options.sides) - set(SIDES) or "in-tree" not in options.sides:
        parser.error(f"--sides: in-tree, and others of {', '.join(SIDES)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    keep = options.keep.resolve()
    keep.mkdir(parents=True, exist_ok=True)
    lines, good = [], True
    for test_file in options.test_files:
        seen = {}
        for side in options.sides:
            source = (options.plain if side == "autoinstr" else options.branch).resolve()
            stand_ins = options.stand_ins.resolve() if options.stand_ins else None
            setup = unit_tests.Setup(
                source, options.python.absolute(), stand_ins, "all", keep, options.limit, unit_tests.SECONDS_PER_TEST
            )
            kept = keep / f"{unit_tests.run_name(test_file)}.{side}.json"
            if not kept.exists():
                kept.write_text(json.dumps(observe(setup, test_file, side, options.lens.resolve()), indent=1))
            seen[side] = json.loads(kept.read_text())
        section, as_expected = told(test_file, seen)
        lines += section
        good = good and as_expected
    text = "\n".join(lines)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

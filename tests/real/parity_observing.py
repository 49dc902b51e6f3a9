"""Runs NeMo RL's tests on one side of the comparison of `parity.py`, and says which spans each test had.

A span belongs to the test that had started last when it started, whatever process it is from.
"""

from __future__ import annotations

import bisect
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import nemo_rl_unit_tests as unit_tests  # noqa: E402

from autoinstr.journal.reader import read_run  # noqa: E402

SIDES = ("in-tree", "autoinstr", "both")
"""The branch with its own telemetry, the plain tree under autoinstr, and the branch with its telemetry under it."""


def observe(setup: unit_tests.Setup, tests: str, side: str, lens: Path, select: str = "") -> dict[str, Any]:
    """Run test files, or folders of them, on one side: paths with commas between; ``select`` as pytest's ``-k``.

    ``tests`` in what is returned: how each ended, None where it did not come to its end; ``why``: where it is not
    as it should be; ``spans``: by test.
    """
    name = run_name(tests, select)
    begun = setup.keep / f"{name}.{side}.tests.jsonl"
    begun.unlink(missing_ok=True)
    written = setup.keep / "spans" / f"{name}.{side}"
    runs = setup.keep / "runs"
    for folder in (written, runs / f"{name}.{side}"):
        shutil.rmtree(folder, ignore_errors=True)
    written.mkdir(parents=True)
    ray_folder = tempfile.mkdtemp(prefix="nrl", dir="/tmp")
    variables = unit_tests.environment(setup, os.environ, ray_folder)
    # last: a NeMo RL module must never be found here, nor a `nemo` where there should be none
    importable = [variables["PYTHONPATH"], str(HERE)]
    first, *others = tests.split(",")
    command = [*unit_tests.pytest_command(setup, first, setup.keep / f"{name}.{side}.xml"), *others]
    if Path(first).is_absolute():  # a test of ours: what surrounds it there is none of its business
        command += ["--rootdir", str(Path(first).parent), "--confcutdir", str(Path(first).parent), "-c", os.devnull]
    command[3:3] = ["-p", "parity_plugin", "--continue-on-collection-errors", "-k", select]
    command += ["-o", "timeout_func_only=true"]  # Ray, which a session's fixture starts, has its own limits
    # a busy machine's Ray would give up on its own parts
    patience = {"RAY_agent_register_timeout_ms": "600000", "RAY_worker_register_timeout_seconds": "600"}
    variables |= {"PARITY_TESTS": str(begun), **patience}
    if side != "autoinstr":
        importable += [str(HERE / "parity_site"), str(lens)]
        variables |= {
            "PARITY_IN_TREE": "1",
            "NEMO_RL_OTEL_ENABLED": "1",
            "NEMO_RL_OTEL_SPAN_GROUPS": "all",
            "NEMO_RL_OTEL_EXPORT_STRATEGY": "all_ranks",
            "NEMO_RL_OTEL_EXPORTER": "console",
            "OTEL_METRIC_EXPORT_INTERVAL": "86400000",  # no series is compared here
        }
    if side == "in-tree":
        variables["PARITY_SPANS"] = str(written)
    else:
        command.insert(0, str(unit_tests.instrumenter(setup.python)))
        variables |= {
            "AUTOINSTR_SPAN_GROUPS": "all",
            "AUTOINSTR_RUN_DIR": str(runs),
            "AUTOINSTR_RUN_ID": f"{name}.{side}",
            "AUTOINSTR_JOURNAL": "on",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
        }
    variables["PYTHONPATH"] = os.pathsep.join(importable)
    log = setup.keep / f"{name}.{side}.log"
    try:
        status = unit_tests.run_to_end(command, variables, setup.source, log, setup.limit)
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    lines = [json.loads(line) for line in begun.read_text().splitlines()] if begun.exists() else []
    spans = written_spans(written) if side == "in-tree" else journal_spans(runs / f"{name}.{side}")
    return {
        "status": status,
        "tests": last(lines, "outcome"),
        "why": last(lines, "why"),
        "spans": by_test(spans, lines),
    }


def run_name(tests: str, select: str) -> str:
    """Names what is kept of these tests; of many, it is that of the first and a number."""
    first = tests.split(",")[0]
    name = Path(first).stem if Path(first).is_absolute() else unit_tests.run_name(first)
    return name if "," not in tests and not select else f"{name}-{zlib.crc32(f'{tests} {select}'.encode()):08x}"


def last(lines: Iterable[Mapping[str, Any]], what: str) -> dict[str, Any]:
    """What was said last of each test: of set-up, call and teardown, it is the last that has something to say."""
    return {line["test"]: line[what] for line in lines if what in line}


def written_spans(folder: Path) -> list[dict[str, Any]]:
    """What the processes of an in-tree run wrote; of the two lines of a span, the later counts."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            span = json.loads(line)
            attributes = span["attributes"]
            group, bucket = attributes.pop("parity.group", None), attributes.pop("rl.bucket", None)
            found[span["id"]] = {**span, "group": group, "bucket": bucket}
    return list(found.values())


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


def by_test(spans: Iterable[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The spans of each test; `above` are the names of a span's ancestors."""
    by_id = {span["id"]: span for span in spans}
    begun = [(line["start"], line["test"]) for line in lines if "start" in line]
    starts = [start for start, _ in begun]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span["start"]):
        place = bisect.bisect(starts, span["start"])
        above, parent = [], span["parent"]
        while parent is not None:
            above.append(by_id[parent]["name"] if parent in by_id else "?")
            parent = by_id[parent]["parent"] if parent in by_id else None
        kept = {key: span[key] for key in ("name", "group", "bucket", "attributes", "error")}
        # what precedes every test, such as the collection of them, is counted with the first
        found[begun[max(place - 1, 0)][1] if begun else ""].append({**kept, "above": above})
    return dict(found)

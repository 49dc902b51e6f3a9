"""Goodput: how much of the driver's time was productive.

Every moment is claimed by one span, the innermost bucketed one that is active: a productive phase that waits
for weights inside is idle while it waits. Moments that no bucketed span covers are unattributed and stand
apart, so that goodput does not fall only because fewer span groups are on.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

from autoinstr.journal.reader import Process, Run, Span, SpanKey
from autoinstr.report.liveness import open_until_ns, state_of

JOB_GROUP = "job"
PRODUCTIVE = "productive"
BUCKETS = (PRODUCTIVE, "overhead", "idle", "wasted")


@dataclass(frozen=True, slots=True)
class Goodput:
    """The driver's wall time, in seconds, by what claimed it."""

    process: str | None
    """The driver's file in the journal; None when the run holds no span."""
    wall_s: float
    """Time covered by the driver's root spans."""
    buckets: dict[str, float]
    """Seconds per bucket: the four that are known, always, then any other that a map uses."""
    goodput: float | None
    """productive / (productive + overhead + idle + wasted); None when none of them has any time."""
    unattributed_s: float
    unattributed_share: float | None
    """Unattributed time as a share of the wall time; None when there is none."""


def driver(run: Run) -> int | None:
    """Index of the process that drives the run, None when the run holds no span.

    That is the one with a span of group ``job``; where every rank has one, the lowest rank. Without any, the
    process with most spans. The earlier started wins a tie.
    """
    jobs = {span.process for spans in (run.spans, run.open) for span in spans if span.group == JOB_GROUP}
    if jobs:
        return min(jobs, key=lambda index: (_rank(run.processes[index]), index))
    counts = [process.spans + process.open for process in run.processes]
    return counts.index(max(counts)) if any(counts) else None


def goodput(run: Run, now_ns: int | None = None) -> Goodput:
    """Goodput of the driver. Its open spans count up to now while it lives, else up to its last timestamp.

    O(n log n) in its spans. `now_ns` is the reader's clock.
    """
    index = driver(run)
    if index is None:
        return Goodput(None, 0.0, dict.fromkeys(BUCKETS, 0.0), None, 0.0, None)
    process = run.processes[index]
    spans = [span for some in (run.spans, run.open) for span in some if span.process == index]
    alive = state_of(process)[0] == "alive"
    claimed = _claims(spans, open_until_ns(run, process, now_ns) if alive else process.last_ns or 0)
    unattributed_ns = claimed.pop(None, 0)
    wall_ns = unattributed_ns + sum(claimed.values())
    buckets = dict.fromkeys(BUCKETS, 0.0) | {str(name): ns / 1e9 for name, ns in sorted(claimed.items(), key=str)}
    accounted_ns = sum(claimed.get(name, 0) for name in BUCKETS)
    return Goodput(
        process=process.file,
        wall_s=wall_ns / 1e9,
        buckets=buckets,
        goodput=claimed.get(PRODUCTIVE, 0) / accounted_ns if accounted_ns else None,
        unattributed_s=unattributed_ns / 1e9,
        unattributed_share=unattributed_ns / wall_ns if wall_ns else None,
    )


def _rank(process: Process) -> int:
    return -1 if process.rank is None else process.rank


def _claims(spans: list[Span], last_ns: int) -> dict[str | None, int]:
    """Nanoseconds per bucket, None for what nobody claims, over the time that root spans cover."""
    by_key = {span.key: span for span in spans}
    depths = _depths(by_key)
    roots_open: defaultdict[int, int] = defaultdict(int)
    bucketed: list[tuple[int, int, int, str]] = []
    times: set[int] = set()
    for span in spans:
        end_ns = last_ns if span.end_ns is None else span.end_ns
        if end_ns <= span.start_ns:
            continue
        if span.parent_key not in by_key:
            roots_open[span.start_ns] += 1
            roots_open[end_ns] -= 1
        elif span.bucket is None:
            continue
        times.update((span.start_ns, end_ns))
        if span.bucket is not None:
            bucketed.append((span.start_ns, depths[span.key], end_ns, span.bucket))
    # Latest to start comes off the end; a parent and child of one start are told apart by depth.
    bucketed.sort(reverse=True)
    active: list[tuple[int, int, int, str]] = []
    claimed: defaultdict[str | None, int] = defaultdict(int)
    roots = 0
    before = 0
    for time in sorted(times):
        if roots and time > before:
            claimed[active[0][3] if active else None] += time - before
        roots += roots_open.get(time, 0)
        while bucketed and bucketed[-1][0] == time:
            start_ns, depth, end_ns, bucket = bucketed.pop()
            heapq.heappush(active, (-start_ns, -depth, end_ns, bucket))
        # An ended span below the top of the heap claims nothing; it goes when it comes to the top.
        while active and active[0][2] <= time:
            heapq.heappop(active)
        before = time
    return dict(claimed)


def _depths(spans: dict[SpanKey, Span]) -> dict[SpanKey, int]:
    """How many ancestors each span has in its own process."""
    depths: dict[SpanKey, int] = {}
    for key in spans:
        path: list[SpanKey] = []
        at: SpanKey | None = key
        while at is not None and at in spans and at not in depths:
            # Said beforehand, so that parents that run in a circle end the walk.
            depths[at] = 0
            path.append(at)
            at = spans[at].parent_key
        depth = depths[at] + 1 if at is not None and at in depths else 0
        for walked in reversed(path):
            depths[walked] = depth
            depth += 1
    return depths

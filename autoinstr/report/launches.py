"""How often a run was launched: one run id may be given to several runs, or to a job that is started again."""

from __future__ import annotations

from collections import defaultdict

from autoinstr.journal.reader import Run
from autoinstr.report.goodput import JOB_GROUP


def launches(run: Run) -> list[int]:
    """When each launch began, in nanoseconds; one where nothing speaks for more.

    A launch has one process per rank that begins the run's own work: with a span of group `job` whose parent is in
    no process of the run. Where a rank has several such processes, so many launches were there. A process that one of
    the run has started is of its launch.
    """
    there = {(process.host, process.pid) for process in run.processes}
    spans = [*run.spans, *run.open]
    known = {span.key for span in spans}
    began: defaultdict[int | None, dict[int, int]] = defaultdict(dict)
    for span in spans:
        if span.group == JOB_GROUP and span.parent_key not in known:
            process = run.processes[span.process]
            if process.parent_pid is not None and (process.host, process.parent_pid) in there:
                continue
            began[process.rank].setdefault(span.process, process.started_ns or span.start_ns)
    if not began:
        return [run.started_ns] if run.started_ns is not None else []
    return sorted(max(began.values(), key=len).values())

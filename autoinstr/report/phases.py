"""Where the time of a run goes: one row per span name."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from autoinstr.journal.reader import Run, Span, SpanKey

STEP_GROUP = "step"
_FIRST_GROUPS = ("job", "setup", STEP_GROUP)


@dataclass(frozen=True, slots=True)
class Phase:
    """All finished spans of one name, group and bucket. Times are seconds."""

    name: str
    group: str | None
    bucket: str | None
    count: int
    total_s: float
    mean_s: float
    p95_s: float
    """95th percentile by nearest rank: the smallest duration that at least 95 % do not exceed."""
    max_s: float
    step_share: float | None
    """Time of the spans below a step, as a share of the time of all steps. Spans that run at once, in threads
    or on several ranks, can exceed 1. None when no span lies below a step."""


@dataclass(slots=True)
class _Row:
    durations: list[int] = field(default_factory=list)
    in_steps_ns: int = 0
    in_steps: bool = False


def phases(run: Run) -> list[Phase]:
    """The rows of a run: groups ``job``, ``setup`` and ``step`` first, then by falling total time.

    Open spans have no duration yet and are left out, and so is, for ``step_share``, what lies below an open
    step: its time would be in the share and not in the whole.
    """
    below = _below_steps(run)
    steps_ns = 0
    rows: defaultdict[tuple[str, str | None, str | None], _Row] = defaultdict(_Row)
    for span in run.spans:
        duration_ns = _duration(span)
        row = rows[span.name, span.group, span.bucket]
        row.durations.append(duration_ns)
        if below[span.key]:
            row.in_steps = True
            row.in_steps_ns += duration_ns
        elif span.group == STEP_GROUP:
            steps_ns += duration_ns
    return sorted((_phase(*names, row, steps_ns) for names, row in rows.items()), key=_order)


def _below_steps(run: Run) -> dict[SpanKey, bool]:
    """For every span, whether one of its ancestors is a finished step, in whatever process."""
    spans = {span.key: span for span in (*run.spans, *run.open)}
    below: dict[SpanKey, bool] = {}
    for key in spans:
        path: list[SpanKey] = []
        answer = False
        at: SpanKey | None = key
        while at is not None and at in spans:
            if at in below:
                answer = below[at]
                break
            # Said beforehand, so that a damaged journal whose parents run in a circle ends the walk.
            below[at] = False
            path.append(at)
            at = spans[at].parent_key
        # `answer` is that of the topmost span on the path; going down, each step turns it for all below it.
        above = spans.get(at) if at is not None else None
        answer = answer or (above is not None and _is_finished_step(above))
        for walked in reversed(path):
            below[walked] = answer
            answer = answer or _is_finished_step(spans[walked])
    return below


def _is_finished_step(span: Span) -> bool:
    return span.group == STEP_GROUP and span.end_ns is not None


def _duration(span: Span) -> int:
    # A clock that was set back gives an end before the start.
    return 0 if span.end_ns is None else max(0, span.end_ns - span.start_ns)


def _phase(name: str, group: str | None, bucket: str | None, row: _Row, steps_ns: int) -> Phase:
    durations = sorted(row.durations)
    count = len(durations)
    total_ns = sum(durations)
    return Phase(
        name=name,
        group=group,
        bucket=bucket,
        count=count,
        total_s=total_ns / 1e9,
        mean_s=total_ns / count / 1e9,
        p95_s=durations[-(-95 * count // 100) - 1] / 1e9,
        max_s=durations[-1] / 1e9,
        step_share=row.in_steps_ns / steps_ns if row.in_steps and steps_ns else None,
    )


def _order(phase: Phase) -> tuple[int, float, str]:
    known = phase.group in _FIRST_GROUPS
    return _FIRST_GROUPS.index(phase.group or "") if known else len(_FIRST_GROUPS), -phase.total_s, phase.name

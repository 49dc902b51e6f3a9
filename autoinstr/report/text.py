"""A run as text for a terminal: plain, aligned, at most ``WIDTH`` columns wide."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from statistics import median

from autoinstr.journal.reader import Process, Run, Span, SpanKey
from autoinstr.report.goodput import BUCKETS, Goodput
from autoinstr.report.launches import launches
from autoinstr.report.liveness import STATES, open_until_ns, state_of
from autoinstr.report.phases import Phase

WIDTH = 130
_PROCESSES_SHOWN = 8
_NONE = "-"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def render(run: Run, rows: Sequence[Phase], good: Goodput, algorithms: Sequence[str], now_ns: int | None = None) -> str:
    """The whole report: header, phases, goodput, open spans. `now_ns` is the reader's clock."""
    parts = [_header(run, algorithms, now_ns), _phases(rows), _goodput(good), _open(run, now_ns)]
    if errors := _errors(run):
        parts.append(errors)
    if run.hangs:
        parts.append(_hangs(run))
    # The journal's path is never cut: it is there to be copied.
    uncut = f"journal {run.folder}"
    return "\n\n".join("\n".join(line if line == uncut else cut(line, WIDTH) for line in part) for part in parts)


def timestamp(time_ns: int) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    moment = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def open_for_ns(run: Run, span: Span, now_ns: int | None = None) -> int:
    """How long an open span is known to have been open. `now_ns` is the reader's clock."""
    return max(0, open_until_ns(run, run.processes[span.process], now_ns) - span.start_ns)


def columns(rows: list[list[str]], align: str, indent: str = "") -> list[str]:
    """Rows as lines; ``align`` has ``<`` or ``>`` per column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        # A column without any text, such as the rank where no process has one, takes no room.
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True) if width]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def cut(text: str, width: int) -> str:
    """``text``, with an ellipsis for what does not fit into ``width`` columns."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def one_line(text: str) -> str:
    """``text`` without line breaks and without what a terminal would act on."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _header(run: Run, algorithms: Sequence[str], now_ns: int | None) -> list[str]:
    count = len(run.processes)
    counts = Counter(state_of(process)[0] for process in run.processes)
    state = ", ".join(f"{counts[state]} {state}" if len(counts) > 1 else state for state in STATES if counts[state])
    about = [f"run {one_line(run.run_id)}", *algorithms, *_model(run), f"{_count(count, 'process', 'es')} ({state})"]
    if run.started_ns is not None:
        until_ns = max([run.last_ns or 0, *(open_until_ns(run, process, now_ns) for process in run.processes)])
        about += [_seconds((until_ns - run.started_ns) / 1e9)]
        about += [f"since {timestamp(run.started_ns)[:19]}Z"]
    lines = ["   ".join(about), f"journal {run.folder}"]
    if count <= _PROCESSES_SHOWN:
        lines += columns([_process(process) for process in run.processes], "<<<<>>", indent="  ")
    begun = launches(run)
    if len(begun) > 1:
        when = ", ".join(timestamp(one)[:19] + "Z" for one in begun)
        lines.append(f"{len(begun)} launches under this run id, at {when}: what follows adds them up")
    for process in run.processes:
        if process.lost:
            lines.append(lost_records(process))
    lines += unreadable(run)
    if broken := run.broken_lines:
        lines.append(f"{_count(broken, 'broken line')} left out (a process killed while writing leaves one)")
    return lines


_MODEL_WIDTH = 40


def _model(run: Run) -> list[str]:
    """What is trained: the model, in which precision, split how."""
    said = run.about("rl.model", "nemo.precision", "dl.tensor_parallel.size", "dl.pipeline_parallel.size")
    short = {"dl.tensor_parallel.size": "tp ", "dl.pipeline_parallel.size": "pp "}
    return [_cut_middle(f"{short.get(key, '')}{one_line(str(value))}", _MODEL_WIDTH) for key, value in said.items()]


def _process(process: Process) -> list[str]:
    return [
        one_line(process.service or process.command or _NONE),
        f"rank {process.rank}" if process.rank is not None else "",
        f"{one_line(process.host or '?')} pid {'?' if process.pid is None else process.pid}",
        state_of(process)[0],
        _count(process.spans, "span"),
        f"{process.open} open",
    ]


def _phases(rows: Sequence[Phase]) -> list[str]:
    if not rows:
        return ["no span has finished"]
    cells = [
        ["count", *(str(row.count) for row in rows)],
        _time_column("total", [row.total_s for row in rows]),
        _time_column("mean", [row.mean_s for row in rows]),
        _time_column("p95", [row.p95_s for row in rows]),
        _time_column("max", [row.max_s for row in rows]),
        ["% of step", *(_NONE if row.step_share is None else f"{row.step_share * 100:.1f}" for row in rows)],
    ]
    cells[:0] = [
        ["group", *(cut(one_line(row.group or _NONE), 16) for row in rows)],
        ["bucket", *(cut(one_line(row.bucket or _NONE), 12) for row in rows)],
    ]
    left = WIDTH - sum(max(map(len, column)) + 2 for column in cells)
    hint = []
    # whoever has time that is productive has selected more than the default already, and a map without a step
    on = any(row.group == "step" or row.bucket == "productive" for row in rows)
    if any(row.group == "job" for row in rows) and not on:
        hint = ["", "steps and their phases were not recorded; AUTOINSTR_SPAN_GROUPS=per_step records them"]
    names = ["span", *(_cut_middle(one_line(row.name), max(left, 12)) for row in rows)]
    return columns([list(row) for row in zip(names, *cells, strict=True)], "<<<>>>>>>") + hint


def _time_column(title: str, seconds: list[float]) -> list[str]:
    """One unit for the column, so that its numbers compare at a glance: that of the middle row."""
    if median(seconds) >= 1 or max(seconds) >= 10_000:
        return [f"{title} s", *(f"{value:.2f}" for value in seconds)]
    return [f"{title} ms", *(f"{value * 1e3:.1f}" for value in seconds)]


def _goodput(good: Goodput) -> list[str]:
    if good.unattributed_share is None:
        return ["goodput unknown: the driver has no span"]
    unattributed = f"unattributed {good.unattributed_share * 100:.1f} % of {_seconds(good.wall_s)}"
    if good.goodput is None:
        return [f"goodput unknown: no span of the driver has a bucket  ({unattributed})"]
    digits = 2 if good.wall_s < 1000 else 0
    claimed = ", ".join(
        f"{one_line(name)} {seconds:.{digits}f} s"
        for name, seconds in good.buckets.items()
        if name in BUCKETS or seconds
    )
    attributed = sum(good.buckets.values())
    line = f"goodput {good.goodput * 100:.1f} % of {attributed:.{digits}f} s  ({claimed}; {unattributed})"
    return [line]


def _open(run: Run, now_ns: int | None) -> list[str]:
    if not run.open:
        return ["no span is open"]
    lines = [f"{_count(len(run.open), 'open span')}, innermost last"]
    by_process: defaultdict[int, list[Span]] = defaultdict(list)
    for span in run.open:
        by_process[span.process].append(span)
    for index, spans in sorted(by_process.items()):
        process = run.processes[index]
        lines.append("  " + "  ".join(cell.strip() for cell in _process(process)[:4] if cell))
        since = _OPEN_SINCE[state_of(process)[0]]
        rows = [
            [
                "  " * depth + one_line(span.name),
                f"[{one_line(span.group)}]" if span.group else "",
                since.format(_seconds(open_for_ns(run, span, now_ns) / 1e9)),
            ]
            for span, depth in stacks(spans)
        ]
        lines += columns(rows, "<<<", indent="    ")
    return lines


_OPEN_SINCE = {
    "alive": "for {}",
    "ended": "since {} before its process ended",
    "killed": "since {} before its process's last record",
    "not ended": "since {} before the last record",
}


def lost_records(process: Process) -> str:
    """What to know of a process whose journal lacks records."""
    who = f"{one_line(process.host or '?')} pid {'?' if process.pid is None else process.pid}"
    return f"the journal of {who} lacks records that could not be written (a full disk?): spans may only seem open"


def unreadable(run: Run) -> list[str]:
    """A line that says which of the journal's files are lacking in what follows, if any are."""
    bad = [process for process in run.processes if process.unreadable]
    if not bad:
        return []
    first = f"{one_line(bad[0].file)}: {bad[0].unreadable}" + (f"; and {len(bad) - 1} more" if len(bad) > 1 else "")
    return [f"{len(bad)} of {_count(len(run.processes), 'file')} can't be read, in whole or in part ({first})"]


def _hangs(run: Run) -> list[str]:
    lines = ["open for too long; `autoinstr postmortem` shows the stacks"]
    rows = []
    for hang in run.hangs:
        who = "  ".join(cell for cell in _process(run.processes[hang.process])[:3] if cell)
        rows.append([one_line(hang.name), f"{hang.open_for_s:.1f} s at {timestamp(hang.time_ns)}", who])
    return lines + columns(rows, "<<<", indent="  ")


_ERRORS_SHOWN = 5


def _errors(run: Run) -> list[str]:
    """What went wrong, the most frequent first: a run that crashed has no span open, and looks well without this."""
    counts = Counter((span.name, span.error) for span in run.spans if span.error is not None)
    if not counts:
        return []
    lines = [f"{_count(sum(counts.values()), 'span')} ended with an error"]
    for (name, error), count in counts.most_common(_ERRORS_SHOWN):
        lines.append(f"  {one_line(name)}{f' ×{count}' if count > 1 else ''}: {one_line(error or '?')}")
    if len(counts) > _ERRORS_SHOWN:
        lines.append(f"  and {len(counts) - _ERRORS_SHOWN} more kinds; --tree shows a step's")
    return lines


def stacks(spans: list[Span]) -> list[tuple[Span, int]]:
    """The open spans of one process, each after the one it is in, with its depth."""
    keys = {span.key for span in spans}
    inside: defaultdict[SpanKey | None, list[Span]] = defaultdict(list)
    for span in spans:
        inside[span.parent_key if span.parent_key in keys else None].append(span)
    stacks: list[tuple[Span, int]] = []
    todo = [(span, 0) for span in reversed(inside.pop(None, []))]
    while todo:
        span, depth = todo.pop()
        stacks.append((span, depth))
        todo += [(child, depth + 1) for child in reversed(inside.pop(span.key, []))]
    return stacks


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _cut_middle(text: str, width: int) -> str:
    """A span name says most at its two ends."""
    if len(text) <= width:
        return text
    tail = width // 2
    return text[: width - tail - 1] + "…" + text[-tail:]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.1f} ms"

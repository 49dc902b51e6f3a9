"""What became of each process of a run: alive, ended or killed, what it was in, and who stands apart."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from autoinstr.journal.reader import Hang, Process, Run, Span
from autoinstr.report.launches import launches
from autoinstr.report.liveness import STATES, State, open_until_ns, state_of
from autoinstr.report.text import WIDTH, columns, cut, lost_records, one_line, stacks, timestamp, unreadable

ITERATION = "rl.iteration"
WORKER_GROUP = "rl.worker_group"
_RANKS_NAMED = 8


@dataclass(frozen=True, slots=True)
class Fate:
    """One process: its state and how that is known, the spans it was in, and what it finished last."""

    process: Process
    state: State
    why: str
    open: list[tuple[Span, int]]
    """Open spans, each after the one it is in, with its depth."""
    last_finished: Span | None
    hangs: list[Hang]

    @property
    def innermost(self) -> Span | None:
        """Where the process is: the open span that was begun last."""
        return max((span for span, _ in self.open), key=lambda span: span.start_ns, default=None)

    @property
    def iteration(self) -> int | None:
        """The step it is in, from the open spans, else the last it finished a part of."""
        spans = sorted((span for span, _ in self.open), key=lambda span: -span.start_ns)
        for span in (*spans, *([self.last_finished] if self.last_finished else ())):
            value = span.attributes.get(ITERATION)
            if isinstance(value, int):
                return value
        return None


@dataclass(frozen=True, slots=True)
class Apart:
    """Some ranks differ from most of their group in one respect."""

    ranks: list[int]
    what: Literal["state", "iteration", "span"]
    theirs: str
    most: str
    """What most ranks say."""
    others: int
    """How many ranks say so."""
    group: str | None


def fates(run: Run) -> list[Fate]:
    """One for each process, in the order in which they started."""
    open_in: defaultdict[int, list[Span]] = defaultdict(list)
    for span in run.open:
        open_in[span.process].append(span)
    last: dict[int, Span] = {}
    for span in run.spans:
        before = last.get(span.process)
        if before is None or (span.end_ns or 0) >= (before.end_ns or 0):
            last[span.process] = span
    hangs: defaultdict[int, list[Hang]] = defaultdict(list)
    for hang in run.hangs:
        hangs[hang.process].append(hang)
    return [
        Fate(process, *state_of(process), stacks(open_in[index]), last.get(index), hangs[index])
        for index, process in enumerate(run.processes)
    ]


def standing_apart(found: list[Fate]) -> list[Apart]:
    """Ranks whose state, iteration or innermost open span is not that of most ranks of their worker group."""
    groups: defaultdict[str | None, list[Fate]] = defaultdict(list)
    for fate in found:
        if fate.process.rank is not None:
            group = fate.process.resource.get(WORKER_GROUP)
            groups[group if isinstance(group, str) else None].append(fate)
    apart: list[Apart] = []
    for group, members in groups.items():
        running = [fate for fate in members if fate.state != "ended"]
        apart += _apart(members, "state", lambda fate: fate.state, group)
        apart += _apart(
            running, "iteration", lambda fate: "no iteration" if fate.iteration is None else str(fate.iteration), group
        )
        apart += _apart(running, "span", lambda fate: fate.innermost.name if fate.innermost else "no open span", group)
    return apart


def _apart(
    members: list[Fate],
    what: Literal["state", "iteration", "span"],
    says: Callable[[Fate], Hashable],
    group: str | None,
) -> list[Apart]:
    answers = Counter(says(fate) for fate in members)
    if len(answers) < 2:
        return []
    most, count = answers.most_common(1)[0]
    if count * 2 <= len(members):
        return []  # no majority: nobody stands apart, they all do
    return [
        Apart(
            sorted(fate.process.rank for fate in members if says(fate) == other and fate.process.rank is not None),
            what,
            str(other),
            str(most),
            count,
            group,
        )
        for other in answers
        if other != most
    ]


def render(run: Run, found: list[Fate], apart: list[Apart], now_ns: int | None = None) -> str:
    """The post-mortem as text. `now_ns` is the reader's clock."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    counts = Counter(fate.state for fate in found)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    plural = "es" if len(found) != 1 else ""
    head = [f"run {one_line(run.run_id)}   {len(found)} process{plural} ({states})", f"journal {run.folder}"]
    begun = launches(run)
    if len(begun) > 1:
        when = ", ".join(timestamp(one)[:19] + "Z" for one in begun)
        head.append(f"{len(begun)} launches under this run id, at {when}")
    head += unreadable(run)
    if run.broken_lines:
        plural = "s" if run.broken_lines != 1 else ""
        head.append(f"{run.broken_lines} broken line{plural} left out (a process killed while writing leaves one)")
    parts = [head]
    if apart:
        parts.append([_sentence(one) for one in apart])
    parts += [_process(run, fate, now_ns) for fate in found]
    uncut = f"journal {run.folder}"
    return "\n\n".join("\n".join(line if line == uncut else cut(line, WIDTH) for line in part) for part in parts)


def _sentence(one: Apart) -> str:
    ranks = ", ".join(map(str, one.ranks[:_RANKS_NAMED]))
    if len(one.ranks) > _RANKS_NAMED:
        ranks += f" and {len(one.ranks) - _RANKS_NAMED} more"
    who = f"rank{'s' if len(one.ranks) > 1 else ''} {ranks}" + (f" of {one_line(one.group)}" if one.group else "")
    stand = "stand" if len(one.ranks) > 1 else "stands"
    say = {"state": "{}", "iteration": "at iteration {}", "span": "in {}"}[one.what]
    theirs, most = (word if word.startswith("no ") else say.format(one_line(word)) for word in (one.theirs, one.most))
    return f"{who} {stand} apart: {theirs}; {one.others} other{'s' if one.others > 1 else ''} {most}"


def _process(run: Run, fate: Fate, now_ns: int) -> list[str]:
    process = fate.process
    rank = f"rank {process.rank}" if process.rank is not None else ""
    name = one_line(process.service or process.command or "-")
    where = f"{one_line(process.host or '?')} pid {'?' if process.pid is None else process.pid}"
    state = fate.state
    if state in ("killed", "not ended") and process.last_ns is not None:
        state = f"{state}, last record {_seconds(now_ns - process.last_ns)} ago"  # type: ignore[assignment]
    lines = ["  ".join(word for word in (name, rank, where, state) if word)]
    if state != "ended":
        lines.append(f"  ({fate.why})")
    if process.lost:
        lines.append(f"  {lost_records(process)}")
    rows = []
    if fate.last_finished is not None and fate.last_finished.end_ns is not None:
        span = fate.last_finished
        took = _seconds((span.end_ns or 0) - span.start_ns)
        rows.append(["finished last", one_line(span.name), f"took {took}, ended {timestamp(span.end_ns or 0)}"])
    until_ns = open_until_ns(run, process, now_ns)
    # nobody knows how long a process that writes no more was in them
    so_long = "for at least" if fate.state in ("killed", "not ended") else "for"
    for number, (span, depth) in enumerate(fate.open):
        iteration = span.attributes.get(ITERATION)
        rows.append(
            [
                "open" if number == 0 else "",
                "  " * depth + one_line(span.name) + (f" {iteration}" if iteration is not None else ""),
                f"{so_long} {_seconds(until_ns - span.start_ns)}, since {timestamp(span.start_ns)}",
            ]
        )
    if not fate.open:
        rows.append(["open", "nothing", ""])
    lines += columns(rows, "<<<", indent="  ")
    for hang in fate.hangs:
        lines.append(f"  hang: {one_line(hang.name)} was open for {hang.open_for_s:.1f} s at {timestamp(hang.time_ns)}")
        lines += [f"    {_printable(line)}" for line in hang.stacks.splitlines()]
    return lines


def _printable(text: str) -> str:
    return " " * (len(text) - len(text.lstrip(" "))) + one_line(text)


def _seconds(ns: int) -> str:
    seconds = max(0, ns) / 1e9
    if seconds >= 90:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"

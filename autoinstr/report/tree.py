"""One step of a run as a tree of spans, across its processes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby

from autoinstr.journal.reader import BUCKET, Process, Run, Span, SpanKey
from autoinstr.report.goodput import driver
from autoinstr.report.liveness import open_until_ns
from autoinstr.report.phases import STEP_GROUP
from autoinstr.report.text import WIDTH, columns, cut, one_line

ITERATION = "rl.iteration"
_ALIKE_SHOWN = 5
_LABEL_WIDTH = 64
_VALUE_WIDTH = 40
_ITERATIONS_NAMED = 10
# Of use to a trace viewer; in a tree they push out what says something about training.
_QUIET = (BUCKET, "code.", "thread.")


class NoSuchStep(LookupError):
    """The run has no such step; the text says which it has."""


@dataclass(slots=True)
class _Node:
    span: Span
    children: list[_Node] = field(default_factory=list)
    shape: int = 0
    """Equal for two nodes that look alike, names, buckets and everything below."""
    size: int = 1


def step_tree(run: Run, iteration: int | None) -> str:
    """The tree of the step with that ``rl.iteration``, or of the last finished step.

    An open step is shown when it is asked for by number. Where several processes have such a step, the
    driver's is shown. Raises ``NoSuchStep``.
    """
    step, others = _find_step(run, iteration)
    root, nodes = _grow(run, step)
    process = run.processes[step.process]
    number = step.attributes.get(ITERATION)
    about = [f"step {number}" if number is not None else "step", f"trace {step.trace_id}", _who(process)]
    lines = ["  ".join(about), "", *_draw(run, root)]
    if others:
        lines += [
            "",
            f"{others} more such step{'s' if others > 1 else ''} in this run; the driver's last is shown",
        ]
    failed = [node.span for node in nodes if node.span.error is not None]
    if failed:
        lines += ["", "errors"]
        lines += [cut(f"  {span.name}: {one_line(span.error or '')}", WIDTH) for span in failed]
    return "\n".join(lines)


def _find_step(run: Run, iteration: int | None) -> tuple[Span, int]:
    finished = [span for span in run.spans if span.group == STEP_GROUP]
    if iteration is None:
        if not finished:
            raise NoSuchStep(f"no step has finished in run {run.run_id}")
        return _best(run, finished), 0
    steps = finished + [span for span in run.open if span.group == STEP_GROUP]
    wanted = [span for span in steps if str(span.attributes.get(ITERATION)) == str(iteration)]
    if not wanted:
        numbers = dict.fromkeys(str(span.attributes[ITERATION]) for span in steps if ITERATION in span.attributes)
        have = f"its steps are {_range(list(numbers))}" if numbers else "none of its steps has a number"
        raise NoSuchStep(f"no step with {ITERATION} {iteration} in run {run.run_id}; {have}")
    return _best(run, wanted), len(wanted) - 1


def _best(run: Run, steps: list[Span]) -> Span:
    """The last to end, of the driver's if it has any; one that is open is later than all."""
    first = driver(run)
    return max(
        steps,
        key=lambda span: (
            span.process == first,
            -span.process if first not in {step.process for step in steps} else 0,
            span.end_ns is None,
            span.end_ns or 0,
            -span.start_ns,
        ),
    )


def _range(numbers: list[str]) -> str:
    if len(numbers) <= _ITERATIONS_NAMED:
        return ", ".join(numbers)
    return f"{', '.join(numbers[:3])}, ... {', '.join(numbers[-3:])}"


def _grow(run: Run, step: Span) -> tuple[_Node, list[_Node]]:
    """The step's node and all nodes below it, parents before children."""
    children: defaultdict[SpanKey, list[Span]] = defaultdict(list)
    for spans in (run.spans, run.open):
        for span in spans:
            # A step's spans share its trace; the rest of the run need not be sorted into families.
            if span.trace_id == step.trace_id and span.parent_key is not None:
                children[span.parent_key].append(span)
    root = _Node(step)
    nodes = [root]
    for node in nodes:
        # Taken out, so that a damaged journal whose parents run in a circle is walked once.
        below = children.pop(node.span.key, [])
        node.children = [_Node(span) for span in sorted(below, key=lambda span: span.start_ns) if span is not step]
        nodes += node.children
    shapes: dict[tuple[object, ...], int] = {}
    for node in reversed(nodes):
        span = node.span
        # What failed or is open is shown by itself, and so are all that hold it.
        alone = id(span) if span.error is not None or span.end_ns is None else None
        look = (span.name, span.group, span.bucket, alone, *(child.shape for child in node.children))
        node.shape = shapes.setdefault(look, len(shapes))
        node.size += sum(child.size for child in node.children)
    return root, nodes


def _draw(run: Run, root: _Node) -> list[str]:
    rows: list[list[str]] = []
    todo: list[tuple[str, str, list[_Node], int]] = [("", "", [root], root.span.process)]
    while todo:
        before, below, alike, process = todo.pop()
        span = alike[0].span
        total_ms = sum(_duration(run, node.span) for node in alike) / 1e6
        bucket = f"[{span.bucket}]" if span.bucket else ""
        if len(alike) > 1:
            notes = [f"each with {alike[0].size - 1} below"] if alike[0].size > 1 else []
            processes = {node.span.process for node in alike}
            if len(processes) > 1:
                notes.append(f"in {len(processes)} processes")
            label = f"{cut(before + one_line(span.name), _LABEL_WIDTH)} ×{len(alike)}"
            rows.append([label, f"total {_milliseconds(total_ms)}", bucket, ", ".join(notes)])
            continue
        about = [] if span.end_ns is not None else ["open"]
        about += ["error"] if span.error is not None else []
        about += _attributes(span)
        if span.process != process:
            about.append(f"@ {_who(run.processes[span.process])}")
        label = cut(before + one_line(span.name), _LABEL_WIDTH)
        rows.append([label, _milliseconds(total_ms), bucket, "  ".join(about)])
        entries = _coalesced(alike[0].children)
        for number, entry in reversed(list(enumerate(entries, start=1))):
            last = number == len(entries)
            todo.append((below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "), entry, span.process))
    return [cut(line, WIDTH) for line in columns(rows, "<><<")]


def _coalesced(children: list[_Node]) -> list[list[_Node]]:
    entries: list[list[_Node]] = []
    for _, group in groupby(children, key=lambda node: node.shape):
        alike = list(group)
        entries += [alike] if len(alike) > _ALIKE_SHOWN else [[node] for node in alike]
    return entries


def _attributes(span: Span) -> list[str]:
    shown: list[str] = []
    for key, value in span.attributes.items():
        if key.startswith(_QUIET):
            continue
        text = f"{value:.4g}" if isinstance(value, float) else one_line(str(value))
        shown.append(f"{one_line(key.rpartition('.')[2])}={cut(text, _VALUE_WIDTH)}")
    return shown


def _duration(run: Run, span: Span) -> int:
    """Nanoseconds; an open span lasts as long as it is known to be open."""
    end_ns = open_until_ns(run, run.processes[span.process]) if span.end_ns is None else span.end_ns
    return max(0, end_ns - span.start_ns)


def _milliseconds(value: float) -> str:
    return f"{value:.1f} ms"


def _who(process: Process) -> str:
    return f"rank {process.rank}" if process.rank is not None else f"{process.host or '?'} pid {process.pid or '?'}"

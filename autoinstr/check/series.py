"""Does each series of a metric tap fit the facts: are its function, its arguments and its logger keys there?"""

from __future__ import annotations

from collections.abc import Iterator

from autoinstr.check.facts import Facts
from autoinstr.check.lookup import Lookup, fits
from autoinstr.check.outcome import ABSENT, MISSING, Finding, Row
from autoinstr.maps.metric_model import STAR, LoggerKey, MetricTap, SeriesEntry
from autoinstr.maps.model import Place, Selector
from autoinstr.maps.values import ValuePath
from autoinstr.maps.words import did_you_mean


def rows_of(tap: MetricTap, facts: Facts) -> list[Row]:
    """A row for every source of every series that the tap feeds."""
    return _TapCheck(tap, facts).rows()


class _TapCheck:
    def __init__(self, tap: MetricTap, facts: Facts) -> None:
        self._tap = tap
        self._facts = facts
        self._lookup = Lookup(facts)

    def rows(self) -> list[Row]:
        tap, of_all = self._tap, list(self._of_the_tap())
        rows: list[Row] = []
        for series in tap.series:
            row = Row(series)
            # what is wrong with the function is said once, and every series of it is lost
            findings = [(level, Finding(place, series.name, text)) for level, place, text in of_all]
            if not findings:
                findings = [(level, Finding(series.place, series.name, text)) for level, text in self._of(series, row)]
            if tap.optional or series.optional:
                findings = [(ABSENT, finding) for _, finding in findings]
            if findings:
                row.state = MISSING if any(level == MISSING for level, _ in findings) else ABSENT
                if not (of_all and any(other.state == row.state for other in rows)):
                    row.findings = [finding for _, finding in findings]
            else:
                row.targets = not rows
            rows.append(row)
        return rows

    def _of_the_tap(self) -> Iterator[tuple[str, Place, str]]:
        """What is wrong for every series of the tap: its function, or the arguments that pick the calls."""
        tap = self._tap
        if tap.target.module not in self._facts.modules and not self._lookup.exists(tap.target):
            yield ABSENT, tap.place, self._lookup.why_no_module(tap.target.module)
        elif not self._lookup.exists(tap.target):
            yield MISSING, tap.place, self._lookup.why_no_name(tap.target)
        else:
            wrong = self._path(tap.values) if tap.values is not None else None
            if wrong is not None:
                yield MISSING, tap.place, wrong
            for path, selector in tap.only_when:
                wrong = self._path(path) or self._never(path, selector)
                if wrong is not None:
                    yield MISSING, tap.place, wrong

    def _of(self, series: SeriesEntry, row: Row) -> Iterator[tuple[str, str]]:
        """What is wrong with one source of a series."""
        if series.keys:
            row.keys = sum(any(_may_be(key, written) for written in self._facts.keys) for key in series.keys)
            if not row.keys:
                key = series.keys[0].text
                yield MISSING, f"nothing writes the logger key {key!r}{did_you_mean(key, self._facts.keys)}"
        if series.value is not None:
            wrong = self._path(series.value)
            row.arguments += wrong is None and series.value.root == "args"
            if wrong is not None:
                yield MISSING, wrong
        for name, paths in series.attributes:
            mistakes = [text for text in map(self._path, paths or ()) if text is not None]
            if paths and len(mistakes) == len(paths):
                yield MISSING, f"{name}: {mistakes[0]}"

    def _path(self, path: ValuePath) -> str | None:
        return self._lookup.why_no_argument(path.name or "", [self._tap.target]) if path.root == "args" else None

    def _never(self, path: ValuePath, selector: Selector) -> str | None:
        """Why no call passes the condition; None where one does, or where that can't be told from the source."""
        if path.root != "args" or path.steps or path.reducers or not self._lookup.notes_calls_of(self._tap.target):
            return None
        wanted = [value for value in selector.values if isinstance(value, str) and value]
        if len(wanted) != len(selector.values):
            return None  # what a call leaves out has the default, which the facts don't hold
        opened = self._lookup.opened(self._tap.target, Selector(path.name or "", ()))
        if any(fits(value, label) for value in wanted for label in opened):
            return None
        value = "|".join(wanted)
        return f"no {self._tap.target.qualname}({path.name}={value}){did_you_mean(wanted[0], opened)}"


def _may_be(key: LoggerKey, written: str) -> bool:
    """Whether the source may write a key of a map. A text that it begins with something filled in could be any."""
    if written == key.text or (key.is_pattern and STAR not in written and key.match(written) is not None):
        return True
    before, star, _ = written.partition(STAR)
    return bool(star) and len(before) > 1 and fits(key.text, written)

"""Does each function that a map gives arguments to exist, and does it take them?"""

from __future__ import annotations

from autoinstr.check.facts import Facts
from autoinstr.check.lookup import Lookup
from autoinstr.check.outcome import ABSENT, MISSING, Finding, Row
from autoinstr.maps.model import ArgumentsEntry


def row_of(entry: ArgumentsEntry, facts: Facts) -> Row:
    """The row of one entry. A class without an `__init__` of its own, a dataclass, is not asked what it takes."""
    lookup, row, target = Lookup(facts), Row(entry), entry.target
    owner = target.qualname.removesuffix(".__init__")
    made = owner != target.qualname and not lookup.exists(target) and facts.find(target.module, owner) is not None
    wrong: list[str] = []
    state = MISSING
    if target.module not in facts.modules and not lookup.exists(target):
        wrong, state = [lookup.why_no_module(target.module)], ABSENT
    elif not made and not lookup.exists(target):
        wrong = [lookup.why_no_name(target)]
    elif not made:
        names = [name for name, _ in (*entry.set, *entry.add)]
        wrong = [text for text in (lookup.why_no_argument(name, [target]) for name in names) if text is not None]
        row.arguments = len(names)
    row.targets = 1
    if wrong:
        row.state = ABSENT if entry.optional else state
        row.findings = [Finding(entry.place, entry.name, text) for text in wrong]
    return row

"""The spans of all active maps, read at once: what the command line shows of them. A run reads maps lazily."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from autoinstr.maps.catalog import Catalog, layered
from autoinstr.maps.groups import GroupTable, Selection, explain_unknown, explain_unknown_span, select
from autoinstr.maps.metric_model import MetricTap, layered_taps
from autoinstr.maps.model import ArgumentsEntry, Mistake, Place, SpanEntry

LAYERS = ("built in", "of an installed package", "yours")


@dataclass(frozen=True)
class ActiveSpan:
    """One entry that holds, and what the groups and the layers say about it."""

    entry: SpanEntry
    package: str
    layer: str
    bucket: str | None
    group_about: str
    selected: bool
    counts_as: str | None
    """The selected group that an unselected span counts as, inside a scope that says so."""
    replaces: tuple[Place, ...]


@dataclass
class ActiveMaps:
    """Every span and tap that holds; `disabled` are spans that a map removes, with its file; `mistakes` are lines."""

    spans: list[ActiveSpan] = field(default_factory=list)
    taps: list[tuple[str, MetricTap]] = field(default_factory=list)
    """Each with the package that its map speaks of."""
    arguments: list[tuple[str, ArgumentsEntry]] = field(default_factory=list)
    """What calls are given, each with that package too."""
    disabled: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)


def read_active(span_maps: Iterable[Path], builtin_maps: str, span_groups: str) -> ActiveMaps:
    """Read the maps that three of the settings ask for, and those of installed packages. Never raises."""
    active = ActiveMaps()

    def on_mistake(mistake: Mistake) -> None:
        active.mistakes.append(str(mistake))

    catalog = Catalog(on_mistake)
    catalog.add_builtin(builtin_maps)
    catalog.add_installed()
    catalog.add_user(span_maps)
    read = catalog.maps_for()
    active.mistakes += map(str, catalog.lost_additions())
    table = catalog.table
    selection = select(span_groups, table)
    entries = layered(read)
    holding = {id(entry) for entry in entries}
    homes = {id(entry): (layer, span_map) for layer, span_map in read for entry in span_map.spans}
    replaced: dict[str, list[Place]] = {}
    for _, span_map in read:
        for entry in span_map.spans:
            if id(entry) not in holding:
                replaced.setdefault(entry.name, []).append(entry.place)
    moves = {one: other for entry in entries if entry.scope for one, other in entry.scope.groups}
    for entry in entries:
        layer, span_map = homes[id(entry)]
        group = table.groups[entry.group]
        bucket = group.bucket if entry.bucket is None else entry.bucket
        selected = selection.selects(entry.name, entry.group)
        moved = moves.get(entry.group)
        active.spans.append(
            ActiveSpan(
                entry,
                span_map.package,
                LAYERS[layer],
                None if bucket == "none" or not entry.opens else bucket,
                group.about,
                selected,
                moved if not selected and moved is not None and selection.selects_group(moved) else None,
                tuple(replaced.get(entry.name, ())) if entry.opens else (),
            )
        )
    names = {entry.name for entry in entries}
    packages = {span_map.name: span_map.package for _, span_map in read}
    active.taps = [(packages[tap.map], tap) for tap in layered_taps(read)]
    active.arguments = [(span_map.package, entry) for _, span_map in read for entry in span_map.arguments]
    active.disabled = {name: m.file for _, m in read for name in m.disabled if name not in names}
    active.mistakes += _unknown_names(selection, table, names | active.disabled.keys())
    return active


def _unknown_names(selection: Selection, table: GroupTable, names: set[str]) -> list[str]:
    """What a selection asks for and nobody has."""
    asked = sorted(selection.spans | selection.without_spans)
    return [f"AUTOINSTR_SPAN_GROUPS: {explain_unknown(name, table)}" for name in selection.unknown] + [
        f"AUTOINSTR_SPAN_GROUPS: {explain_unknown_span(name, names)}" for name in asked if name not in names
    ]

"""What happens when a package that maps speak of begins to be imported: its maps become patches.

Kept apart from the instrumentor, which every process of a run imports: the patcher, the wrappers and the YAML
reader are only imported by a process that has something to patch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autoinstr import resource
from autoinstr.maps import catalog, groups
from autoinstr.maps.values import MISSING, to_attribute
from autoinstr.patch.patcher import Patcher
from autoinstr.spans.opening import Tracers

if TYPE_CHECKING:
    from autoinstr.maps.model import SpanMap
    from autoinstr.metrics.active import ActiveMetrics
    from autoinstr.patch.handing import ArgumentPatcher
    from autoinstr.settings import Settings


class Activation:
    """The patcher of a process, and the packages whose maps it has taken up."""

    def __init__(self, settings: Settings, maps: catalog.Catalog, provider: Any) -> None:
        self.patcher = Patcher(
            maps.table,
            self._select(settings, maps),
            Tracers(),
            settings.capture_content,
            learn=lambda found: resource.learn(found, of_the_run=True),
        )
        self.metrics: ActiveMetrics | None = None
        self.arguments: ArgumentPatcher | None = None
        self._settings = settings
        self._maps = maps
        self._provider = provider

    def package(self, package: str) -> None:
        """Read the maps of `package` and let the patcher wait for its modules."""
        read = self._maps.maps_for(package)
        # a group of a map is known once the map is read
        self.patcher.use(self._maps.table, self._select(self._settings, self._maps))
        self.patcher.add(catalog.layered(read))
        service = next((m.service for _, m in reversed(read) if m.service), package)
        resource.learn_service_name(self._provider, service)
        resource.learn(process_attributes(m for _, m in read), self._provider)
        if self.metrics is not None:
            self.metrics.take_up(read)
        arguments = [entry for _, span_map in read for entry in span_map.arguments]
        if arguments:
            from autoinstr.patch.handing import ArgumentPatcher

            if self.arguments is None:
                self.arguments = ArgumentPatcher(self.patcher.ledger)
            selection = self._select(self._settings, self._maps)
            self.arguments.add(arguments, selection.selects_group, self._settings.switches)

    def undo(self) -> None:
        """Take back every patch."""
        if self.metrics is not None:
            self.metrics.stop()
        if self.arguments is not None:
            self.arguments.stop()
        self.patcher.undo()

    @staticmethod
    def _select(settings: Settings, maps: catalog.Catalog) -> groups.Selection:
        return groups.select(settings.span_groups, maps.table)


def process_attributes(maps: Iterable[SpanMap]) -> dict[str, Any]:
    """What maps say of every process that imports their package; of two, the last one counts."""
    found = {}
    for span_map in maps:
        for key, paths in span_map.resource:
            for path in paths:
                start = os.environ.get(path.name or "", MISSING) if path.root == "env" else path.constant
                value = to_attribute(path.walk(start))
                if value is not MISSING and value != "":
                    found[key] = value
                    break
    return found

"""Claims that wait for their modules to be imported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from autoinstr.patch.importing import when_imported

C = TypeVar("C")


class Waiting(Generic[C]):
    """The claims on each module. `patch` gets a module and its name when it has been imported, and after a reload."""

    def __init__(self, patch: Callable[[Any, str], None]) -> None:
        self._patch = patch
        self._claims: dict[str, list[C]] = {}
        self._cancel: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def add(self, claims: Iterable[tuple[str, C]]) -> None:
        """Take up claims, each with the name of its module. One that is imported already is handed over now."""
        new: dict[str, None] = {}
        with self._lock:
            for module, claim in claims:
                self._claims.setdefault(module, []).append(claim)
                new[module] = None
        for module in new:
            cancel = when_imported(module, lambda loaded, name=module: self._patch(loaded, name))  # type: ignore[misc]
            with self._lock:
                self._cancel.append(cancel)

    def on(self, module: str) -> list[C]:
        """The claims on a module."""
        with self._lock:
            return list(self._claims.get(module, ()))

    def stop(self) -> list[C]:
        """Wait for nothing from now on. Returns all claims there were."""
        with self._lock:
            cancel, self._cancel = self._cancel, []
            claims = [claim for listed in self._claims.values() for claim in listed]
            self._claims.clear()
        for stop in cancel:
            stop()
        return claims

"""Batches of prompts, shuffled with the global `random`: a tracer that draws from it changes the run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any


class StatefulDataLoader:
    """Stand-in for torchdata's class of this name."""

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, collate_fn: Callable[[list], Any]) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._collate = collate_fn
        self._batches_served = 0

    def __len__(self) -> int:
        return len(self._dataset) // self._batch_size

    def __iter__(self) -> Iterator[Any]:
        order = list(range(len(self._dataset)))
        if self._shuffle:
            random.shuffle(order)
        for start in range(0, len(self) * self._batch_size, self._batch_size):
            self._batches_served += 1
            yield self._collate([self._dataset[i] for i in order[start : start + self._batch_size]])

    def state_dict(self) -> dict[str, int]:
        return {"batches_served": self._batches_served}


class CyclingDataLoader:
    """Starts again when the data ends: the collector of an asynchronous run must not run dry."""

    def __init__(self, dataloader: StatefulDataLoader) -> None:
        self._dataloader = dataloader

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._dataloader

    def state_dict(self) -> dict[str, Any]:
        return self._dataloader.state_dict()

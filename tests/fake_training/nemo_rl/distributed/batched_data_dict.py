"""A dict whose values all have one entry per sample: numpy arrays or lists."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class BatchedDataDict(UserDict):
    @property
    def size(self) -> int:
        return len(next(iter(self.data.values())))

    @classmethod
    def from_batches(
        cls,
        batches: Sequence[Mapping[Any, Any]],
        pad_value_dict: dict[str, int | float] | None = None,
        *,
        allow_missing_packed_tensors: bool = False,
    ) -> BatchedDataDict:
        merged = cls()
        for key, first in batches[0].items():
            columns = [batch[key] for batch in batches]
            if isinstance(first, np.ndarray):
                merged[key] = np.concatenate(columns)
            else:
                merged[key] = [item for column in columns for item in column]
        return merged

    def select_indices(self, indices: Sequence[int]) -> BatchedDataDict:
        return BatchedDataDict(
            {
                key: value[list(indices)] if isinstance(value, np.ndarray) else [value[i] for i in indices]
                for key, value in self.data.items()
            }
        )

    def slice(self, start: int, end: int) -> BatchedDataDict:
        return self.select_indices(range(start, min(end, self.size)))

    def repeat_interleave(self, num_repeats: int, *, share_immutable_media: bool = False) -> BatchedDataDict:
        repeated = self.select_indices([i for i in range(self.size) for _ in range(num_repeats)])
        # Each rollout appends to its own log.
        repeated["message_log"] = [list(log) for log in repeated["message_log"]]
        return repeated

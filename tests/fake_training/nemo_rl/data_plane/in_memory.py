"""Columns of samples in a dict of this process. NeMo RL keeps them in a TransferQueue, over Ray."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.distributed.batched_data_dict import BatchedDataDict


class InMemoryDataPlaneClient:
    # Shared: the policy and the rollout actor each build a client of the same store.
    _partitions: dict[str, dict[str, dict[str, Any]]] = {}

    def register_partition(self, partition_id: str, *args: Any, **kwargs: Any) -> None:
        self._partitions.setdefault(partition_id, {})

    def put_samples(
        self, sample_ids: list[str], partition_id: str, fields: dict[str, Any] | None = None, tags: Any = None
    ) -> None:
        for position, sample_id in enumerate(sample_ids):
            row = self._partitions[partition_id].setdefault(sample_id, {})
            row.update({name: column[position] for name, column in (fields or {}).items()})

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> BatchedDataDict:
        rows = [self._partitions[partition_id][sample_id] for sample_id in sample_ids]
        return BatchedDataDict({name: np.array([row[name] for row in rows]) for name in select_fields})

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        rows = self._partitions[partition_id]
        for sample_id in list(rows) if sample_ids is None else sample_ids:
            rows.pop(sample_id, None)

    def close(self) -> None:
        self._partitions.clear()

"""Columns of samples in a dict of this process. NeMo RL keeps them in a TransferQueue, over Ray."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_rl.data_plane.interfaces import KVBatchMeta
from nemo_rl.distributed.batched_data_dict import BatchedDataDict


class TQDataPlaneClient:
    # Shared: the policy and the rollout actor each build a client of the same store.
    _partitions: dict[str, dict[str, dict[str, Any]]] = {}
    _claimed: set[tuple[str, str]] = set()

    def __init__(self, cfg: dict[str, Any], *, bootstrap: bool = True) -> None:
        self.cfg = cfg

    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None:
        self._partitions.setdefault(partition_id, {})

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: list[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        free = [i for i in self._partitions[partition_id] if (task_name, i) not in self._claimed][:batch_size]
        self._claimed.update((task_name, sample_id) for sample_id in free)
        return KVBatchMeta(partition_id, task_name, free, fields=required_fields)

    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> BatchedDataDict:
        return self._read(meta.sample_ids, meta.partition_id, select_fields or meta.fields or [])

    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        return all((task, i) in self._claimed for task in task_names for i in self._partitions[partition_id])

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: dict[str, Any] | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        for position, sample_id in enumerate(sample_ids):
            row = self._partitions[partition_id].setdefault(sample_id, {})
            row.update({name: column[position] for name, column in (fields or {}).items()})

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> BatchedDataDict:
        return self._read(sample_ids, partition_id, select_fields)

    def _read(self, sample_ids: list[str], partition_id: str, fields: list[str]) -> BatchedDataDict:
        rows = [self._partitions[partition_id][sample_id] for sample_id in sample_ids]
        return BatchedDataDict({name: np.array([row[name] for row in rows]) for name in fields})

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        rows = self._partitions[partition_id]
        for sample_id in list(rows) if sample_ids is None else sample_ids:
            rows.pop(sample_id, None)

    def close(self) -> None:
        self._partitions.clear()
        self._claimed.clear()

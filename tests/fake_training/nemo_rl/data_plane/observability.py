"""Counts and times what goes through the data plane."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np


class MetricsDataPlaneClient:
    """Around another client: each operation becomes one event."""

    def __init__(self, inner: Any, on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._inner = inner
        self._on_event = on_event or (lambda event: None)

    def _run(
        self,
        op: str,
        partition_id: str,
        fn: Callable[[], Any],
        *,
        n_keys: int = 0,
        n_bytes: int = 0,
    ) -> Any:
        started = monotonic()
        status = "error"
        try:
            result = fn()
            status = "ok"
            return result
        except TimeoutError:
            status = "timeout"
            raise
        finally:
            self._emit(op, partition_id, n_keys, n_bytes, started, status)

    def _emit(self, op: str, partition_id: str, n_keys: int, n_bytes: int, t0: float, status: str) -> None:
        self._on_event(
            {
                "op": op,
                "partition_id": partition_id,
                "n_keys": n_keys,
                "n_bytes": n_bytes,
                "seconds": monotonic() - t0,
                "status": status,
            }
        )

    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None:
        self._run(
            "register",
            partition_id,
            lambda: self._inner.register_partition(
                partition_id, fields, num_samples, consumer_tasks, grpo_group_size, enums
            ),
        )

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: dict[str, Any] | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        self._run(
            "put",
            partition_id,
            lambda: self._inner.put_samples(sample_ids, partition_id, fields=fields, tags=tags),
            n_keys=len(sample_ids),
            n_bytes=sum(np.asarray(column).nbytes for column in (fields or {}).values()),
        )

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        return self._run(
            "get",
            partition_id,
            lambda: self._inner.get_samples(sample_ids, partition_id, select_fields),
            n_keys=len(sample_ids),
        )

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        self._run(
            "clear",
            partition_id,
            lambda: self._inner.clear_samples(sample_ids, partition_id),
            n_keys=len(sample_ids or ()),
        )

    def close(self) -> None:
        self._run("close", "", self._inner.close)

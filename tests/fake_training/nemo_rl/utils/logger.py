"""Where metrics go: kept in memory, and written as JSON lines when the config asks for it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np


def _plain(value: Any) -> Any:
    """numpy scalars and arrays as JSON knows them; for `json.dumps(default=...)`."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


class Logger:
    """`history` holds one entry per call of `log_metrics`, in order."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.base_log_dir = cfg["log_dir"]
        self.history: list[dict[str, Any]] = []
        self._jsonl = bool(cfg.get("jsonl_enabled", False))
        if self._jsonl:
            os.makedirs(self.base_log_dir, exist_ok=True)

    def log_metrics(
        self,
        metrics: dict[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        entry = {"step": step, "prefix": prefix, "step_finished": step_finished, "metrics": dict(metrics)}
        self.history.append(entry)
        self._append("metrics.jsonl", entry)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self._append("hyperparams.jsonl", dict(params))

    def log_batched_dict_as_jsonl(self, to_log: Mapping[str, Any], filename: str) -> None:
        self._append(filename, dict(to_log))

    def finish(self) -> None:
        pass

    def _append(self, filename: str, entry: dict[str, Any]) -> None:
        if self._jsonl:
            with open(os.path.join(self.base_log_dir, filename), "a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry, default=_plain) + "\n")


def get_next_experiment_dir(base_log_dir: str) -> str:
    """`exp_001`, `exp_002`, ... below `base_log_dir`: one more than the highest there."""
    os.makedirs(base_log_dir, exist_ok=True)
    matches = [re.match(r"exp_(\d+)$", name) for name in os.listdir(base_log_dir)]
    latest = max((int(match[1]) for match in matches if match), default=0)
    path = os.path.join(base_log_dir, f"exp_{latest + 1:03d}")
    os.makedirs(path)
    return path


def log_container_init_timing() -> None:
    """NeMo RL reports here how long the container took to start; the stand-in has none."""

"""What an environment takes and gives back."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import numpy as np


class EnvironmentReturn(NamedTuple):
    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[Any]
    rewards: np.ndarray
    terminateds: np.ndarray
    answers: list[str | None] | None


class EnvironmentInterface(abc.ABC):
    @abc.abstractmethod
    def step(self, message_log_batch: list[list[dict]], metadata: list[Any]) -> EnvironmentReturn: ...

    @abc.abstractmethod
    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]: ...

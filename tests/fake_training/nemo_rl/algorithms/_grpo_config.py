"""The config of a GRPO run. NeMo RL's section and key names; plain dataclasses in place of pydantic."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_rl.algorithms.loss import ClippedPGLossConfig


@dataclass
class AsyncGRPOConfig:
    enabled: bool = False
    max_trajectory_age_steps: int = 1
    max_generation_failures: int = 0
    in_flight_weight_updates: bool = False
    recompute_kv_cache_after_weight_updates: bool = False


@dataclass
class GRPOConfig:
    num_prompts_per_step: int = 32
    num_generations_per_prompt: int = 16
    max_num_epochs: int = 1
    max_num_steps: int = 1000000
    max_rollout_turns: int = 1
    use_leave_one_out_baseline: bool = True
    val_period: int = 10
    val_start_at: int = -1
    val_batch_size: int | None = 256
    val_at_start: bool = False
    val_at_end: bool = False
    max_val_samples: int | None = 256
    stop_at_validation_metric: str | None = None
    stop_at_validation_threshold: float | None = None
    skip_reference_policy_logprobs_calculation: bool = False
    seed: int = 42
    async_grpo: AsyncGRPOConfig = field(default_factory=AsyncGRPOConfig)
    overlong_filtering: bool = False
    use_dynamic_sampling: bool = False
    dynamic_sampling_max_gen_batches: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.async_grpo, dict):
            self.async_grpo = AsyncGRPOConfig(**self.async_grpo)


@dataclass
class MasterConfig:
    policy: dict[str, Any]
    loss_fn: ClippedPGLossConfig
    env: dict[str, Any]
    data: dict[str, Any]
    grpo: GRPOConfig
    logger: dict[str, Any]
    cluster: dict[str, Any]
    checkpointing: dict[str, Any]
    data_plane: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.grpo, dict):
            self.grpo = GRPOConfig(**self.grpo)
        if isinstance(self.loss_fn, dict):
            self.loss_fn = ClippedPGLossConfig(**self.loss_fn)

    def model_dump(self) -> dict[str, Any]:
        return asdict(self)

from dataclasses import dataclass


@dataclass
class ModelConfig:
    model: str


@dataclass
class ObservabilityConfig:
    otlp_traces_endpoint: str | None = None


@dataclass
class EngineArgs:
    model: str = "toy"
    seed: int = 0
    otlp_traces_endpoint: str | None = None


@dataclass
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False

"""How long the phases of the stand-in take.

A table lookup takes microseconds; a phase that nobody can see in a trace is of no use. So each phase
sleeps about as long as its place in a real step would suggest, scaled down to milliseconds.
"""

from __future__ import annotations

import os
import time

SECONDS = {
    "ray_init": 0.05,
    "tokenizer": 0.02,
    "dataset": 0.02,
    "policy_init": 0.20,
    "vllm_init": 0.25,
    "generation": 0.030,
    "environment": 0.004,
    "logprobs": 0.010,
    "logprob_prep": 0.002,
    "training": 0.020,
    "training_prep": 0.002,
    "weight_transfer": 0.006,
    "checkpoint": 0.015,
    # How often an empty replay buffer is asked again.
    "poll": 0.010,
}


def seconds(phase: str) -> float:
    """Seconds that `phase` should take. `FAKE_TRAINING_PACE` scales all of them; 0 skips the sleeping."""
    return SECONDS[phase] * float(os.environ.get("FAKE_TRAINING_PACE", "1"))


def work(phase: str) -> None:
    time.sleep(seconds(phase))

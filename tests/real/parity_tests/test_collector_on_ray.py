"""A test for `parity.py`: the real collector and buffer on real Ray, which no test of NeMo RL's own has collect."""

from __future__ import annotations

import sys
import types

import ray
from nemo_rl_async_trace import DRIVING


def test_it_collects_for_two_weight_versions() -> None:
    driving = types.ModuleType("driving")
    sys.modules["driving"] = driving
    exec(DRIVING, driving.__dict__)
    ray.cloudpickle.register_pickle_by_value(driving)
    try:
        driving.main()
    finally:
        ray.shutdown()

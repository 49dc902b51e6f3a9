"""What the launchers of NeMo RL do before they set anything up."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whole_trees import STAND_IN


def toy_config(folder: Path, backend: str = "dtensor_v2", **sections: Any) -> SimpleNamespace:
    """The stand-in's own config, with `sections` added. Two samples a batch, a checkpoint at step 2."""
    config = SimpleNamespace(**json.loads((STAND_IN / "configs" / "grpo_toy.json").read_text(encoding="utf-8")))
    config.policy.update(train_global_batch_size=2, train_micro_batch_size=2)
    config.policy["dtensor_cfg"]["_v2"] = backend == "dtensor_v2"
    config.policy["megatron_cfg"]["enabled"] = backend == "megatron"
    config.checkpointing.update(checkpoint_dir=str(folder / "checkpoints"), save_period=2)
    config.logger.update(log_dir=str(folder), jsonl_enabled=False)
    config.data.update(train={"num_samples": 4}, validation={"num_samples": 2})
    for name, section in sections.items():
        setattr(config, name, section)
    return config


def begin(folder: Path, backend: str = "dtensor_v2", **sections: Any) -> SimpleNamespace:
    """What a launcher does first: it reads its config, and starts Ray."""
    from nemo_rl.distributed.virtual_cluster import init_ray
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

    register_omegaconf_resolvers()
    load_config(STAND_IN / "configs" / "grpo_toy.json")
    init_ray()
    return toy_config(folder, backend, **sections)


def supervised(**more: Any) -> SimpleNamespace:
    """A section of SFT, DPO or RM: two steps, validation before the first and after the second."""
    return SimpleNamespace(
        seed=1,
        max_num_epochs=1,
        max_num_steps=2,
        val_at_start=True,
        val_at_end=False,
        val_period=2,
        val_batches=1,
        val_global_batch_size=2,
        val_micro_batch_size=2,
        **more,
    )


def take_turns(loop: Any, late_target: int | None = None) -> None:
    """Makes an asynchronous run the same every time: the collector begins when the loop waits for it, and does one
    batch after the other. `loop` is the module that waits.

    What is generated for step `late_target` begins before the first step does, and is there when that step has
    asked for it once.
    """
    from nemo_rl.algorithms.async_utils import AsyncTrajectoryCollector

    driver_waits, late_has_begun, late_is_wanted = threading.Event(), threading.Event(), threading.Event()
    added = threading.Event()
    collectors: list[Any] = []
    add = AsyncTrajectoryCollector._add

    def wait_for_permission(collector: Any) -> None:
        collectors[:] = [collector]
        driver_waits.wait()
        collector.wait_for_pending_generations()

    async def add_late(collector: Any, trajectory: Any, weight_version: int, target_weight_version: int) -> None:
        if target_weight_version == late_target:
            late_has_begun.set()
            late_is_wanted.wait()
        await add(collector, trajectory, weight_version, target_weight_version)
        added.set()

    def sleep(seconds: float) -> None:
        driver_waits.set()
        if late_target is None:
            added.wait(300)
            added.clear()  # and the driver looks once more
        elif not late_has_begun.is_set():
            late_has_begun.wait(300)
        else:
            late_is_wanted.set()
            collectors[0].wait_for_pending_generations()

    AsyncTrajectoryCollector._wait_for_permission = wait_for_permission
    AsyncTrajectoryCollector._add = add_late
    loop.time = SimpleNamespace(sleep=sleep, perf_counter=time.perf_counter)

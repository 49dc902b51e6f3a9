"""Train with GRPO, as a user of NeMo RL would: this launcher knows nothing of tracing.

    python examples/run_grpo.py
    python examples/run_grpo.py --mode async --steps 40 --seed 1 grpo.val_period=10

Anything after the options is an override of the config, in hydra's `section.key=value`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

STAND_IN = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "tests", "fake_training")
sys.path.insert(0, STAND_IN)  # the stand-in for an installed NeMo RL: no GPU, no Ray, the same names

from nemo_rl.algorithms.grpo import MasterConfig, grpo_train, setup, shutdown_environments
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.data.utils import setup_response_data
from nemo_rl.distributed.virtual_cluster import init_ray
from nemo_rl.models.generation import configure_generation_config
from nemo_rl.utils.config import (
    load_config,
    parse_hydra_overrides,
    register_omegaconf_resolvers,
)
from nemo_rl.utils.logger import get_next_experiment_dir, log_container_init_timing
from nemo_rl.utils.timer import Timer

MODES = {
    "sync": [],
    "async": [
        "grpo.async_grpo.enabled=true",
        "grpo.async_grpo.in_flight_weight_updates=true",
        "policy.generation.colocated.enabled=false",
        "policy.generation.vllm_cfg.async_engine=true",
    ],
    "sync_tq": ["data_plane.enabled=true"],
}


class ProgressDataloader:
    """A data loader that moves a progress bar; everything else is the loader's own."""

    def __init__(self, dataloader: Any, bar: tqdm) -> None:
        self._dataloader = dataloader
        self._bar = bar

    def __iter__(self) -> Iterator[Any]:
        for batch in self._dataloader:
            try:
                yield batch
            finally:
                # An asynchronous collector fetches more batches than there are steps.
                if self._bar.n < self._bar.total:
                    self._bar.update()

    def __len__(self) -> int:
        return len(self._dataloader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataloader, name)


def parse_args() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=None, help="path of a JSON config (default: the toy task's)")
    parser.add_argument("--mode", choices=MODES, default="sync", help="which of the three GRPO loops")
    parser.add_argument("--steps", type=int, default=20, help="how many training steps (default: 20)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the run (default: the config's)")
    return parser.parse_known_args()


def _select_trainer(master_config: MasterConfig) -> Any:
    """The synchronous loop: over the data plane when that is switched on."""
    if (master_config.data_plane or {}).get("enabled", False):
        from nemo_rl.algorithms.grpo_sync import grpo_train_sync

        return grpo_train_sync
    return grpo_train


def main(scratch: str) -> None:
    main_start = time.perf_counter()
    log_container_init_timing()
    rl_init_timer = Timer(context={"worker": "driver"})
    register_omegaconf_resolvers()
    args, overrides = parse_args()

    with rl_init_timer.time("config"):
        config_dict = load_config(args.config or os.path.join(STAND_IN, "configs", "grpo_toy.json"))
        options = [*MODES[args.mode], f"grpo.max_num_steps={args.steps}"]
        if args.seed is not None:
            options.append(f"grpo.seed={args.seed}")
        config = MasterConfig(**parse_hydra_overrides(config_dict, [*options, *overrides]))
    log_dir = config.logger["log_dir"] or os.path.join(scratch, "logs")
    config.logger["log_dir"] = get_next_experiment_dir(log_dir)
    if config.checkpointing["checkpoint_dir"] is None:
        config.checkpointing["checkpoint_dir"] = os.path.join(scratch, "checkpoints")

    with rl_init_timer.time("ray_connect"):
        init_ray()
    with rl_init_timer.time("tokenizer"):
        tokenizer = get_tokenizer(config.policy["tokenizer"])
        config.policy["generation"] = configure_generation_config(
            config.policy["generation"],
            tokenizer,
            has_refit_draft_weights=bool(config.policy["draft"]["enabled"]),
        )
    with rl_init_timer.time("data"):
        dataset, val_dataset, task_to_env, val_task_to_env = setup_response_data(tokenizer, config.data, config.env)

    policy_factory = None
    if (config.data_plane or {}).get("enabled", False):
        from nemo_rl.models.policy.tq_policy import TQPolicy

        def policy_factory(**kwargs: Any) -> TQPolicy:
            return TQPolicy(**kwargs, dp_cfg=config.data_plane)

    with rl_init_timer.time("setup"):
        (
            policy,
            policy_generation,
            _nemo_gym,
            _cluster,
            dataloader,
            val_dataloader,
            loss_fn,
            logger,
            checkpointer,
            grpo_state,
            master_config,
            teacher_worker_groups,
            alias_to_group_alias,
        ) = setup(config, tokenizer, dataset, val_dataset, policy_factory=policy_factory)

    rl_init_timer.record("total", time.perf_counter() - main_start)
    for label, seconds in rl_init_timer.get_timing_metrics(reduction_op="sum").items():
        print(f"start-up: {label} {seconds:.2f} s")

    bar = tqdm(total=config.grpo.max_num_steps, desc="GRPO", unit="step")
    try:
        if config.grpo.async_grpo.enabled:
            if config.grpo.use_dynamic_sampling:
                raise NotImplementedError("grpo.use_dynamic_sampling does not work with async GRPO")
            from nemo_rl.algorithms.grpo import async_grpo_train

            async_grpo_train(
                policy=policy,
                policy_generation=policy_generation,
                dataloader=ProgressDataloader(dataloader, bar),
                val_dataloader=val_dataloader,
                tokenizer=tokenizer,
                loss_fn=loss_fn,
                task_to_env=task_to_env,
                val_task_to_env=val_task_to_env,
                logger=logger,
                checkpointer=checkpointer,
                grpo_save_state=grpo_state,
                master_config=master_config,
                max_trajectory_age_steps=config.grpo.async_grpo.max_trajectory_age_steps,
                teacher_worker_groups=teacher_worker_groups,
                alias_to_group_alias=alias_to_group_alias,
            )
        else:
            trainer = _select_trainer(master_config)
            # Leaving the block waits for the last checkpoint to be renamed.
            with checkpointer:
                trainer(
                    policy,
                    policy_generation,
                    ProgressDataloader(dataloader, bar),
                    val_dataloader,
                    tokenizer,
                    loss_fn,
                    task_to_env,
                    val_task_to_env,
                    logger,
                    checkpointer,
                    grpo_state,
                    master_config,
                )
    finally:
        bar.close()
        shutdown_environments(task_to_env, val_task_to_env)
        policy_generation.shutdown()

    rewards = [entry["metrics"]["reward"] for entry in logger.history if "reward" in entry["metrics"]]
    print(f"steps: {len(rewards)}")
    print(f"first reward: {rewards[0]:.4f}")
    print(f"final reward: {rewards[-1]:.4f}")
    # Whoever draws from the run's random numbers changes this line.
    print(f"random stream: {random.random():.12f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="run_grpo_") as scratch_directory:
        main(scratch_directory)

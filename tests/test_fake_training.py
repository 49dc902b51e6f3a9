"""The stand-in for NeMo RL: it learns, it repeats itself, and its timer blocks are NeMo RL's."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STAND_IN = Path(__file__).parent / "fake_training"
sys.path.insert(0, str(STAND_IN))

import signature_snapshot  # noqa: E402
from nemo_rl import _pace  # noqa: E402
from nemo_rl.algorithms import grpo, grpo_sync  # noqa: E402
from nemo_rl.algorithms.utils import get_tokenizer  # noqa: E402
from nemo_rl.data.utils import setup_response_data  # noqa: E402
from nemo_rl.models.generation import configure_generation_config  # noqa: E402
from nemo_rl.models.policy.tq_policy import TQPolicy  # noqa: E402
from nemo_rl.utils.config import load_config, parse_hydra_overrides  # noqa: E402
from nemo_rl.utils.timer import Timer, convert_to_seconds  # noqa: E402

LAUNCHER = Path(__file__).parent.parent / "examples" / "run_grpo.py"
SIGNATURES = json.loads((STAND_IN / "signatures.json").read_text(encoding="utf-8"))
# Read before any run: on CPython 3.11 garbage collected while `ast.parse` works can make that fail.
STAND_IN_SIGNATURES = {target: signature_snapshot.stand_in(target) for target in SIGNATURES}
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

SYNC_STEP = """
total_step_time
  data_processing
  prepare_for_generation/total
    prepare_for_generation/transfer_and_update_weights
  generation
  reward_calculation
  data_processing
  logprob_inference_prep
  policy_and_reference_logprobs
    get_logprobs/shard_data
    get_logprobs/submit_logprob_futures
    get_reference_policy_logprobs/shard_data
    get_reference_policy_logprobs/submit_reference_policy_logprob_futures
  advantage_calculation
  training_prep
  policy_training
    policy_training/sharding_data
    policy_training/submit_training_futures
"""
SYNC_TQ_STEP = """
total_step_time
  data_processing
  prepare_for_generation/total
    prepare_for_generation/transfer_and_update_weights
  generation
  reward_calculation
  logprob_inference_prep
  policy_and_reference_logprobs
    get_logprobs/shard_meta
    get_logprobs/submit_futures
    get_reference_policy_logprobs/shard_meta
    get_reference_policy_logprobs/submit_futures
  advantage_calculation
  training_prep
  policy_training
    policy_training/shard_meta
    policy_training/submit_training_futures
"""
ASYNC_STEP = """
total_step_time
  exposed_generation
  reward_calculation
  data_processing
    overlong_filter
    mask_sample_filter
  logprob_inference_prep
  policy_and_reference_logprobs
    get_logprobs/shard_data
    get_logprobs/submit_logprob_futures
    get_reference_policy_logprobs/shard_data
    get_reference_policy_logprobs/submit_reference_policy_logprob_futures
  advantage_calculation
  training_prep
  policy_training
    policy_training/sharding_data
    policy_training/submit_training_futures
  idle/refit_bubble
    exposed_generation
    weight_sync
"""
STARVED_STEP = """
total_step_time
  exposed_generation
    idle/buffer_starvation
"""
VALIDATION = "  total_validation_time\n"
ASYNC_VALIDATION = "  idle/validation\n    total_validation_time\n"
CHECKPOINT = "  checkpointing\n"


class Run:
    """One finished run, and what is worth asking of it."""

    def __init__(self, logger: Any, save_state: Any, checkpoints: Path) -> None:
        self.history = logger.history
        self.save_state = save_state
        self.checkpoints = sorted(path.name for path in checkpoints.iterdir()) if checkpoints.exists() else []
        self.random_stream = random.random()

    def series(self, name: str, prefix: str = "train") -> list[float]:
        entries = [entry["metrics"] for entry in self.history if entry["prefix"] == prefix]
        return [metrics[name] for metrics in entries if name in metrics]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`train(mode, *overrides)`: a whole run in this process, ten times as fast as the launcher's."""
    monkeypatch.setenv("FAKE_TRAINING_PACE", "0.1")

    def train(mode: str, *overrides: str) -> Run:
        number = len(list(tmp_path.iterdir()))
        config_dict = load_config(STAND_IN / "configs" / "grpo_toy.json")
        config = grpo.MasterConfig(**parse_hydra_overrides(config_dict, [*MODES[mode], *overrides]))
        config.logger["log_dir"] = str(tmp_path / f"run{number}" / "logs")
        checkpoints = tmp_path / f"run{number}" / "checkpoints"
        config.checkpointing["checkpoint_dir"] = str(checkpoints)
        tokenizer = get_tokenizer(config.policy["tokenizer"])
        configure_generation_config(config.policy["generation"], tokenizer)
        dataset, val_dataset, environments, val_environments = setup_response_data(tokenizer, config.data, config.env)

        def tq_policy(**kwargs: Any) -> TQPolicy:
            return TQPolicy(**kwargs, dp_cfg=config.data_plane)

        policy, generation, _, _, dataloader, val_dataloader, loss_fn, logger, checkpointer, state, *_ = grpo.setup(
            config,
            tokenizer,
            dataset,
            val_dataset,
            policy_factory=tq_policy if mode == "sync_tq" else None,
        )
        loops = {
            "sync": grpo.grpo_train,
            "async": grpo.async_grpo_train,
            "sync_tq": grpo_sync.grpo_train_sync,
        }
        loops[mode](
            policy,
            generation,
            dataloader,
            val_dataloader,
            tokenizer,
            loss_fn,
            environments,
            val_environments,
            logger,
            checkpointer,
            state,
            config,
        )
        return Run(logger, state, checkpoints)

    return train


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The driver's timer blocks as they open, indented by how deep they are nested; one text per step."""
    steps: list[str] = []
    open_labels: list[str] = []
    driver = threading.get_ident()
    start, stop = Timer.start, Timer.stop

    def recording_start(self: Timer, label: str, should_log: bool = True) -> None:
        if threading.get_ident() == driver:
            if label in ("total_step_time", "init/total"):
                steps.append("\n")
            steps[-1] += "  " * len(open_labels) + label + "\n"
            open_labels.append(label)
        start(self, label, should_log)

    def recording_stop(self: Timer, label: str, should_log: bool = True) -> float:
        if threading.get_ident() == driver:
            assert open_labels.pop() == label
        return stop(self, label, should_log)

    monkeypatch.setattr(Timer, "start", recording_start)
    monkeypatch.setattr(Timer, "stop", recording_stop)
    return steps


@pytest.mark.parametrize("mode", MODES)
def test_the_reward_rises(train, mode: str) -> None:
    run = train(mode)
    rewards = run.series("reward")
    assert len(rewards) == 20
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.9
    assert len(run.series("accuracy", prefix="validation")) == 4
    assert run.checkpoints == ["step_10", "step_20"]
    finished = [entry["step"] for entry in run.history if entry["step_finished"]]
    assert finished == list(range(1, 21))


@pytest.mark.parametrize("mode", ["sync", "sync_tq"])
def test_the_same_seed_gives_the_same_run(train, mode: str) -> None:
    first, second, other = train(mode), train(mode), train(mode, "grpo.seed=7")
    assert first.series("loss") == second.series("loss")
    assert first.series("accuracy", prefix="validation") == second.series("accuracy", prefix="validation")
    assert first.random_stream == second.random_stream
    assert first.series("loss") != other.series("loss")
    assert first.random_stream != other.random_stream


def test_a_number_drawn_from_random_by_someone_else_is_noticed(train, monkeypatch) -> None:
    undisturbed = train("sync")
    stop = Timer.stop

    def drawing_stop(self: Timer, label: str, should_log: bool = True) -> float:
        random.random()
        return stop(self, label, should_log)

    monkeypatch.setattr(Timer, "stop", drawing_stop)
    disturbed = train("sync")
    assert disturbed.random_stream != undisturbed.random_stream
    # The second epoch is shuffled after the draws, so training itself takes another course.
    assert disturbed.series("loss") != undisturbed.series("loss")


@pytest.mark.parametrize(("mode", "step"), [("sync", SYNC_STEP), ("sync_tq", SYNC_TQ_STEP)])
def test_blocks_of_a_synchronous_run(train, blocks: list[str], mode: str, step: str) -> None:
    train(mode, "grpo.max_num_steps=4", "grpo.val_period=2", "checkpointing.save_period=3")
    after_validation = step.replace("    prepare_for_generation/transfer_and_update_weights\n", "")
    assert blocks == [
        step,
        step + VALIDATION,
        # Validation has brought the new weights to the engine already.
        after_validation + CHECKPOINT,
        step + VALIDATION + CHECKPOINT,
    ]


def test_blocks_of_an_asynchronous_run(train, blocks: list[str]) -> None:
    train("async", "grpo.max_num_steps=4", "grpo.val_period=2", "checkpointing.save_period=3")
    assert blocks[0] == "\ninit/total\n"
    assert [step for step in blocks[1:] if step != STARVED_STEP] == [
        ASYNC_STEP,
        ASYNC_STEP + ASYNC_VALIDATION,
        ASYNC_STEP + CHECKPOINT,
        ASYNC_STEP + ASYNC_VALIDATION + CHECKPOINT,
    ]


def test_slow_generation_starves_asynchronous_training(train, blocks: list[str], monkeypatch) -> None:
    monkeypatch.setitem(_pace.SECONDS, "generation", 1.0)
    run = train("async", "grpo.max_num_steps=4")
    assert STARVED_STEP in blocks
    assert len(run.series("reward")) == 4
    assert sum(run.series("efficiency/idle/buffer_starvation_s", prefix="")) > 0


def test_an_asynchronous_run_leaves_no_thread(train) -> None:
    before = threading.active_count()
    run = train("async", "grpo.max_num_steps=3", "grpo.async_grpo.in_flight_weight_updates=false")
    assert len(run.series("reward")) == 3
    assert threading.active_count() == before


def test_a_failed_rollout_stops_an_asynchronous_run(train, monkeypatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("the environment is gone")

    monkeypatch.setattr("nemo_rl.environments.math_environment.MathEnvironment.step", fail)
    with pytest.raises(RuntimeError, match="the environment is gone"):
        train("async")


def test_dynamic_sampling_continues_inside_the_step(train, blocks: list[str]) -> None:
    run = train("sync", "grpo.max_num_steps=10", "grpo.val_period=0", "grpo.use_dynamic_sampling=true")
    assert len(run.series("reward")) == 10
    attempts = [step for step in blocks if step.endswith("  reward_calculation\n    dynamic_sampling\n")]
    assert len(blocks) - len(attempts) == 10
    assert attempts


@pytest.mark.parametrize("mode", MODES)
def test_an_early_stop_saves_and_returns(train, mode: str) -> None:
    run = train(
        mode,
        "grpo.stop_at_validation_metric=accuracy",
        "grpo.stop_at_validation_threshold=0.5",
        "checkpointing.save_period=1000",
    )
    steps = len(run.series("reward"))
    assert steps in (5, 10, 15)
    assert run.checkpoints == [f"step_{steps}"]


def test_a_run_is_over_when_its_epochs_are(train) -> None:
    run = train("sync", "grpo.max_num_epochs=2", "data.train.num_samples=30")
    assert len(run.series("reward")) == 6
    assert (run.save_state.current_epoch, run.save_state.current_step) == (1, 3)


def test_time_is_up(train) -> None:
    run = train("sync", "checkpointing.checkpoint_must_save_by=00:00:00:00")
    assert run.checkpoints == ["step_1"]
    assert convert_to_seconds("01:02:03:04") == 93784


@pytest.mark.parametrize("target", SIGNATURES)
def test_signature_is_that_of_nemo_rl(target: str) -> None:
    assert STAND_IN_SIGNATURES[target] == SIGNATURES[target]


def _launch(*arguments: str) -> list[str]:
    environment = {**os.environ, "FAKE_TRAINING_PACE": "0.1"}
    result = subprocess.run(
        [sys.executable, str(LAUNCHER), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "5/5" in result.stderr  # the progress bar
    return [line for line in result.stdout.splitlines() if not line.startswith("start-up:")]


@pytest.mark.parametrize("mode", MODES)
def test_the_launcher(mode: str) -> None:
    lines = _launch("--mode", mode, "--steps", "5", "--seed", "3")
    final_reward = float(lines[-2].removeprefix("final reward: "))
    assert lines[-4] == "steps: 5"
    assert 0 < final_reward <= 1
    if mode != "async":
        assert lines == _launch("--mode", mode, "--seed", "3", "grpo.max_num_steps=5")


def test_the_launcher_knows_nothing_of_tracing() -> None:
    sources = [LAUNCHER, *STAND_IN.rglob("*.py")]
    assert not [path for path in sources if "opentelemetry" in path.read_text(encoding="utf-8").lower()]
    assert not [path for path in sources if "autoinstr" in path.read_text(encoding="utf-8")]


def test_the_policy_gradient_is_the_slope_of_the_loss() -> None:
    from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn

    rng = np.random.default_rng(0)
    columns = ("advantages", "prev_logprobs", "generation_logprobs", "reference_policy_logprobs")
    data = {name: -rng.random((4, 3)) for name in columns}
    data |= {"token_mask": np.ones((4, 3)), "sample_mask": np.ones(4)}
    logprobs = data["prev_logprobs"] + 0.05 * rng.random((4, 3))
    loss_fn = ClippedPGLossFn(ClippedPGLossConfig(use_importance_sampling_correction=True))
    _, gradient, _ = loss_fn.evaluate(logprobs, data, valid_tokens=12)
    for place in np.ndindex(logprobs.shape):
        nudge = np.zeros_like(logprobs)
        nudge[place] = 1e-6
        above, below = (loss_fn(logprobs + sign * nudge, data, 4, 12)[0] for sign in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / 2e-6, abs=1e-6)

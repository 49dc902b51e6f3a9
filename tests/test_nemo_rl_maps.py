"""The maps for NeMo RL, run: the stand-in's three GRPO loops as `autoinstr.testing` records them.

Each run is a process of its own, so that the maps are there before `nemo_rl` is. Every algorithm's whole tree, for
every choice of groups, is in trees/.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRIVER = """
import contextlib, runpy, sys
from autoinstr.testing import record

groups, *sys.argv = sys.argv[1:]
with record(builtin="nemo_rl", groups=groups) as spans, contextlib.redirect_stdout(sys.stderr):
    runpy.run_path(sys.argv[0], run_name="__main__")
print(spans.tree())
print(*spans.notices, sep="\\n", file=sys.stderr)
assert not spans.notices
"""

START_UP = """
rl.startup
  rl.setup.ray_init
  rl.setup.tokenizer
  rl.setup.data
  rl.setup.workers
    rl.setup.generation rl.backend='VllmGeneration'
      rl.vllm.load_model
    rl.setup.policy
      rl.policy.load_model rl.backend='dtensor_v2'
"""
SYNC = (
    START_UP
    + """
rl.grpo.job
  rl.grpo.step rl.epoch=1 rl.iteration=1
    rl.grpo.data_processing [overhead]
    rl.grpo.generation rl.num_generations_per_prompt=16
      rl.vllm.generate [productive]
    rl.grpo.reward_calculation [productive]
    rl.grpo.data_processing [overhead]
    rl.grpo.policy_and_reference_logprobs [overhead]
      rl.policy.worker.get_logprobs rl.backend='dtensor_v2'
      rl.policy.worker.get_logprobs rl.backend='dtensor_v2'
    rl.grpo.advantage_calculation [overhead]
    rl.grpo.policy_training [productive] rl.iteration=1
      rl.policy.worker.train rl.backend='dtensor_v2'
    rl.grpo.evaluate rl.step=1
      rl.vllm.generate [overhead]
    rl.grpo.checkpointing [overhead]
"""
)


def run(groups: str, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOINSTR_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, groups, "examples/run_grpo.py", *arguments],
        cwd=ROOT,
        env={**environment, "FAKE_TRAINING_PACE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_synchronous_step() -> None:
    tree = run("per_step", "--mode", "sync", "--steps", "1", "grpo.val_period=1")
    assert tree.splitlines() == [line for line in SYNC.splitlines() if line]


def test_the_default_groups_do_not_grow_with_steps() -> None:
    names = Counter(line.split()[0] for line in run("default", "--steps", "3").splitlines())
    assert names == Counter(
        {
            "rl.startup": 1,
            "rl.setup.ray_init": 1,
            "rl.setup.tokenizer": 1,
            "rl.setup.data": 1,
            "rl.setup.workers": 1,
            "rl.setup.generation": 1,
            "rl.setup.policy": 1,
            "rl.vllm.load_model": 1,
            "rl.policy.load_model": 1,
            "rl.grpo.job": 1,
            "rl.grpo.checkpointing": 1,
        }
    )


def test_an_asynchronous_run() -> None:
    lines = run("per_step,weight_sync", "--mode", "async", "--steps", "2", "grpo.val_period=2").splitlines()
    names = Counter(line.split()[0] for line in lines)
    assert names["rl.grpo.step"] >= 2, "one more for each time the buffer is empty"
    for once_per_step in ("reward_calculation", "policy_training", "policy_and_reference_logprobs"):
        assert names["rl.grpo." + once_per_step] == 2
    assert names["rl.idle.refit_bubble"] == 2
    assert names["rl.init.total"] == 1
    assert names["rl.grpo.generation"] >= 2, "one per batch, in the collector's threads"
    assert "  rl.init.total rl.efficiency.category='init/total'" in lines
    assert "    rl.idle.refit_bubble [idle] rl.efficiency.category='idle/refit_bubble'" in lines
    assert "      rl.weight_sync.transfer" in lines, "inside the bubble, and without a bucket of its own"
    batches = [line for line in lines if line.strip().startswith("rl.grpo.generation")]
    assert all("rl.weight_version=" in line and "rl.target_weight_version=" in line for line in batches)
    assert not any(name.endswith(("_async", ".sample", ".turn")) for name in names), "per_prompt is not in per_step"


def test_per_prompt_shows_every_sample() -> None:
    lines = run("step,evaluate,rollout,per_prompt", "--mode", "async", "--steps", "1", "grpo.val_period=1").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  rl.grpo.evaluate"))
    assert lines[first + 1 : first + 5] == [
        "    rl.rollout.sample rl.rollout.sample=0",
        "      rl.vllm.generate_async",
        "    rl.rollout.sample rl.rollout.sample=1",
        "      rl.vllm.generate_async",
    ]

"""Evaluation of a checkpoint, as `run_eval.py` launches it: texts at once, or one call a sample."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import begin
from whole_trees import choices, only, spans_of

TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.dataset (setup)
  rl.setup.workers (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
rl.eval.job (job)
  rl.eval.generation (rollout) rl.num_generations_per_prompt=2
    rl.vllm.generate_text (generation) [productive]
"""

ASYNC_TREE = """
rl.startup (setup)
  rl.setup.ray_init (setup)
  rl.setup.tokenizer (setup)
  rl.setup.dataset (setup)
  rl.setup.workers (setup)
    rl.setup.generation (setup) rl.backend='VllmGeneration'
      rl.vllm.load_model (model_init)
rl.eval.job (job)
  rl.eval.generation (rollout) rl.num_generations_per_prompt=2
    rl.vllm.generate_text_async (per_prompt)
    rl.vllm.generate_text_async (per_prompt)
    rl.vllm.generate_text_async (per_prompt)
    rl.vllm.generate_text_async (per_prompt)
"""


def launch(folder: Path, async_engine: bool = False) -> None:
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.datasets.eval_datasets import load_eval_dataset
    from nemo_rl.environments.math_environment import MathEnvironment
    from nemo_rl.evals.eval import run_env_eval, setup
    from nemo_rl.models.generation import configure_generation_config

    config = begin(folder, eval={"seed": 1, "num_tests_per_prompt": 2})
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    config.generation = configure_generation_config(config.policy["generation"], tokenizer, is_eval=True)
    config.generation["vllm_cfg"]["async_engine"] = async_engine
    dataset = load_eval_dataset(config.data["validation"])
    generation, loader, config = setup(config, tokenizer, dataset)
    run_env_eval(generation, loader, MathEnvironment(config.env["math"]), config)


def launch_async(folder: Path) -> None:
    launch(folder, async_engine=True)


@pytest.mark.parametrize("groups", choices(TREE))
def test_texts_at_once(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch(tmp_path), groups) == only(groups, TREE)


@pytest.mark.parametrize("groups", choices(ASYNC_TREE))
def test_one_call_a_sample(tmp_path: Path, groups: str) -> None:
    assert spans_of(lambda: launch_async(tmp_path), groups) == only(groups, ASYNC_TREE)

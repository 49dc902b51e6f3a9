"""Real TRL on a CPU: whole span trees of its trainers, and GRPO's numbers at a real OTLP receiver.

    python -m pytest tests/real/test_trl.py

in an environment with `trl` (torch first: `pip install torch==2.13.0`, then trl with that as a constraint).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
trl = pytest.importorskip("trl")

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from otlp_receiver import Receiver  # noqa: E402
from runs import journal_spans, our_lines, run  # noqa: E402
from trl_trainers import trainer  # noqa: E402

from autoinstr.testing import record  # noqa: E402

TRAINERS = HERE / "trl_trainers.py"
SLOW = 600
"""Seconds until a run counts as hung."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trl")


GRPO = """
rl.grpo.job
  rl.grpo.step rl.epoch=1 rl.iteration=1
    rl.grpo.data_processing [overhead]
    rl.grpo.rollout rl.num_generations_per_prompt=2
      rl.grpo.generation [productive]
      rl.grpo.policy_and_reference_logprobs [overhead]
      rl.grpo.reward_calculation [productive]
    rl.grpo.policy_training [productive] rl.iteration=1
    rl.grpo.policy_training [productive] rl.iteration=1
  rl.grpo.step rl.epoch=1 rl.iteration=2
    rl.grpo.data_processing [overhead]
    rl.grpo.rollout rl.num_generations_per_prompt=2
      rl.grpo.generation [productive]
      rl.grpo.policy_and_reference_logprobs [overhead]
      rl.grpo.reward_calculation [productive]
    rl.grpo.policy_training [productive] rl.iteration=2
    rl.grpo.policy_training [productive] rl.iteration=2
    rl.grpo.evaluate rl.step=2
      rl.grpo.rollout rl.num_generations_per_prompt=2
        rl.grpo.generation [overhead]
        rl.grpo.policy_and_reference_logprobs [overhead]
        rl.grpo.reward_calculation [overhead]
      rl.grpo.rollout rl.num_generations_per_prompt=2
        rl.grpo.generation [overhead]
        rl.grpo.policy_and_reference_logprobs [overhead]
        rl.grpo.reward_calculation [overhead]
    rl.grpo.checkpointing [overhead]
"""
# the policy's own, from before the update, and the reference's
RLOO = GRPO.replace("grpo", "rloo")
for indent in ("        ", "      "):
    one = f"\n{indent}rl.rloo.policy_and_reference_logprobs [overhead]"
    RLOO = RLOO.replace(one + "\n" + indent + "rl.rloo.reward", one + one + "\n" + indent + "rl.rloo.reward")

DISTILLATION = """
rl.distillation.job
  rl.distillation.step rl.epoch=1 rl.iteration=1
    rl.distillation.data_processing [overhead]
    rl.distillation.rollout
      rl.distillation.generation [productive]
    rl.distillation.policy_training [productive] rl.iteration=1
      rl.distillation.teacher_logprob_inference [overhead]
    rl.distillation.policy_training [productive] rl.iteration=1
      rl.distillation.teacher_logprob_inference [overhead]
  rl.distillation.step rl.epoch=1 rl.iteration=2
    rl.distillation.data_processing [overhead]
    rl.distillation.rollout
      rl.distillation.generation [productive]
    rl.distillation.policy_training [productive] rl.iteration=2
      rl.distillation.teacher_logprob_inference [overhead]
    rl.distillation.policy_training [productive] rl.iteration=2
      rl.distillation.teacher_logprob_inference [overhead]
    rl.distillation.evaluate rl.step=2
      rl.distillation.rollout
        rl.distillation.generation [overhead]
      rl.distillation.teacher_logprob_inference [overhead]
    rl.distillation.checkpointing [overhead]
"""
SFT = """
rl.sft.job
  rl.sft.step rl.epoch=1 rl.iteration=1
    rl.sft.data_processing [overhead]
    rl.sft.policy_training [productive] rl.iteration=1
    rl.sft.policy_training [productive] rl.iteration=1
  rl.sft.step rl.epoch=1 rl.iteration=2
    rl.sft.data_processing [overhead]
    rl.sft.policy_training [productive] rl.iteration=2
    rl.sft.policy_training [productive] rl.iteration=2
    rl.sft.evaluate rl.step=2
    rl.sft.checkpointing [overhead]
"""
# KTO estimates its KL divergence by two more passes, of the policy and of the reference
KL = "      rl.kto.kl_logprobs [overhead]"
KTO = "\n".join(
    line + (f"\n{KL}\n{KL}" if "training" in line or "evaluate" in line else "")
    for line in SFT.replace("sft", "kto").splitlines()
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GRPO", GRPO),
        ("RLOO", RLOO),
        ("Distillation", DISTILLATION),
        ("SFT", SFT),
        ("DPO", SFT.replace("sft", "dpo")),
        ("Reward", SFT.replace("sft", "rm")),
        ("KTO", KTO),
    ],
)
def test_two_steps_as_a_tree(folder: Path, name: str, expected: str) -> None:
    with record(builtin="trl", groups="all") as spans:
        trainer(name, folder).train()
    assert str(spans.tree()).splitlines() == expected.strip().splitlines()
    assert spans.notices == []


def test_a_group_that_is_off_and_what_is_no_trainer_of_trl(folder: Path) -> None:
    from transformers import Trainer

    originals = {name: vars(Trainer)[name] for name in ("train", "training_step", "get_batch_samples", "evaluate")}
    own = {name: vars(trl.GRPOTrainer)[name] for name in ("_generate", "compute_loss")}
    with record(builtin="trl", groups="job,step") as spans:
        assert {name: vars(Trainer)[name] for name in originals} == originals
        assert {name: vars(trl.GRPOTrainer)[name] for name in own} == own
        sft = trainer("SFT", folder)
        plain = Trainer(
            model=sft.model, args=sft.args, train_dataset=sft.train_dataset, data_collator=sft.data_collator,
            eval_dataset=sft.eval_dataset,
        )  # fmt: skip
        plain.train()
    assert spans.tree() == ""
    assert str(spans.series()) == ""


def test_a_subclass_and_a_run_of_several_epochs_that_accumulates_raggedly(folder: Path) -> None:
    class Mine(trl.SFTTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return super().training_step(*args, **kwargs)

    with record(builtin="trl", groups="job,step,policy_update") as spans:
        made = trainer("SFT", folder, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=3,
                       eval_strategy="no", save_strategy="no")  # fmt: skip
        made.__class__ = Mine
        made.train()
    step = "  rl.sft.step rl.epoch={} rl.iteration={}"
    micro = "    rl.sft.policy_training [productive] rl.iteration={}"
    expected = ["rl.sft.job"]
    for iteration, (epoch, size) in enumerate([(1, 3), (1, 1), (2, 3), (2, 1)], 1):
        expected += [step.format(epoch, iteration), *[micro.format(iteration)] * size]
    assert str(spans.tree()).splitlines() == expected


def test_a_step_that_fails(folder: Path) -> None:
    with record(builtin="trl", groups="job,step,policy_update,data_processing") as spans:
        broken = trainer("SFT", folder)
        broken.compute_loss = None  # type: ignore[method-assign]
        with pytest.raises(TypeError):
            broken.train()
    assert (
        spans.tree(attributes=False)
        == """
    rl.sft.job !TypeError
      rl.sft.step
        rl.sft.data_processing [overhead]
        rl.sft.policy_training [productive] !TypeError
    """
    )


# series → kind, unit, the key that TRL logs
SERIES = {
    "rl.reward.mean": ("gauge", "", "reward"),
    "rl.kl.divergence": ("gauge", "", "kl"),
    "rl.policy.loss": ("gauge", "", "loss"),
    "rl.entropy": ("gauge", "", "entropy"),
    "rl.response.length.mean": ("gauge", "{token}", "completions/mean_length"),
    "rl.grad_norm": ("gauge", "", "grad_norm"),
    "rl.learning_rate": ("gauge", "", "learning_rate"),
    "rl.tokens.seen": ("gauge", "{token}", "num_tokens"),
}


def printed(output: str, what: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith(what + " ")]
    return line.removeprefix(what + " ")


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """GRPO without us."""
    done = run(TRAINERS, "GRPO", folder, cwd=tmp_path_factory.mktemp("plain"), traced=False, timeout=SLOW)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_numbers_of_grpo_arrive_and_training_stays_the_same(
    folder: Path, tmp_path: Path, protocol: str, plain: subprocess.CompletedProcess[str]
) -> None:
    with Receiver() as receiver:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        traced = run(
            TRAINERS, "GRPO", folder, cwd=tmp_path, timeout=SLOW, AUTOINSTR_SPAN_GROUPS="all",
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        )  # fmt: skip
        assert traced.returncode == 0, traced.stderr
        assert our_lines(traced) == []
        for what in ("LOGS", "RANDOM", "WEIGHTS"):
            assert printed(traced.stdout, what) == printed(plain.stdout, what)

        logs = json.loads(printed(traced.stdout, "LOGS"))
        (last,) = [log for log in logs if log["step"] == 2 and "loss" in log]
        assert last["kl"] > 0
        (evaluation,) = [log for log in logs if "eval_reward" in log]
        assert evaluation["eval_entropy"] != last["entropy"], "else this test would not notice a mix-up"
        metrics = receiver.metrics()
        found = {}
        for name in SERIES:
            (point,) = metrics[name].gauge.data_points
            assert metrics[name].description
            assert not point.attributes
            found[name] = (metrics[name].WhichOneof("data"), metrics[name].unit, point.as_double)
        assert found == {name: (kind, unit, last[key]) for name, (kind, unit, key) in SERIES.items()}
        phases = {
            attribute.value.string_value: point.count
            for point in metrics["rl.phase.duration"].histogram.data_points
            for attribute in point.attributes
            if attribute.key == "rl.phase"
        }
        assert phases["step"] == 2
        assert phases["policy_training"] == 4
        assert {r["service.name"] for r in receiver.metric_resources()} == {"trl"}
        assert len(receiver.spans()) == len(GRPO.strip().splitlines())
        assert {r["service.name"] for r in receiver.resources()} == {"trl"}
        assert {r["rl.algorithm"] for r in receiver.resources()} == {"grpo"}
        assert {r["rl.model"] for r in receiver.resources()} == {str(folder / "model")}


def test_the_journal_of_a_run(folder: Path, tmp_path: Path) -> None:
    done = run(TRAINERS, "Reward", folder, cwd=tmp_path, timeout=SLOW)
    assert done.returncode == 0, done.stderr
    assert our_lines(done) == []
    names = sorted(span["name"] for span in journal_spans(tmp_path))
    assert names == ["rl.rm.checkpointing", "rl.rm.evaluate", "rl.rm.job"], "the default groups"

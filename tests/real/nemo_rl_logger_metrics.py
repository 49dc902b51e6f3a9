"""NeMo RL's real logger, tapped: does each series arrive, and do its own backends see what they saw before?

The real ``nemo_rl.utils.logger.Logger``, with TensorBoard, W&B (disabled mode) and MLflow on, is handed what a
run hands it, with the real efficiency summary, numpy and torch scalars. It runs twice: plain, and under
``opentelemetry-instrument`` with a real OTLP receiver on this machine. Printed: each series that arrived, with
kind, unit, attributes and value. CPU only, no network.

    python tests/real/nemo_rl_logger_metrics.py --source RL --python VENV/bin/python [--protocol http/protobuf]

``--source``, ``--python`` and ``--stand-ins`` are as in ``nemo_rl_unit_tests.py``. ``--python``'s environment has
autoinstr installed; this checkout's is put before it. What runs this script needs grpc and opentelemetry-proto.

Exit status: 0 when every series arrived with the right value and the calls of TensorBoard, W&B and MLflow are
the same both times; 1 when not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

CHILD = r"""
import json, sys
from unittest import mock

import mlflow, numpy as np, torch, wandb
from nemo_rl.algorithms import utils
from nemo_rl.utils.logger import Logger

out, folder = sys.argv[1], sys.argv[2]
calls = []

def seen(name, function):
    def call(*args, **kwargs):
        calls.append([name, repr(args), repr({k: v for k, v in kwargs.items() if k != "run_id"})])
        return function(*args, **kwargs)
    return call

with mock.patch("mlflow.log_metrics", seen("mlflow", mlflow.log_metrics)):
    logger = Logger({
        "log_dir": folder, "wandb_enabled": True, "swanlab_enabled": False, "tensorboard_enabled": True,
        "mlflow_enabled": True, "monitor_gpus": False, "gpu_monitoring": {},
        "wandb": {"project": "p", "name": "n", "mode": "disabled"}, "tensorboard": {},
        "mlflow": {"experiment_name": "e", "run_name": "r", "tracking_uri": "sqlite:///" + folder + "/mlflow.db"},
    })
    board = logger.loggers[1].writer
    board.add_scalar = seen("tensorboard", board.add_scalar)
    logger.wandb_logger.run.log = seen("wandb", logger.wandb_logger.run.log)
    setup = {"policy_init_time_s": 2.0, "total_setup_time_s": 3.5, "parallel_init_enabled": True}
    logger.log_metrics(setup, step=0, prefix="timing/setup")
    for step in (1, 2):
        logger.log_metrics({
            "reward": np.float32(0.5) * step, "kl_penalty": torch.tensor(0.25), "loss": np.array(-0.125),
            "critic/loss": torch.nn.Parameter(torch.tensor(2.0)).detach(), "approx_entropy": 1.5,
            "mean_gen_tokens_per_sample": 64, "grad_norm": np.array(2.5, dtype=np.float32), "lr": 1e-3,
            "vllm/prompt_tokens": 100, "vllm/generation_tokens": np.int64(200), "vllm/prompt_length_mean": 10.0,
            "vllm/generation_length_mean": 20.0, "vllm/generations_ok": 8, "vllm/generations_failed": 1,
            "ok": True,
        }, step, prefix="train", step_metric=None)
        logger.log_metrics({"reward": 99.0, "accuracy": 0.5}, step, prefix="validation")
    if hasattr(utils, "print_efficiency_summary"):
        lost = {c: float(n) for n, c in enumerate(utils.EFFICIENCY_CATEGORIES, 1)}
        logger.log_metrics(utils.print_efficiency_summary(lost, 100.0, 2), 2, prefix="")
    board.flush()

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(board.log_dir)
events.Reload()
scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
module, name = Logger.log_metrics.__module__, Logger.log_metrics.__code__.co_filename
with open(out, "w") as stream:
    json.dump({"calls": calls, "scalars": scalars, "tapped": "autoinstr" in name, "module": module,
               "categories": list(getattr(utils, "EFFICIENCY_CATEGORIES", ()))}, stream)
"""


def child(args: argparse.Namespace, folder: Path, traced: bool, env: dict[str, str]) -> dict[str, Any]:
    """Run `CHILD` and return what it wrote."""
    folder.mkdir()
    script, out = folder / "child.py", folder / "out.json"
    script.write_text(CHILD)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOINSTR_", "OTEL_", "NEMO_"))}
    stand_ins = [str(args.stand_ins.resolve())] if args.stand_ins else []
    kept["PYTHONPATH"] = os.pathsep.join([str(args.source), str(ROOT), *stand_ins])
    kept["PATH"] = f"{args.python.parent}{os.pathsep}{kept.get('PATH', '')}"
    prefix = [str(args.python.parent / "opentelemetry-instrument")] if traced else []
    logs = folder / "logs"
    logs.mkdir()
    done = subprocess.run(
        [*prefix, str(args.python), str(script), str(out), str(logs)],
        cwd=folder, env={**kept, **env}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the child failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    ours = [line for line in done.stderr.splitlines() if line.startswith("autoinstr: ")]
    found: dict[str, Any] = json.loads(out.read_text())
    found["calls"] = [[str(part).replace(str(folder), "") for part in call] for call in found["calls"]]
    return {**found, "said": ours}


def wanted(categories: list[str]) -> dict[tuple[Any, ...], Any]:
    """(series, kind, unit, attributes) → value of what the child logs."""
    import test_metrics_end_to_end as beside

    found: dict[tuple[Any, ...], Any] = {}
    for name, (kind, unit, _, value) in beside.SERIES.items():
        found[name, kind, unit, ()] = 2 * value if kind == "counter" else value
    found["rl.reward.mean", "gauge", "", ()] = 1.0
    for phase, value in (("policy_init", 2.0), ("total_setup", 3.5)):
        found["rl.setup.duration", "gauge", "s", (("rl.setup.phase", phase),)] = value
    for n, category in enumerate(categories, 1):
        measurement, window, bucket = beside.CATEGORIES[category]
        attributes = (
            ("rl.bucket", bucket),
            ("rl.efficiency.category", category),
            ("rl.efficiency.measurement", measurement),
            ("rl.efficiency.window", window),
        )
        found["rl.efficiency.seconds", "gauge", "s", attributes] = float(n)
    if categories:
        share = (("rl.efficiency.measurement", "wall_clock"), ("rl.efficiency.window", "step"))
        found["rl.efficiency.pct", "gauge", "%", share] = 90.0
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--stand-ins", type=Path)
    parser.add_argument("--protocol", choices=("grpc", "http/protobuf"), default="grpc")
    args = parser.parse_args()
    args.source = args.source.resolve()

    from otlp_receiver import Receiver
    from test_metrics_end_to_end import points, send_to

    with tempfile.TemporaryDirectory() as folder, Receiver() as receiver:
        plain = child(args, Path(folder) / "plain", traced=False, env={})
        tapped = child(args, Path(folder) / "tapped", traced=True, env=send_to(receiver, args.protocol))
        found = points(receiver)
    want = wanted(tapped["categories"])
    wrong = {key: (found.get(key), value) for key, value in want.items() if found.get(key) != value}
    for (name, kind, unit, attributes), value in sorted(want.items()):
        about = " ".join(f"{k}={v}" for k, v in attributes)
        sign = "WRONG" if (name, kind, unit, attributes) in wrong else "ok"
        print(f"{sign:6} {name:32} {kind:8} {unit:13} {value!s:8} {about}")
    for key, (got, value) in wrong.items():
        print(f"wrong: {key}: {got}, not {value}")
    same = [plain["calls"] == tapped["calls"], plain["scalars"] == tapped["scalars"]]
    backends = sorted({call[0] for call in plain["calls"]})
    print(f"{len(want)} points, {len(wrong)} wrong; tapped: {tapped['tapped']}; autoinstr said: {tapped['said']}")
    print(f"{len(plain['calls'])} calls of {', '.join(backends)}: {'the same' if all(same) else 'DIFFERENT'}")
    good = not wrong and all(same) and tapped["tapped"] and not plain["tapped"] and not tapped["said"]
    return 0 if good and {"tensorboard", "wandb"} <= set(backends) else 1  # older tags call MLflow differently


if __name__ == "__main__":
    raise SystemExit(main())

"""NeMo RL's asynchronous collector and replay buffer, on real Ray: is all of it one trace, with the right parents?

Three parts, each a driver process under ``opentelemetry-instrument`` whose journals are read back:

* ``tests``: NeMo RL's own ``tests/unit/algorithms/test_async_utils.py``. A span map of this script's names each test,
  and the methods of the two actors, which the built-in maps leave alone; so each span of an actor must lie below the
  test that made the call.
* ``collect``: the real ``AsyncTrajectoryCollector`` collects for two weight versions and pushes into the real
  ``ReplayBuffer``. Its threads are bare ``threading.Thread``, which run ``asyncio.run``: their spans must lie below
  the driver's, and those of the buffer below theirs, three processes in a line.
* ``--program FILE ARGUMENT``: any other driver of a training loop, such as one that calls ``async_grpo_train``.

    python tests/real/nemo_rl_async_trace.py --source RL --python VENV/bin/python --stand-ins STANDINS \\
        [--parts collect] [--program drive.py grpo_async]

``--source``, ``--python`` and ``--stand-ins`` are as in ``nemo_rl_unit_tests.py``; the source is main of August 2026
or newer, for the actors of older releases want megatron in their worker. ``--select`` picks some of NeMo RL's tests,
as pytest's ``-k`` does; all of them take 6 minutes on an idle machine of two cores. This checkout of autoinstr is put
before what ``--python`` has. Of each part are asked: one trace id; every span's parent is a span that some process
has started, in the same trace; no process but the driver has a span without a parent, other than a job that is an
actor's own; no span begins before its parent; nothing is there twice; autoinstr had nothing to complain of. Printed:
the paths of spans, ``>>`` being a step into another process, and what is wrong.

Exit status: 0 when all that holds, 1 when not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from autoinstr.journal.reader import Run, Span, SpanKey, read_run  # noqa: E402

UNIT_TESTS = "tests/unit/algorithms/test_async_utils.py"
BUFFER = "nemo_rl.algorithms.async_utils.replay_buffer:ReplayBufferImpl"
COLLECTOR = "nemo_rl.algorithms.async_utils.trajectory_collector:AsyncTrajectoryCollector"
NOT_INHERITED = ("AUTOINSTR_", "OTEL_", "NEMO_RL_OTEL_", "NEMO_LENS_", "RAY_", "PYTEST_", "PYTHON", "TRACE")

MAPS = {
    "actors": """
map: async_trace.actors
package: nemo_rl
groups:
  async_trace: {bucket: none}
spans:
  buffer.init: {group: async_trace, function: BUFFER.__init__}
  buffer.add: {group: async_trace, function: BUFFER.add}
  buffer.sample: {group: async_trace, function: BUFFER.sample}
  collector.init: {group: async_trace, function: COLLECTOR.__init__}
  collector.set_weight_version: {group: async_trace, function: COLLECTOR.set_weight_version}
  collector.start_collection: {group: async_trace, function: COLLECTOR.start_collection}
""",
    "driving": """
map: async_trace.driving
package: driving
spans:
  driver.collect: {group: async_trace, function: driving:collect, threads: true}
  driver.refit: {group: async_trace, function: driving:refit}
""",
    "tests": """
map: async_trace.tests
package: _pytest
spans:
  driver.test: {group: async_trace, function: _pytest.python:Function.runtest, threads: true}
""",
}

DRIVING = '''
"""A driver for the real collector and buffer; what it generates is three tokens for each sample."""

import time

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.virtual_cluster import init_ray
from nemo_rl.environments.interfaces import EnvironmentReturn
from tests.unit.algorithms import test_async_utils as theirs

WORDS = 64


class Generation:
    cfg = {
        "backend": "vllm", "vllm_cfg": {"async_engine": True}, "colocated": {"enabled": False},
        "temperature": 1.0, "top_p": 1.0, "top_k": None,
    }
    requires_kv_scale_sync = False

    async def generate_async(self, data, greedy=False):
        for i, (ids, length) in enumerate(zip(data["input_ids"], data["input_lengths"])):
            row = torch.cat([ids[: int(length)], torch.tensor([7, 8, 9])])[None]
            yield i, BatchedDataDict({
                "output_ids": row, "logprobs": torch.zeros(row.shape), "generation_lengths": torch.tensor([3]),
                "unpadded_sequence_lengths": torch.tensor([row.shape[1]]), "truncated": torch.tensor([False]),
            })

    def prepare_for_generation(self, *args, **kwargs): return True
    def finish_generation(self, *args, **kwargs): return True
    def get_step_metrics(self): return {}
    def snapshot_step_metrics(self): pass


@ray.remote(num_cpus=0)
class Environment:
    def step(self, logs, metadata):
        n = len(logs)
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": "ok"}] * n, metadata=metadata,
            next_stop_strings=[None] * n, rewards=torch.ones(n), terminateds=torch.ones(n), answers=[None] * n,
        )


class Batches(list):
    def state_dict(self): return {}


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(WORDS - 2)} | {"<pad>": WORDS - 2, "<unk>": WORDS - 1}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", unk_token="<unk>")


def prompts(n):
    log = {"role": "user", "content": "w1 w2", "token_ids": torch.tensor([1, 2])}
    return BatchedDataDict({
        "message_log": [[dict(log)] for _ in range(n)], "task_name": ["test"] * n, "idx": torch.arange(n),
        "extra_env_info": [{} for _ in range(n)], "loss_multiplier": torch.ones(n),
        "length": torch.full((n,), 2), "stop_strings": [None] * n,
    })


def wait_for(buffer, size):
    until = time.monotonic() + 120
    while ray.get(buffer.get_debug_info.remote())["total_trajectories"] < size:
        assert time.monotonic() < until, "nothing is collected"
        time.sleep(0.2)


def collect():
    buffer = theirs.ReplayBuffer.remote(max_size=100, drop_incomplete_targets_on_restore=False)
    collector = theirs.AsyncTrajectoryCollector.remote(
        policy_generation=Generation(), tokenizer=tokenizer(), task_to_env={"test": Environment.remote()},
        master_config=theirs.TestAsyncTrajectoryCollector().create_mock_config(), replay_buffer=buffer, start_step=0,
    )
    ray.get(collector.start_collection.remote(Batches(prompts(2) for _ in range(20))))
    wait_for(buffer, 6)  # two prompts, for the target weights 0, 1 and 2
    return collector, buffer


def refit(collector, buffer):
    ray.get(collector.set_weight_version.remote(1))
    wait_for(buffer, 8)
    ray.get(buffer.sample.remote(num_prompt_groups=2, current_weight_version=0, max_age_steps=2))


def main():
    init_ray()
    refit(*collect())
'''


GENERATION = "driver.collect >> collector.start_collection > rl.grpo.generation"
SAMPLE = f"{GENERATION} > rl.rollout.sample"
COLLECTED = {
    "driver.collect",
    "driver.collect >> buffer.init",
    "driver.collect >> collector.init",
    "driver.collect >> collector.start_collection",
    GENERATION,
    SAMPLE,
    f"{SAMPLE} > rl.rollout.turn",
    f"{SAMPLE} > rl.rollout.environment_step",
    f"{GENERATION} >> buffer.add",
    "driver.refit",
    "driver.refit >> collector.set_weight_version",
    "driver.refit >> buffer.sample",
}
"""Some of the paths that ``collect`` must leave; ``>>`` is a step into another process."""

TESTED = {
    "driver.test",
    "driver.test >> buffer.init",
    "driver.test >> buffer.add",
    "driver.test >> buffer.sample",
    "driver.test >> collector.init",
    "driver.test >> collector.set_weight_version",
}


def all_spans(run: Run) -> dict[SpanKey, Span]:
    return {span.key: span for span in (*run.open, *run.spans)}


def path_of(span: Span, by_key: dict[SpanKey, Span]) -> str:
    parent = by_key.get(span.parent_key) if span.parent_key else None
    if parent is None:
        return span.name if span.parent_id is None else f"(never started) > {span.name}"
    return f"{path_of(parent, by_key)} {'>' if parent.process == span.process else '>>'} {span.name}"


def wrong_with(run: Run, wanted: set[str]) -> Iterator[str]:
    """A line for each thing that a trace of one run must not have."""
    spans = all_spans(run)
    paths = Counter(path_of(span, spans) for span in spans.values())
    traces = {span.trace_id for span in spans.values()}
    if len(traces) != 1:
        yield f"{len(traces)} trace ids"
    if len(run.spans) != len({span.key for span in run.spans}):
        yield "spans that are there twice"
    if run.broken_lines:
        yield f"{run.broken_lines} broken lines"
    if not spans:
        yield "no span"
    for path in sorted(wanted - paths.keys()):
        yield f"not there: {path}"
    for span in spans.values():
        parent = spans.get(span.parent_key) if span.parent_key else None
        if span.parent_id is None and span.process != 0 and span.group != "job":
            yield f"{span.name} of process {run.processes[span.process].pid} has no parent"
        elif span.parent_id is not None and parent is None:
            yield f"the parent of {span.name} was never started"
        elif parent is not None and parent.start_ns > span.start_ns:
            yield f"{span.name} began before its parent, {parent.name}"


def drive(args: argparse.Namespace, part: str, command: list[str], folder: Path) -> tuple[Run, list[str], str]:
    """The run that `command` leaves, what autoinstr said in it, and its last line."""
    maps = folder / "maps"
    maps.mkdir(parents=True)
    for name, text in MAPS.items():
        (maps / f"{name}.yaml").write_text(text.replace("BUFFER", BUFFER).replace("COLLECTOR", COLLECTOR))
    (folder / "driving.py").write_text(DRIVING)
    importable = [ROOT, args.source, folder, *([args.stand_ins] if args.stand_ins else [])]
    (folder / "huggingface").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    # the paths of Ray's sockets must stay under 107 characters
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as ray_folder:
        env = {
            **kept,
            "PATH": f"{args.python.parent}{os.pathsep}{kept.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(map(str, importable)),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "huggingface"),
            "RAY_TMPDIR": ray_folder,
            "RAY_worker_niceness": "0",  # Ray's is 15, which starves them on a busy machine
            "WANDB_MODE": "offline",
            "TOKENIZERS_PARALLELISM": "false",
            "AUTOINSTR_SPAN_MAPS": str(maps),
            "AUTOINSTR_SPAN_GROUPS": "all,-setup",
            "AUTOINSTR_JOURNAL": "on",
            "AUTOINSTR_RUN_DIR": str(folder),
            "AUTOINSTR_RUN_ID": part,
        }
        done = subprocess.run(
            [str(args.python.parent / "opentelemetry-instrument"), str(args.python), *command],
            cwd=args.source, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600,
        )  # fmt: skip
    (folder / "log").write_text(done.stdout)
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
        raise SystemExit(f"{part}: ended with status {done.returncode}, see {folder / 'log'}")
    lines = done.stdout.splitlines()
    said = [line for line in lines if "autoinstr: " in line or "Failed to detach context" in line]
    return read_run(folder / part), said, lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--stand-ins", type=Path)
    parser.add_argument("--keep", type=Path, help="logs and journals stay here")
    parser.add_argument("--parts", nargs="*", choices=("tests", "collect"), default=("tests", "collect"))
    parser.add_argument("--select", metavar="EXPRESSION", default="")
    parser.add_argument("--program", nargs="+", action="append", default=[], metavar="FILE ARGUMENT")
    args = parser.parse_args()
    args.source = args.source.resolve()
    args.python = args.python.absolute()
    args.stand_ins = args.stand_ins and args.stand_ins.resolve()
    plugin = ["-p", "absent_packages"] if args.stand_ins else []
    pytest = ["-m", "pytest", *plugin, "-o", "addopts=", "-o", "asyncio_default_fixture_loop_scope=function", "-q"]
    known = {
        "tests": ([*pytest, "-k", args.select, UNIT_TESTS], TESTED),
        "collect": (["-c", "import driving; driving.main()"], COLLECTED),
    }
    parts = [(part, *known[part]) for part in args.parts]
    parts += [("-".join([Path(file).stem, *rest]), [file, *rest], set()) for file, *rest in args.program]
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for part, command, wanted in parts:
            run, said, last = drive(args, part, command, (args.keep or Path(temporary)).resolve() / part)
            spans = all_spans(run)
            print(f"{part}: {len(run.processes)} processes, {len(run.spans)} spans, {len(run.open)} open; {last}")
            for path, count in sorted(Counter(path_of(span, spans) for span in spans.values()).items()):
                print(f"{count:6} {path}")
            troubles = [*wrong_with(run, wanted), *(f"said: {line}" for line in said)]
            for trouble, count in Counter(troubles).items():
                print(f"{part}: wrong: {trouble} ({count})", flush=True)
            good = good and not troubles
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

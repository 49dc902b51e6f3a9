"""NeMo RL's own unit tests, plain and traced: does tracing change the outcome of any of them?

Every test file that is named, or every folder, runs in a pytest process of its own, and with
``--with-autoinstr`` a second time under ``opentelemetry-instrument``. Per file, and per folder, and run one line
is printed: passed, failed, errors, skipped, seconds.
The tests drive NeMo RL's real training loops, real Ray included, and need neither a GPU nor a network.

    python tests/real/nemo_rl_unit_tests.py --source RL --python VENV/bin/python --stand-ins STANDINS \\
        --with-autoinstr --groups per_step --keep OUT tests/unit/algorithms/test_grpo.py

The source (``--source``): a checkout of NVIDIA-NeMo/RL at the tag or commit to be tried; submodules are not
needed::

    git clone --depth 1 --branch v0.6.0 https://github.com/NVIDIA-NeMo/RL

The tests leave ``tests/unit/unit_results*`` and ``.pytest_cache`` in it, so do not use one you work in.

The environment (``--python``): a virtual environment that holds what the source's ``pyproject.toml`` asks
for, less what needs a GPU: a CPU torch first, then ray[default], transformers, datasets, tensordict,
torchdata, hydra-core, omegaconf, accelerate, math-verify, the loggers (tensorboard, wandb, swanlab, mlflow),
TransferQueue, and pytest with pytest-asyncio, pytest-timeout, pytest-cov and pytest-mock. NeMo RL itself is
imported from the source, not installed. Three things are worth knowing:

* Below Python 3.12 pydantic refuses ``typing.TypedDict``. A ``.pth`` file in site-packages with the line
  ``import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict`` mends it in Ray's
  workers too.
* The tests of the transfer queue read NeMo RL's metadata: a folder ``nemo_rl-0.0.0.dist-info`` in
  site-packages whose ``METADATA`` names ``Requires-Dist: TransferQueue==<version>`` is enough.
* For ``--with-autoinstr`` this package must be installed in it, so that ``opentelemetry-instrument`` lies
  beside the interpreter.

The stand-ins (``--stand-ins``, needed by older tags): a folder with ``absent_packages.py``, a pytest plugin
that lets megatron, vllm and the like import as empty modules, and ``decord.py``, which must be a file
because Ray workers import it where no pytest plugin runs.

Only one run at a time: ``ray.init(address="auto")``, which NeMo RL calls, joins any Ray cluster of the
machine that it finds among the processes, whatever ``RAY_TMPDIR`` says. A warning is printed when there is
one.

Exit status: 0 when every file ran and, with ``--with-autoinstr``, every test ended the same way both times;
1 when a test or the process ended differently, when a file gave no result, or when a traced run left no span
in its journal (then nothing was traced, and equal counts prove nothing); 2 when used wrongly. Tests that fail
in both runs are not held against the package. Standard library only; POSIX.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS_PER_TEST = 100
OUTCOMES = ("passed", "failed", "errors", "skipped")

# What would make the plain run less than plain, or both runs part of something that surrounds them.
NOT_INHERITED = ("AUTOINSTR_", "OTEL_", "NEMO_RL_OTEL_", "NEMO_LENS_", "RAY_", "PYTEST_")
NOT_INHERITED_NAMES = ("PYTHONPATH", "PYTHONSTARTUP", "TRACEPARENT", "TRACESTATE", "BAGGAGE")


@dataclass(frozen=True)
class Setup:
    """What all runs of one call have in common; every path is absolute."""

    source: Path
    python: Path
    stand_ins: Path | None
    groups: str
    keep: Path
    limit: float
    test_limit: int


@dataclass(frozen=True)
class Result:
    """How one pytest process ended. ``tests`` counts (test, outcome) pairs; None where there is no report."""

    exit_status: int | None  # None: killed, because it had not ended within the limit
    seconds: float
    tests: Counter[tuple[str, str]] | None
    log: Path

    def counts(self, module: str = "") -> tuple[int, ...]:
        """How many tests had each of OUTCOMES: those of one module, or all."""
        by_outcome: Counter[str] = Counter()
        for (test, outcome), times in (self.tests or Counter()).items():
            if module in ("", module_of(test)):
                by_outcome[outcome] += times
        return tuple(by_outcome[outcome] for outcome in OUTCOMES)

    def modules(self) -> list[str]:
        return sorted({module_of(test) for test, _ in self.tests or ()})


def module_of(test: str) -> str:
    """``tests.unit.utils.test_timer`` for ``tests.unit.utils.test_timer.TestTimer::test_stop``."""
    parts = test.partition("::")[0].split(".")
    last = max((i for i, part in enumerate(parts) if part.startswith("test_")), default=len(parts) - 1)
    return ".".join(parts[: last + 1])


def environment(setup: Setup, inherited: Mapping[str, str], ray_folder: str) -> dict[str, str]:
    """The variables of a plain run: offline, source and stand-ins importable, nothing of ours."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(NOT_INHERITED) and name not in NOT_INHERITED_NAMES
    }
    # Stays empty: what the user's own cache happens to hold must not decide how a test ends.
    huggingface = setup.keep / "huggingface"
    huggingface.mkdir(exist_ok=True)
    importable = [setup.source, *([setup.stand_ins] if setup.stand_ins else [])]
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, importable)),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(huggingface),
        "RAY_TMPDIR": ray_folder,
        # Ray's is 15: on a busy machine its workers would wait until the tests' own deadlines are over
        "RAY_worker_niceness": "0",
        "WANDB_MODE": "offline",
        "TOKENIZERS_PARALLELISM": "false",
    }


def instrumenter(python: Path) -> Path:
    """``opentelemetry-instrument`` of the environment that ``python`` belongs to."""
    return python.parent / "opentelemetry-instrument"


def run_name(test_file: str) -> str:
    """Names files and runs: ``unit.algorithms.test_ppo`` for ``tests/unit/algorithms/test_ppo.py``."""
    parts = Path(test_file).with_suffix("").parts
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] == "tests" else parts)


def pytest_command(setup: Setup, test_file: str, report: Path) -> list[str]:
    plugin = ["-p", "absent_packages"] if setup.stand_ins else []
    # NeMo RL's own addopts stop at the first failure; the counts need all tests.
    options = ["-o", "addopts=", "-o", "asyncio_default_fixture_loop_scope=function"]
    limits = ["-q", f"--timeout={setup.test_limit}", f"--junitxml={report}"]
    return [str(setup.python), "-m", "pytest", *plugin, *options, *limits, test_file]


def run(setup: Setup, test_file: str, *, traced: bool) -> Result:
    """Run one test file in a process of its own and read the report it writes."""
    name = run_name(test_file)
    kind = "traced" if traced else "plain"
    report = setup.keep / f"{name}.{kind}.xml"
    log = setup.keep / f"{name}.{kind}.log"
    # An earlier call's report must not stand in for one that was never written.
    report.unlink(missing_ok=True)

    # Not under `keep`, since Ray's socket paths must stay below 107 characters; and new each time, since what
    # a killed Ray leaves there fails the next start.
    ray_folder = tempfile.mkdtemp(prefix="nrl", dir="/tmp")
    variables = environment(setup, os.environ, ray_folder)
    command = pytest_command(setup, test_file, report)
    if traced:
        command.insert(0, str(instrumenter(setup.python)))
        variables |= {
            "AUTOINSTR_SPAN_GROUPS": setup.groups,
            "AUTOINSTR_RUN_DIR": str(setup.keep / "runs"),
            "AUTOINSTR_RUN_ID": name,
            "AUTOINSTR_JOURNAL": "on",
        }
    started = time.monotonic()
    try:
        exit_status = run_to_end(command, variables, setup.source, log, setup.limit)
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
    return Result(exit_status, time.monotonic() - started, read_report(report), log)


def run_to_end(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path, limit: float
) -> int | None:
    """Exit status of ``command``, its output in ``log``; None if it was killed after ``limit`` seconds."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its children can be ended with it, and nobody else's
        )
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def read_report(report: Path) -> Counter[tuple[str, str]] | None:
    """How often each test had each outcome, from a JUnit XML file; None if there is none or it is cut short.

    As in that file, an expected failure counts as skipped, and a test that passed but whose teardown raised
    counts as an error only.
    """
    try:
        root = ET.parse(report).getroot()
    except (OSError, ET.ParseError):
        return None
    words = {"failure": "failed", "error": "errors", "skipped": "skipped"}
    tests: Counter[tuple[str, str]] = Counter()
    for case in root.iter("testcase"):
        outcome = next((words[child.tag] for child in case if child.tag in words), "passed")
        tests[f"{case.get('classname')}::{case.get('name')}", outcome] += 1
    return tests


def ended(exit_status: int | None) -> str:
    if exit_status is None:
        return "had to be killed"
    return f"was ended by signal {-exit_status}" if exit_status < 0 else f"ended with status {exit_status}"


def without_result(result: Result) -> list[str]:
    """Why a run says nothing about the tests; empty when it does."""
    if result.tests is None:
        return [f"no report: pytest {ended(result.exit_status)}, see {result.log}"]
    if not result.tests:
        return [f"no test ran: pytest {ended(result.exit_status)}, see {result.log}"]
    return []


def differences(plain: Result, traced: Result) -> list[str]:
    """What ended differently, a line each; empty when tracing changed nothing."""
    lines = []
    outcome_before: dict[str, str] = {}
    outcome_after: dict[str, str] = {}
    if plain.tests and traced.tests:  # else every test differs, which without_result says in one line
        outcome_before = dict((plain.tests - traced.tests).keys())
        outcome_after = dict((traced.tests - plain.tests).keys())
    for test in sorted(outcome_before.keys() | outcome_after.keys()):
        was, became = outcome_before.get(test, "not run"), outcome_after.get(test, "not run")
        lines.append(f"{test}: {was} plain, {became} traced")
    if plain.exit_status != traced.exit_status:
        lines.append(f"pytest {ended(plain.exit_status)} plain, {ended(traced.exit_status)} traced")
    return lines


def journal_folder(keep: Path, test_file: str) -> Path:
    return keep / "runs" / run_name(test_file)


def has_span(folder: Path) -> bool:
    """Whether any file below ``folder`` holds a span: ``spanId`` is how OTLP spells it in JSON."""
    return any(b'"spanId"' in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def ray_is_running() -> bool:
    """Whether this machine runs a Ray cluster, where /proc can tell."""
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            program = command_line.read_bytes().split(b"\0", 1)[0]
        except OSError:  # it has ended since, or is not ours to read
            continue
        if program.endswith(b"/gcs_server"):
            return True
    return False


def say(test_file: str, kind: str, result: Result, width: int) -> None:
    modules = result.modules() if not test_file.endswith(".py") else []
    for name, module in [*((module.replace(".", "/") + ".py", module) for module in modules), (test_file, "")]:
        numbers = "".join(f"{count:>8}" for count in result.counts(module))
        seconds = f"{result.seconds:>9.1f}" if not module else ""
        print(f"{name:<{width}}  {kind:<6}{numbers}{seconds}", flush=True)


def complain(test_file: str, lines: Sequence[str]) -> None:
    for line in lines:
        print(f"{test_file}: {line}", file=sys.stderr, flush=True)


def compare_all(setup: Setup, test_files: Sequence[str], *, with_autoinstr: bool) -> bool:
    """Run and print every file; True when nothing is to be complained of."""
    width = max(map(len, test_files))
    heading = "".join(f"{outcome:>8}" for outcome in OUTCOMES)
    print(f"{'file':<{width}}  {'run':<6}{heading}{'seconds':>9}", flush=True)
    good = True
    for test_file in test_files:
        results = {}
        troubles = []
        for kind in ("plain", "traced") if with_autoinstr else ("plain",):
            if ray_is_running():
                complain(test_file, [f"a Ray cluster runs on this machine: the {kind} tests may join it"])
            result = results[kind] = run(setup, test_file, traced=kind == "traced")
            say(test_file, kind, result, width)
            troubles += [f"{kind}: {line}" for line in without_result(result)]
        if with_autoinstr:
            troubles += differences(results["plain"], results["traced"])
            if not has_span(journal_folder(setup.keep, test_file)):
                troubles.append(f"the traced run left no span in a journal, see {results['traced'].log}")
        complain(test_file, troubles)
        good = good and not troubles
    return good


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="NeMo RL's own unit tests, plain and traced.")
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="checkout of NVIDIA-NeMo/RL")
    parser.add_argument("--python", required=True, help="interpreter of the environment that can run the tests")
    parser.add_argument("--stand-ins", type=Path, metavar="DIR", help="holds absent_packages.py and decord.py")
    parser.add_argument("--with-autoinstr", action="store_true", help="run each file a second time, traced")
    parser.add_argument("--groups", default="per_step", help="AUTOINSTR_SPAN_GROUPS of traced runs (%(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="logs, reports and journals stay here")
    parser.add_argument(
        "--limit",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="a pytest process is killed after (%(default)s)",
    )
    parser.add_argument(
        "--test-limit",
        type=int,
        default=SECONDS_PER_TEST,
        metavar="SECONDS",
        help="a test fails after (%(default)s); a busy machine wants more",
    )
    parser.add_argument("test_files", nargs="+", metavar="TESTFILE", help="a test file or folder inside the source")
    options = parser.parse_args(argv)

    python = shutil.which(options.python)
    if python is None:
        parser.error(f"--python: cannot run {options.python}")
    # Not resolved: a virtual environment's interpreter is a link, and the folder it lies in is what counts.
    options.python = Path(python).absolute()
    if not (options.source / "nemo_rl").is_dir():
        parser.error(f"--source: no folder nemo_rl in {options.source}")
    if options.stand_ins and not (options.stand_ins / "absent_packages.py").is_file():
        parser.error(f"--stand-ins: no absent_packages.py in {options.stand_ins}")
    for test_file in options.test_files:
        if Path(test_file).is_absolute() or not (options.source / test_file).exists():
            parser.error(f"no {test_file} inside {options.source}")
    if len(set(map(run_name, options.test_files))) < len(options.test_files):
        parser.error("a test file is named twice")
    if options.with_autoinstr:
        if not instrumenter(options.python).is_file():
            parser.error(f"--with-autoinstr: no {instrumenter(options.python)}; is the package installed there?")
        for test_file in options.test_files:
            if options.keep and journal_folder(options.keep, test_file).exists():
                parser.error(f"--keep: {options.keep} holds a journal of {test_file} already; name another folder")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    keep = options.keep or Path(tempfile.mkdtemp(prefix="nemo_rl_unit_tests_"))
    keep.mkdir(parents=True, exist_ok=True)
    setup = Setup(
        source=options.source.resolve(),
        python=options.python,
        stand_ins=options.stand_ins.resolve() if options.stand_ins else None,
        groups=options.groups,
        keep=keep.resolve(),
        limit=options.limit,
        test_limit=options.test_limit,
    )
    good = compare_all(setup, options.test_files, with_autoinstr=options.with_autoinstr)
    if options.keep is None:
        if good:
            shutil.rmtree(keep, ignore_errors=True)
        else:
            print(f"logs, reports and journals are in {keep}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

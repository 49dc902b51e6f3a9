"""A mistake in a map, under `opentelemetry-instrument`: one clear line, and the run goes on with the rest."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from runs import clean_environment, journal_spans, our_lines, run

try:
    metadata.distribution("autoinstr")
except metadata.PackageNotFoundError:
    pytest.skip("autoinstr is on the path but not installed: its entry points are missing", allow_module_level=True)

GOOD = "map: good\npackage: my_pkg\nspans:\n  my.good: {group: step, function: my_pkg.loop:good}\n"
STOPPED = "autoinstr: AUTOINSTR_STRICT is on: the process stops here"

WRONG = {
    "a wrong key": (
        "map: bad\npackage: my_pkg\nspans:\n"
        "  my.bad: {group: step, functon: my_pkg.loop:bad}\n"
        "  my.other: {group: step, function: my_pkg.loop:other}\n",
        "4:25: unknown key 'functon' in the span 'my.bad', did you mean 'function'?; the span 'my.bad' is left out",
        ["my.good", "my.other"],
    ),
    "a wrong type": (
        "map: bad\npackage: my_pkg\nspans:\n"
        "  my.bad:\n    group: step\n    function: my_pkg.loop:bad\n    optional: perhaps\n"
        "  my.other: {group: step, function: my_pkg.loop:other}\n",
        "7:15: optional must be true or false, not a text; the span 'my.bad' is left out",
        ["my.good", "my.other"],
    ),
    "an unknown group": (
        "map: bad\npackage: my_pkg\nspans:\n"
        "  my.bad: {group: stpe, function: my_pkg.loop:bad}\n"
        "  my.other: {group: step, function: my_pkg.loop:other}\n",
        "4:19: unknown group 'stpe', did you mean 'step'?; the span 'my.bad' is left out",
        ["my.good", "my.other"],
    ),
    "attributes for a span that no map opens": (
        "map: bad\npackage: my_pkg\nspans:\n"
        "  my.godo: {group: step, attributes_from: my_pkg.loop:bad, attributes: {a: 1}}\n"
        "  my.other: {group: step, function: my_pkg.loop:other}\n",
        "4:3: no map opens a span 'my.godo', did you mean 'my.good'?; this entry of it is idle",
        ["my.good", "my.other"],
    ),
    "broken YAML": (
        "map: bad\npackage: my_pkg\nspans:\n"
        "  my.bad: {group: step\n"
        "  my.other: {group: step, function: my_pkg.loop:other}\n",
        "5:11: this is not YAML: did not find expected ',' or '}'; the map is left out",
        ["my.good"],
    ),
    "an absent file": (None, "there is no such file, did you mean 'bda.yaml'?; the map is left out", ["my.good"]),
}
"""Text of `bad.yaml` → what is said of it, and the spans that are left."""


def go(folder: Path, text: str | None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script that calls three functions, with `bad.yaml` and a good map."""
    package = folder / "my_pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "loop.py").write_text("def good(): pass\ndef bad(): pass\ndef other(): pass\n")
    (folder / "good.yaml").write_text(GOOD)
    (folder / ("bda.yaml" if text is None else "bad.yaml")).write_text(text or "")
    (folder / "main.py").write_text(
        "print('user code runs')\n"
        "import my_pkg.loop\n"
        "my_pkg.loop.good()\nmy_pkg.loop.bad()\nmy_pkg.loop.other()\n"
        "print('user code is done')\n"
    )
    return run(
        "main.py",
        cwd=folder,
        AUTOINSTR_SPAN_MAPS=os.pathsep.join(["bad.yaml", "good.yaml"]),
        AUTOINSTR_SPAN_GROUPS="all",
        PYTHONPATH=".",
        **env,
    )


@pytest.mark.parametrize("case", WRONG)
def test_the_run_goes_on_with_the_rest(tmp_path: Path, case: str) -> None:
    text, told, left = WRONG[case]
    process = go(tmp_path, text)
    place = f"{tmp_path}/bad.yaml:{'' if told[0].isdigit() else ' '}"
    assert our_lines(process) == [f"autoinstr: {place}{told}"]
    assert "Traceback" not in process.stderr
    assert (process.returncode, process.stdout) == (0, "user code runs\nuser code is done\n")
    assert sorted(span["name"] for span in journal_spans(tmp_path)) == left


@pytest.mark.parametrize("case", WRONG)
def test_strict_stops_before_any_user_code(tmp_path: Path, case: str) -> None:
    text, told, _ = WRONG[case]
    process = go(tmp_path, text, AUTOINSTR_STRICT="1")
    place = f"{tmp_path}/bad.yaml:{'' if told[0].isdigit() else ' '}"
    assert our_lines(process) == [f"autoinstr: {place}{told}", STOPPED]
    assert (process.returncode, process.stdout) == (2, "")
    assert journal_spans(tmp_path) == []


def test_strict_stops_although_nobody_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('user code runs')")
    command = ["sh", "-c", "opentelemetry-instrument python main.py 2>&-"]
    wanted = clean_environment(AUTOINSTR_STRICT="1", AUTOINSTR_SPAN_MAPS="absent.yaml")
    done = subprocess.run(command, cwd=tmp_path, env=wanted, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")


WRONG_SETTINGS = {
    "AUTOINSTR_SPAN_GROUPS=step,jbo": (
        "AUTOINSTR_SPAN_GROUPS: unknown span group 'jbo', did you mean 'job'?; it is left out"
    ),
    "AUTOINSTR_BUILTIN_MAPS=nemo_lr": (
        "AUTOINSTR_BUILTIN_MAPS: there is no built-in map 'nemo_lr', did you mean 'nemo_rl'?; it is left out"
    ),
    "AUTOINSTR_SPAN_GROUPS=per_step,rl.grpo.stpe": (
        "AUTOINSTR_SPAN_GROUPS: no active map has the span 'rl.grpo.stpe', did you mean 'rl.grpo.step'?; it is left out"
    ),
    "AUTOINSTR_RANKS=frist": (
        "AUTOINSTR_RANKS='frist' is none of all, first, last, first_per_node, 0,8,16 or sample:0.1; all is used"
    ),
    "AUTOINSTR_RUN_ID=../x": ("AUTOINSTR_RUN_ID='../x' can't name a folder and be typed as a word; '___x' is used"),
    "NEMO_LENS_RUN_ID=../x": ("NEMO_LENS_RUN_ID='../x' can't name a folder and be typed as a word; '___x' is used"),
    "AUTOINSTR_JOURNAL=yes": "AUTOINSTR_JOURNAL='yes' is none of auto, on, off; auto is used",
}


@pytest.mark.parametrize("setting", WRONG_SETTINGS)
@pytest.mark.parametrize("strict", [False, True])
def test_a_wrong_setting(tmp_path: Path, setting: str, strict: bool) -> None:
    (tmp_path / "main.py").write_text("print('user code runs')")
    name, _, value = setting.partition("=")
    process = run("main.py", cwd=tmp_path, **{name: value}, **({"AUTOINSTR_STRICT": "1"} if strict else {}))
    assert our_lines(process) == [f"autoinstr: {WRONG_SETTINGS[setting]}", *([STOPPED] if strict else [])]
    assert (process.returncode, process.stdout) == ((2, "") if strict else (0, "user code runs\n"))


def test_files_that_are_separated_otherwise(tmp_path: Path) -> None:
    process = run("-c", "", cwd=tmp_path, AUTOINSTR_SPAN_MAPS="good.yaml,bad.yaml")
    assert our_lines(process) == [
        f"autoinstr: {tmp_path}/good.yaml,bad.yaml: there is no such file (files are separated by ':'); "
        "the map is left out"
    ]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    process = run("-c", "", cwd=tmp_path, AUTOINSTR_SPAN_MAPS="pipe.yaml")
    assert our_lines(process) == [f"autoinstr: {tmp_path}/pipe.yaml: this is a pipe and no file; the map is left out"]


def test_a_wrong_variable_of_opentelemetry_costs_one_line(tmp_path: Path) -> None:
    """The SDK takes none of its own then, and phases are still measured by nobody."""
    process = go(
        tmp_path, GOOD.replace("good", "bad"), OTEL_BSP_MAX_QUEUE_SIZE="-1", OTEL_EXPORTER_OTLP_ENDPOINT="http://h:1"
    )
    assert our_lines(process) == [
        "autoinstr: OpenTelemetry's exporters could not be set up: max_queue_size must be a positive integer.; "
        "spans go to the journal only"
    ]
    assert sorted(span["name"] for span in journal_spans(tmp_path)) == ["my.bad", "my.good"]


def test_names_of_spans_that_some_map_has_are_good(tmp_path: Path) -> None:
    """A shipped map's that is not read yet, one of several entries, and those of the user's maps."""
    (tmp_path / "quoted.yaml").write_text(
        'map: quoted\npackage: my_pkg\nspans:\n  "my.quoted" : {group: step, function: my_pkg.loop:good}\n'
    )
    names = "rl.grpo.step,-rl.vllm.generate,my.good,my.quoted,-my.other"
    process = go(tmp_path, GOOD.replace("map: good", "map: bad").replace("my.good", "my.other"))
    assert our_lines(process) == []
    process = run(
        "main.py",
        cwd=tmp_path,
        AUTOINSTR_SPAN_MAPS="bad.yaml:good.yaml:quoted.yaml",
        AUTOINSTR_SPAN_GROUPS=names,
        AUTOINSTR_STRICT="1",
        AUTOINSTR_RUN_DIR="second",
        PYTHONPATH=".",
    )
    assert (process.returncode, our_lines(process)) == (0, [])


def test_strict_with_good_maps_is_silent(tmp_path: Path) -> None:
    process = go(tmp_path, GOOD.replace("map: good", "map: bad").replace("my.good", "my.bad"), AUTOINSTR_STRICT="1")
    assert (process.returncode, our_lines(process)) == (0, [])
    assert sorted(span["name"] for span in journal_spans(tmp_path)) == ["my.bad", "my.good"]

"""Under `opentelemetry-instrument`: switched off, beside others, misconfigured, with a sitecustomize of the user's.

Every case is a process of its own, which runs a small package and prints what it sees.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import HUNG, clean_environment, journal_spans, our_lines, run

MAP = """
map: toy
package: toy
spans:
  toy.train: {group: job, function: toy:train}
"""

SCRIPT = """
import json, sys, threading
import toy
toy.train()
print(json.dumps({
    "original": toy.train is toy.MADE,
    "threads": [t.name for t in threading.enumerate()],
    "finders": [f"{type(f).__module__}.{type(f).__name__}" for f in sys.meta_path],
    "sitecustomize": getattr(sys, "_users_own", None),
}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text("def train():\n    return 1\nMADE = train\n")
    (tmp_path / "map.yaml").write_text(MAP)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def start(project: Path, **env: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run the script; it must end well, and is traced or not."""
    done = run("script.py", cwd=project, **{"AUTOINSTR_SPAN_MAPS": str(project / "map.yaml"), **env})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done


def test_it_is_on_by_default(project: Path) -> None:
    seen, done = start(project)
    assert not seen["original"]
    assert our_lines(done) == []
    assert [span["name"] for span in journal_spans(project)] == ["toy.train"]


@pytest.mark.parametrize(
    "switch",
    [
        {"AUTOINSTR_ENABLED": "false"},
        {"AUTOINSTR_ENABLED": "0"},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_SDK_DISABLED": "TRUE"},
        {"AUTOINSTR_ENABLED": "false", "OTEL_TRACES_EXPORTER": "otlp", "AUTOINSTR_JOURNAL": "on"},
        {"NEMO_RL_OTEL_ENABLED": "false"},
    ],
    ids=lambda switch: ",".join(f"{k}={v}" for k, v in switch.items()),
)
def test_switched_off_it_does_not_exist(switch: dict[str, str], project: Path) -> None:
    seen, done = start(project, **switch)
    assert seen["original"]
    assert seen["threads"] == ["MainThread"]
    assert not [name for name in seen["finders"] if name.startswith(("autoinstr", "wrapt"))]
    assert not (project / "autoinstr-runs").exists()
    assert done.stderr == ""


def test_a_rank_that_is_not_selected_is_not_touched(project: Path) -> None:
    seen, done = start(project, AUTOINSTR_RANKS="first", RANK="3", WORLD_SIZE="8")
    assert seen["original"]
    assert not (project / "autoinstr-runs").exists()
    assert done.stderr == ""


OTHERS = "no OpenTelemetry SDK is set up"


@pytest.mark.parametrize(
    ("env", "says", "journal"),
    [
        # another distro and another configurator of that name are not installed: OpenTelemetry says so, or not
        ({"OTEL_PYTHON_DISTRO": "other"}, None, True),
        ({"OTEL_PYTHON_CONFIGURATOR": "other"}, OTHERS, False),
        ({"OTEL_PYTHON_DISTRO": "autoinstr", "OTEL_PYTHON_CONFIGURATOR": "autoinstr"}, None, True),
        ({"OTEL_TRACES_EXPORTER": "otpl", "AUTOINSTR_JOURNAL": "on"}, "exporters could not be set up", True),
        ({"OTEL_TRACES_EXPORTER": "otpl"}, "spans go to the journal only", True),
        ({"OTEL_TRACES_EXPORTER": "none"}, None, False),
    ],
)
def test_another_set_up(env: dict[str, str], says: str | None, journal: bool, project: Path) -> None:
    seen, done = start(project, **env)
    lines = our_lines(done)
    if says is None:
        assert lines == []
    else:
        assert len(lines) == 1, lines
        assert says in lines[0]
    assert not seen["original"]
    assert [span["name"] for span in journal_spans(project)] == (["toy.train"] if journal else [])


OTHER_DISTRO = """
from opentelemetry.instrumentation.distro import BaseDistro
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

class OtherDistro(BaseDistro):
    def _configure(self, **kwargs):
        pass

class OtherConfigurator:
    def configure(self, **kwargs):
        trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.parametrize("chosen", [True, False])
def test_another_distro_is_installed(chosen: bool, project: Path) -> None:
    """Its provider gets our journal. Where nobody chooses, OpenTelemetry takes whichever it finds first."""
    (project / "other_distro.py").write_text(OTHER_DISTRO)
    info = project / "other_distro-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-distro\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_distro]\nother = other_distro:OtherDistro\n"
        "[opentelemetry_configurator]\nother = other_distro:OtherConfigurator\n"
    )
    env = {"OTEL_PYTHON_DISTRO": "other", "OTEL_PYTHON_CONFIGURATOR": "other"} if chosen else {}
    seen, done = start(project, PYTHONPATH=str(project), **env)
    assert not seen["original"]
    assert our_lines(done) == []
    assert [span["name"] for span in journal_spans(project)] == ["toy.train"]


def test_the_users_own_sitecustomize_runs(project: Path) -> None:
    own = project / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys._users_own = __name__, __file__\n")
    seen, done = start(project, PYTHONPATH=str(own))
    assert seen["sitecustomize"] == ["sitecustomize", str(own / "sitecustomize.py")]
    assert not seen["original"]
    assert done.stderr == ""


@pytest.mark.parametrize("switch", [{"AUTOINSTR_ENABLED": "false"}, {"OTEL_SDK_DISABLED": "true"}])
def test_the_users_own_sitecustomize_runs_when_we_are_off(switch: dict[str, str], project: Path) -> None:
    own = project / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys._users_own = True\n")
    seen, done = start(project, PYTHONPATH=str(own), **switch)
    assert seen["sitecustomize"] is True
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("source", "error"), [("1 / 0\n", "ZeroDivisionError: division by zero"), ("def f(:\n", "SyntaxError: ")]
)
def test_an_error_in_the_users_own_sitecustomize_is_one_line(source: str, error: str, project: Path) -> None:
    own = project / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(source)
    seen, done = start(project, PYTHONPATH=str(own))
    assert not seen["original"]
    # the launcher is a Python too, and its own words of the same error come first
    (line,) = our_lines(done)
    assert done.stderr.splitlines()[-1] == line
    assert line.startswith(f"autoinstr: error in {own / 'sitecustomize.py'}: {error}")


def test_a_sitecustomize_that_is_no_file_or_leads_to_one_with_instrumentation_off(project: Path) -> None:
    """Nothing to run is nothing to say."""
    _, done = start(project, PYTHONPATH=str(project / "nowhere"))
    assert done.stderr == ""


def test_instrumented_twice_and_again_after_undo(project: Path) -> None:
    """Every call has one span, however often somebody calls `instrument()`."""
    (project / "script.py").write_text(
        "import toy\nfrom autoinstr.instrumentor import AutoinstrInstrumentor\n"
        "us = AutoinstrInstrumentor()\nus.instrument()\ntoy.train()\n"
        "us.uninstrument()\nassert toy.train is toy.MADE\ntoy.train()\n"
        "us.instrument()\ntoy.train()\nprint('{}')\n"
    )
    start(project)
    assert [span["name"] for span in journal_spans(project)] == ["toy.train", "toy.train"]


def test_without_opentelemetry_instrument(project: Path) -> None:
    """`AutoinstrInstrumentor().instrument()` in a program that has set up no SDK: one line says what to do."""
    (project / "script.py").write_text(
        "from autoinstr.instrumentor import AutoinstrInstrumentor\nAutoinstrInstrumentor().instrument()\n" + SCRIPT
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=project,
        env=clean_environment(AUTOINSTR_SPAN_MAPS=str(project / "map.yaml")),
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert OTHERS in line

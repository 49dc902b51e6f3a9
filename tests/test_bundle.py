"""`autoinstr bundle`: environments that have no autoinstr, or parts of it in other versions, and other Pythons."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from runs import HUNG, clean_environment, journal_spans, run

from autoinstr.cli import main
from autoinstr.spans.ids import trace_id_of

JOBS = """
import subprocess

def parent(*command, **options):
    subprocess.run(command, check=True, **options)

def child():
    pass
"""
MAP = """
map: jobs
package: jobs
spans:
  jobs.parent: {group: job, function: jobs:parent}
  jobs.child: {group: step, function: jobs:child}
"""
TELL = """
import sys
import jobs
jobs.child()
import wrapt, yaml
print("wrapt", wrapt.__file__)
print("yaml", yaml.__file__)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "bundle"
    assert main(["bundle", str(folder)]) == 0
    return folder


class Environment(NamedTuple):
    """A virtual environment of its own, with nothing installed."""

    python: Path
    site: Path

    def has(self, name: str, version: str, **modules: str) -> None:
        """Install a distribution: its metadata, and its modules by dotted name (`opentelemetry__sdk`)."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for module, source in modules.items():
            file = self.site.joinpath(*module.split("__"), "__init__.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)


def make_environment(folder: Path, python: str = sys.executable) -> Environment:
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    return Environment(folder / "bin" / "python", site)


@pytest.fixture
def other(tmp_path: Path) -> Environment:
    return make_environment(tmp_path / "other")


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "jobs.py").write_text(JOBS)
    (folder / "jobs.yaml").write_text(MAP)
    (folder / "tell.py").write_text(TELL)
    return folder


def settings(jobs: Path, path: Path, **more: str) -> dict[str, str]:
    return {
        "AUTOINSTR_SPAN_MAPS": str(jobs / "jobs.yaml"),
        "AUTOINSTR_SPAN_GROUPS": "all",
        "AUTOINSTR_BUILTIN_MAPS": "none",
        "AUTOINSTR_RUN_ID": "family",
        "PYTHONPATH": str(path),
        **more,
    }


def in_other(
    other: Environment, bundle: Path, jobs: Path, *command: str, **more: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(other.python), *(command or ("tell.py",))],
        cwd=jobs,
        env=clean_environment(**settings(jobs, bundle, **more)),
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.returncode == 0, done.stderr
    return done


def names(jobs: Path) -> Counter[str]:
    return Counter(span["name"] for span in journal_spans(jobs))


# -- nothing installed -----------------------------------------------------------------------------------


def test_a_worker_whose_environment_has_nothing_joins_the_run(other: Environment, bundle: Path, jobs: Path) -> None:
    (jobs / "driver.py").write_text(
        textwrap.dedent(f"""
        import os
        import jobs
        jobs.parent({str(other.python)!r}, "tell.py", env={{**os.environ, "PYTHONPATH": {str(bundle)!r}}})
        """)
    )
    done = run("driver.py", cwd=jobs, **settings(jobs, jobs))
    assert (done.returncode, done.stderr) == (0, "")
    spans = {span["name"]: span for span in journal_spans(jobs)}
    assert set(spans) == {"jobs.parent", "jobs.child"}
    assert spans["jobs.child"]["parentSpanId"] == spans["jobs.parent"]["spanId"]
    assert {span["traceId"] for span in spans.values()} == {f"{trace_id_of('family'):032x}"}


def _pythons() -> list[str]:
    """Pythons of other minor versions that this machine has."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = {}
    for minor in range(10, 15):
        if minor == sys.version_info.minor:
            continue
        for candidate in [shutil.which(f"python3.{minor}"), *map(str, root.glob(f"3.{minor}.*/bin/python"))]:
            if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
                found[minor] = candidate
                break
    return list(found.values())


def test_workers_of_other_pythons(bundle: Path, jobs: Path, tmp_path: Path) -> None:
    pythons = _pythons()
    if not pythons:
        pytest.skip("no other Python from 3.10 on is here")
    for number, python in enumerate({pythons[0], pythons[-1]}):
        done = in_other(make_environment(tmp_path / f"env{number}", python), bundle, jobs)
        assert done.stderr == ""
        assert names(jobs) == {"jobs.child": number + 1}


def test_what_is_in_the_folder_is_found_by_its_own_loader_alone(other: Environment, bundle: Path, jobs: Path) -> None:
    assert sorted(path.name for path in bundle.iterdir() if path.name != "__pycache__") == [
        "bundle.json",
        "packages",
        "sitecustomize.py",
    ], "anything else would shadow a module of the environment"


def test_a_python_that_is_too_old_can_read_why_it_is_not_traced(bundle: Path) -> None:
    """As /usr/bin/python3 may be, on which the machine's own programs run: an error would be each one's first line."""
    source = (bundle / "sitecustomize.py").read_text()
    ast.parse(source, feature_version=(3, 7))
    assert "__future__" not in source, "3.6 does not know the one for annotations"


@pytest.mark.parametrize("switch", [{"AUTOINSTR_ENABLED": "false"}, {"OTEL_SDK_DISABLED": "true"}])
def test_switched_off(other: Environment, bundle: Path, jobs: Path, switch: dict[str, str]) -> None:
    script = (
        "import sys, jobs; jobs.child(); print(len(sys.path), 'opentelemetry' in sys.modules, jobs.child.__module__)"
    )
    plain = in_other(other, jobs, jobs, "-c", script)
    off = in_other(other, bundle, jobs, "-c", script, **switch)
    assert (off.stdout, off.stderr) == (plain.stdout, "")
    assert journal_spans(jobs) == []


# -- an environment with copies of its own ---------------------------------------------------------------


def test_what_the_environment_has_wins(other: Environment, bundle: Path, jobs: Path) -> None:
    for name in ("wrapt", "yaml"):
        (package,) = bundle.glob(f"packages/*/{name}")
        shutil.copytree(package, other.site / name)
    other.has("wrapt", "2.99")
    other.has("PyYAML", "99.0")
    done = in_other(other, bundle, jobs)
    assert done.stderr == ""
    assert done.stdout.split() == [
        *("wrapt", str(other.site / "wrapt" / "__init__.py")),
        *("yaml", str(other.site / "yaml" / "__init__.py")),
    ]
    assert names(jobs) == {"jobs.child": 1}


OLD = "def old(): pass\n"


def older(other: Environment) -> None:
    """What a Ray of 2025 brings along."""
    other.has("opentelemetry-api", "1.34.1", opentelemetry__trace=OLD)
    other.has("opentelemetry-sdk", "1.34.1", opentelemetry__sdk__trace=OLD)
    other.has("opentelemetry-semantic-conventions", "0.55b1", opentelemetry__semconv=OLD)
    other.has("opentelemetry-exporter-prometheus", "0.55b1", opentelemetry__exporter__prometheus=OLD)


SEE = """
import sys
print([name for name in sys.modules if name.startswith(("opentelemetry", "autoinstr", "packaging"))])
print([part for part in sys.path if "packages" in part and "site-packages" not in part])
import jobs, opentelemetry.sdk.trace, opentelemetry.trace, opentelemetry.exporter.prometheus
jobs.child()
print(opentelemetry.sdk.trace.__file__)
"""


def test_an_environment_that_is_too_old_is_left_alone(other: Environment, bundle: Path, jobs: Path) -> None:
    older(other)
    done = in_other(other, bundle, jobs, "-c", SEE)
    assert done.stdout.splitlines() == ["[]", "[]", str(other.site / "opentelemetry" / "sdk" / "trace" / "__init__.py")]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"autoinstr: {bundle}: this environment has opentelemetry-")
    assert line.endswith(" (autoinstr bundle --replace-older would bring its own); this process is not traced")
    assert journal_spans(jobs) == []


def test_a_part_that_is_missing_does_not_make_a_mixture(other: Environment, bundle: Path, jobs: Path) -> None:
    """Of one release are: the SDK and its conventions; instrumentation of another would be beside them."""
    other.has("opentelemetry-api", "1.90.0", opentelemetry__trace=OLD)
    other.has("opentelemetry-sdk", "1.90.0", opentelemetry__sdk__trace=OLD)
    other.has("opentelemetry-semantic-conventions", "0.90b0", opentelemetry__semconv=OLD)
    done = in_other(other, bundle, jobs, "-c", "import jobs; jobs.child()")
    (line,) = done.stderr.splitlines()
    assert "this environment has opentelemetry-semantic-conventions 0.90b0, and opentelemetry-instrumentation" in line


@pytest.fixture(scope="module")
def replacing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "bundle"
    assert main(["bundle", str(folder), "--replace-older"]) == 0
    return folder


def test_replace_older_puts_the_whole_of_the_bundles_in_its_place(
    other: Environment, replacing: Path, jobs: Path
) -> None:
    older(other)
    done = in_other(other, replacing, jobs, "-c", SEE)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith(str(replacing / "packages" / "opentelemetry-sdk-"))
    assert names(jobs) == {"jobs.child": 1}


def test_replace_older_replaces_nothing_newer(other: Environment, replacing: Path, jobs: Path) -> None:
    older(other)
    other.has("opentelemetry-proto", "99.0", opentelemetry__proto=OLD)
    done = in_other(other, replacing, jobs, "-c", SEE)
    assert done.stdout.splitlines() == ["[]", "[]", str(other.site / "opentelemetry" / "sdk" / "trace" / "__init__.py")]
    (line,) = done.stderr.splitlines()
    assert "but its opentelemetry-proto 99.0 is newer than the bundle's; this process is not traced" in line


# -- programs that look after environments ---------------------------------------------------------------


PIP = """
import sys
from importlib import metadata
print(sorted(one.metadata["Name"] for one in metadata.distributions()), "opentelemetry" in sys.modules)
"""


@pytest.mark.parametrize(
    "command", [["pip3.12", "install"], ["-W", "ignore", "-m", "pip", "install"], ["-Bmpip"], ["-m", "venv", "-h"]]
)
def test_an_installer_sees_only_what_the_environment_has(
    other: Environment, bundle: Path, jobs: Path, command: list[str]
) -> None:
    """Else `pip install requests` would find the bundle's, and install nothing."""
    (jobs / "pip3.12").write_text(PIP)
    (jobs / "pip.py").write_text(PIP)
    (jobs / "venv.py").write_text(PIP)
    other.has("numpy", "2.0")
    path = str(Path(os.pathsep.join(map(str, (bundle, jobs)))))
    assert in_other(other, bundle, jobs, *command, PYTHONPATH=path).stdout == "['numpy'] False\n"


@pytest.mark.parametrize(
    "command", [["train.py", "pip"], ["-c", "import train", "-m", "pip"], ["-X", "dev", "-mtrain"]]
)
def test_a_program_that_only_speaks_of_one_is_traced(
    other: Environment, bundle: Path, jobs: Path, command: list[str]
) -> None:
    (jobs / "train.py").write_text("import jobs; jobs.child()")
    in_other(other, bundle, jobs, *command)
    assert names(jobs) == {"jobs.child": 1}


# -- other start-up modules ------------------------------------------------------------------------------


def test_the_next_sitecustomize_is_run(other: Environment, bundle: Path, jobs: Path) -> None:
    (other.site / "sitecustomize.py").write_text("print('the environment\\'s own')")
    done = in_other(other, bundle, jobs, "-c", "import jobs; jobs.child()")
    assert (done.stdout, done.stderr) == ("the environment's own\n", "")
    assert names(jobs) == {"jobs.child": 1}
    assert in_other(other, bundle, jobs, "-c", "", AUTOINSTR_ENABLED="0").stdout == "the environment's own\n"


def test_beside_opentelemetry_instrument(bundle: Path, jobs: Path) -> None:
    """The driver has autoinstr of its own, and hands its path to the workers."""
    (jobs / "next").mkdir()
    (jobs / "next" / "sitecustomize.py").write_text("print('the next', flush=True)")  # before the command's exec
    path = Path(os.pathsep.join(map(str, (bundle, jobs / "next"))))
    done = run("-c", "import autoinstr, jobs; jobs.child()", cwd=jobs, **settings(jobs, path))
    # one is that of the command itself, which becomes the driver
    assert (done.returncode, done.stdout, done.stderr) == (0, "the next\n" * 2, "")
    assert names(jobs) == {"jobs.child": 1}


def test_a_process_that_a_worker_starts_is_traced_too(other: Environment, bundle: Path, jobs: Path) -> None:
    script = "import sys, jobs; jobs.parent(sys.executable, '-c', 'import jobs; jobs.child()')"
    assert in_other(other, bundle, jobs, "-c", script).stderr == ""
    assert names(jobs) == {"jobs.parent": 1, "jobs.child": 1}


def test_a_bundle_that_is_damaged(other: Environment, bundle: Path, jobs: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    (broken / "bundle.json").write_text("{")
    done = in_other(other, broken, jobs, "-c", "print('as ever')")
    assert done.stdout == "as ever\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"autoinstr: {broken}: JSONDecodeError")


# -- the command -----------------------------------------------------------------------------------------


def test_a_folder_that_is_no_bundle_is_not_touched(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(jobs.iterdir())
    assert main(["bundle", str(jobs)]) == 1
    assert sorted(jobs.iterdir()) == before
    assert capsys.readouterr().err == f"autoinstr bundle: {jobs} is there and is no bundle; name a new folder\n"


def test_an_earlier_bundle_is_replaced(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = tmp_path / "earlier"
    shutil.copytree(bundle, earlier)
    (earlier / "packages" / "left-over").mkdir()
    assert main(["bundle", str(earlier)]) == 0
    assert not (earlier / "packages" / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["earlier"]
    assert "without grpcio: it is compiled for one Python" in capsys.readouterr().out


def test_a_distribution_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", str(tmp_path / "new"), "--with", "no-such-thing"]) == 1
    assert "no-such-thing is not installed in this environment" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

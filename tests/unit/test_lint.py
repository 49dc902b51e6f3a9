"""`autoinstr lint`: every mistake with its place, a count, and the exit status."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoinstr.cli import main
from autoinstr.maps.catalog import builtin_folder, yaml_files

GOOD = "map: good\npackage: p\nspans:\n  a.b: {group: step, function: 'a:b'}\n"
BAD = "map: bad\npackage: p\nspans:\n  a.b: {group: stp, functon: 'a:b'}\n  a.c: {group: step, function: 'a:c'}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    return tmp_path


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    status = main(["lint", *arguments])
    return status, capsys.readouterr().out.splitlines()


def test_a_good_map(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, "good.yaml") == (0, ["1 map, no mistakes"])


def test_every_mistake_has_its_place_as_the_path_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, "good.yaml", "bad.yaml") == (
        1,
        [
            "bad.yaml:4:16: unknown group 'stp', did you mean 'step'?; the span 'a.b' is left out",
            "bad.yaml:4:21: unknown key 'functon' in the span 'a.b', did you mean 'function'?; "
            "the span 'a.b' is left out",
            "2 mistakes in 2 maps",
        ],
    )


def test_a_folder(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "maps").mkdir()
    (here / "maps" / "one.yml").write_text(BAD.replace("stp", "step"))
    (here / "maps" / ".hidden.yaml").write_text("[")
    status, lines = lint(capsys, "maps")
    assert status == 1
    assert lines[0].startswith("maps/one.yml:4:22: unknown key 'functon'")
    assert lines[1:] == ["1 mistake in 1 map"]


def test_a_map_is_looked_at_once(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "bad.yaml").unlink()
    assert lint(capsys, "good.yaml", "good.yaml") == (0, ["1 map, no mistakes"])


def test_what_is_not_there(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "empty").mkdir()
    assert lint(capsys, "goood.yaml", "empty") == (
        1,
        [
            "goood.yaml: there is no such file, did you mean 'good.yaml'?; the map is left out",
            "empty: the folder holds no .yaml file; nothing is read from it",
            "2 mistakes in 1 map",
        ],
    )


def test_the_shipped_maps(capsys: pytest.CaptureFixture[str]) -> None:
    maps = len(yaml_files(builtin_folder()))
    assert lint(capsys, str(builtin_folder())) == (0, [f"{maps} maps, no mistakes"])
    assert lint(capsys, os.path.relpath(builtin_folder())) == (0, [f"{maps} maps, no mistakes"])


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint"]) == 2
    assert main(["lint", "--nope", "good.yaml"]) == 2
    assert "autoinstr lint: error:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["lint", "good.yaml"], ["spans"], ["schema"]])
def test_it_starts_without_opentelemetry(arguments: list[str], here: Path) -> None:
    code = (
        "import sys; from autoinstr.cli import main; main(sys.argv[1:]); "
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('opentelemetry', 'wrapt', 'pydantic')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")} | {"AUTOINSTR_SPAN_MAPS": ""},
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_folder_that_can_not_be_listed(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files beside it are read; in a run too, which must not end before its training because of a map."""
    (here / "maps" / "locked").mkdir(parents=True)
    (here / "maps" / "good.yaml").write_text(GOOD)
    listed = os.scandir

    def refused(path: str) -> object:
        if path.endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert lint(capsys, "maps") == (
        1,
        ["maps/locked: can't be read: Permission denied; its maps are left out", "1 mistake in 1 map"],
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize("arguments", [["schema"], ["spans"], ["lint", "good.yaml"]])
def test_a_full_disk_is_one_line(arguments: list[str], here: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autoinstr", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"AUTOINSTR_SPAN_MAPS": "good.yaml"},
        )
    assert done.stderr.splitlines()[-1] == f"autoinstr {arguments[0]}: No space left on device"
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)

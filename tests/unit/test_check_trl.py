"""The maps for TRL against its releases, by snapshots of names: no TRL is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoinstr.check.facts import from_json, to_json
from autoinstr.cli import main

SNAPSHOTS = Path(__file__).resolve().parents[1] / "snapshots"
RELEASES = ("0.17.0", "0.24.0", "1.2.0", "1.16.0")


def snapshot(release: str) -> Path:
    return SNAPSHOTS / f"trl-{release}.json"


@pytest.fixture(autouse=True)
def _only_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTOINSTR_SPAN_MAPS", "AUTOINSTR_BUILTIN_MAPS", "AUTOINSTR_SPAN_GROUPS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("release", RELEASES)
def test_every_map_fits_every_release(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", "--package", "trl", "--snapshot", str(snapshot(release))])
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed[:-1] if "(absent in this release)" not in line] == []
    assert status == 0
    assert "all there" in printed[-1]


@pytest.mark.parametrize("release", RELEASES)
def test_a_snapshot_holds_facts_and_stays_small(release: str) -> None:
    text = snapshot(release).read_text(encoding="utf-8")
    assert len(text) < 140_000
    assert to_json(from_json(text)) == text
    assert from_json(text).packages == ("trl",)
    others = {module for module in from_json(text).modules if not module.startswith("trl")}
    assert others == {"transformers", "transformers.trainer"}, "of transformers only what the trainers inherit"


@pytest.mark.parametrize(
    ("word", "other", "said"),
    [
        ("_calculate_rewards", "_compute_rewards", "GRPOTrainer has no '_calculate_rewards'"),
        # inherited from transformers
        ("_maybe_log_save_evaluate", "_maybe_log", "DPOTrainer has no '_maybe_log_save_evaluate'"),
        ("grad_norm", "gradient_norm", "nothing writes the logger key 'grad_norm'"),
    ],
)
def test_drift_is_named(word: str, other: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that is optional counts as absent in one release, and as missing where an earlier one had it."""
    drifted = tmp_path / "drifted.json"
    drifted.write_text(snapshot("1.16.0").read_text(encoding="utf-8").replace(word, other), encoding="utf-8")
    known = str(snapshot("1.16.0"))
    assert main(["check", "--package", "trl", "--snapshot", str(drifted), "--since", known]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(said in line and line.partition(":")[0].endswith(".yaml") for line in lines), lines


def test_the_table_in_the_documentation_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(snapshot(release)) for release in RELEASES]
    assert main(["check", "--table", "--package", "trl", "--snapshot", *files]) == 0
    page = (Path(__file__).parents[2] / "docs" / "trl.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page

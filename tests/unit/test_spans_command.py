"""`autoinstr spans`: what the active maps know, as the environment has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autoinstr.cli import main

MAP = """map: mine
package: my_pkg
inside: my_pkg.loops
groups:
  tuning: {bucket: overhead, about: "a search over settings"}
spans:
  my.job:
    group: job
    function: my_pkg.main:train
  my.step:
    about: one step of the loop
    group: step
    block: my_pkg.timer:time(label=step|epoch)
    attributes:
      rl.iteration: [caller.step | add(1), 3]
    scope: {bucket: idle, groups: {rollout: job}}
    versions: my-pkg>=2
  my.wait:
    group: rollout
    bucket: idle
    between:
      begin: {first_of: [my_pkg.q:start, my_pkg.q:begin]}
      until: my_pkg.q:stop
      match: args.key
      once: true
  my.tuning: {group: tuning, each: my_pkg.tune:trials, optional: true}
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOINSTR_SPAN_MAPS", "mine.yaml")
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "none")
    monkeypatch.delenv("AUTOINSTR_SPAN_GROUPS", raising=False)
    return path


@pytest.fixture
def spans(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["spans", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def columns(out: str) -> list[list[str]]:
    return [re.split("  +", line.strip()) for line in out.splitlines()]


def test_the_list(spans: Any) -> None:
    status, out, err = spans()
    assert (status, err) == (0, "")
    assert columns(out) == [
        ["SPAN", "GROUP", "BUCKET", "SELECTED", "JOIN", "TARGET", "MAP"],
        ["my.job", "job", "-", "yes", "function", "my_pkg.main:train", "mine.yaml:7"],
        ["my.step", "step", "-", "no", "block", "my_pkg.timer:time(label=step|epoch)", "mine.yaml:10"],
        ["my.wait", "rollout", "idle", "in a scope", "between", "my_pkg.q:start +2", "mine.yaml:18"],
        ["my.tuning", "tuning", "overhead", "no", "each", "my_pkg.tune:trials", "mine.yaml:26"],
        [""],
        ["4 spans, 1 selected by AUTOINSTR_SPAN_GROUPS=default"],
    ]
    assert len({line.index("mine.yaml") for line in out.splitlines()[1:5]}) == 1  # in columns


def test_one_in_detail(spans: Any) -> None:
    status, out, err = spans("my.step")
    assert (status, err) == (0, "")
    assert (
        out
        == """my.step
  about                   one step of the loop
  map                     mine.yaml:10 (mine, yours)
  package                 my_pkg
  group                   step: one training step
  bucket                  none
  selected                no (not in AUTOINSTR_SPAN_GROUPS=default)
  block                   my_pkg.timer:time(label=step|epoch)
  inside                  my_pkg.loops
  attribute rl.iteration  caller.step | add(1) or 3
  scope                   bucket idle, rollout counts as job
  versions                my-pkg>=2
"""
    )


def test_a_pair_in_detail(spans: Any) -> None:
    assert (
        spans("my.wait")[1]
        == """my.wait
  map       mine.yaml:18 (mine, yours)
  package   my_pkg
  group     rollout: prompts become trajectories
  bucket    idle
  selected  in a scope (counts as 'job' inside a scope that says so)
  begin     my_pkg.q:start, else my_pkg.q:begin
  until     my_pkg.q:stop
  match     args.key
  inside    my_pkg.loops
  also      once
"""
    )


def test_a_pattern(spans: Any) -> None:
    status, out, _ = spans("my.[jt]*")
    assert status == 0
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == ["my.job", "my.tuning"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my.stpe", "no active map has the span 'my.stpe', did you mean 'my.step'?"),
        ("zzz", "no active map has the span 'zzz'"),
        ("zzz*", "no active map has a span like 'zzz*'"),
    ],
)
def test_an_unknown_name(spans: Any, name: str, told: str) -> None:
    assert spans(name) == (1, "", f"autoinstr spans: {told}\n")


def test_the_environments_groups(spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOINSTR_SPAN_GROUPS", "tuning,my.step,-my.job,-my.jbo,tunign")
    status, out, err = spans()
    assert status == 0
    assert {row[0]: row[3] for row in columns(out)[1:5]} == {
        "my.job": "no",
        "my.step": "yes",
        "my.wait": "no",
        "my.tuning": "yes",
    }
    assert err.splitlines() == [
        "autoinstr spans: AUTOINSTR_SPAN_GROUPS: unknown span group 'tunign', did you mean 'tuning'?; it is left out",
        "autoinstr spans: AUTOINSTR_SPAN_GROUPS: no active map has the span 'my.jbo', did you mean 'my.job'?; "
        "it is left out",
    ]


def test_the_environments_maps(spans: Any, monkeypatch: pytest.MonkeyPatch, mine: Path) -> None:
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "nemo_rl.grpo")
    mine.write_text(
        "map: mine\npackage: nemo_rl\nspans:\n  rl.grpo.step: {group: step, function: 'a:b'}\n"
        "  rl.grpo.job: {disabled: true}\n  wrong.one: {group: stp, function: 'a:b'}\n"
    )
    status, out, err = spans("rl.grpo.step")
    assert status == 0
    assert "mine.yaml:4 (mine, yours)" in out
    assert re.search(r"replaces +.*nemo_rl/grpo.yaml:\d+\n", out)
    assert err == (
        f"autoinstr spans: {mine}:6:22: unknown group 'stp', did you mean 'step'?; the span 'wrong.one' is left out\n"
    )
    status, out, err = spans("rl.grpo.job")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == "autoinstr spans: the span 'rl.grpo.job' is disabled in mine.yaml"


def test_as_json(spans: Any, mine: Path) -> None:
    status, out, _ = spans("--json", "my.w*")
    assert status == 0
    assert json.loads(out) == {
        "span_groups": "default",
        "spans": [
            {
                "name": "my.wait",
                "about": "",
                "group": "rollout",
                "bucket": "idle",
                "selected": False,
                "counts_as": "job",
                "join": "between",
                "targets": [["my_pkg.q:start", "my_pkg.q:begin"]],
                "ends": [],
                "untils": [["my_pkg.q:stop"]],
                "once": True,
                "match": ["args.key"],
                "inside": ["my_pkg.loops"],
                "only_when": {},
                "attributes": {},
                "scope": None,
                "coalesce": None,
                "keep": False,
                "optional": False,
                "subclasses": False,
                "content": False,
                "threads": False,
                "start_from": None,
                "versions": None,
                "map": "mine",
                "package": "my_pkg",
                "layer": "yours",
                "file": str(mine),
                "line": 18,
                "replaces": [],
            }
        ],
    }
    assert len(json.loads(spans("--json")[1])["spans"]) == 4


def test_every_shipped_span_is_listed(spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "all")
    monkeypatch.setenv("AUTOINSTR_SPAN_MAPS", "")
    monkeypatch.setenv("AUTOINSTR_SPAN_GROUPS", "all")
    status, out, err = spans("--json")
    assert (status, err) == (0, "")
    found = json.loads(out)["spans"]
    assert {"rl.grpo.job", "rl.grpo.step", "rl.startup"} <= {span["name"] for span in found}
    assert all(span["selected"] and span["layer"] == "built in" for span in found)


def test_a_shipped_map_is_named_without_the_folder_of_its_installation(
    spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "vllm")
    _, out, _ = spans()
    assert re.search(r"^vllm\.generate .* span_maps/vllm\.yaml:\d+$", out, re.MULTILINE)
    _, out, _ = spans("vllm.generate")
    assert re.search(r"^  map  .* /.*/span_maps/vllm\.yaml:\d+ \(", out, re.MULTILINE), "the whole path, to open it"

"""The environment: each variable, the names that are read where ours is unset, and what is wrong in them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from autoinstr.metrics import switch
from autoinstr.settings import Settings


def read(**environ: str) -> Settings:
    return Settings.from_environ(environ)


def test_the_defaults() -> None:
    settings = read()
    assert settings.enabled
    assert settings.span_groups == "default"
    assert settings.span_maps == ()
    assert settings.builtin_maps == "all"
    assert settings.ranks == "all"
    assert re.fullmatch("[0-9a-f]{12}", settings.run_id)
    assert settings.user_id is None
    assert settings.run_dir == Path("autoinstr-runs").absolute()
    assert settings.journal
    assert not settings.strict
    assert not settings.capture_content
    assert settings.mistakes == ()


def test_every_variable() -> None:
    settings = read(
        AUTOINSTR_SPAN_GROUPS="per_step,-job",
        AUTOINSTR_SPAN_MAPS=os.pathsep.join(["/maps/a.yaml", "", "b", "~/c"]),
        AUTOINSTR_BUILTIN_MAPS="nemo_rl",
        AUTOINSTR_RANKS="first",
        AUTOINSTR_RUN_ID="run-1",
        AUTOINSTR_USER_ID="somebody",
        AUTOINSTR_RUN_DIR="/runs",
        AUTOINSTR_JOURNAL="OFF",
        AUTOINSTR_STRICT="yes",
        AUTOINSTR_CAPTURE_CONTENT="1",
    )
    assert settings.span_groups == "per_step,-job"
    assert settings.span_maps == (Path("/maps/a.yaml"), Path("b").absolute(), Path("~/c").expanduser())
    assert (settings.builtin_maps, settings.ranks, settings.run_id) == ("nemo_rl", "first", "run-1")
    assert (settings.user_id, settings.run_dir) == ("somebody", Path("/runs"))
    assert (settings.journal, settings.strict, settings.capture_content) == (False, True, True)
    assert settings.mistakes == ()


@pytest.mark.parametrize("word", ["1", "true", "True", "YES", "on", " on "])
def test_what_is_true(word: str) -> None:
    assert read(AUTOINSTR_STRICT=word).strict


@pytest.mark.parametrize("word", ["0", "false", "No", "OFF"])
def test_what_is_false(word: str) -> None:
    settings = read(AUTOINSTR_ENABLED=word)
    assert not settings.enabled


@pytest.mark.parametrize(("word", "enabled"), [("true", False), ("TRUE", False), ("1", True), ("false", True)])
def test_the_sdks_own_switch_counts_as_the_sdk_reads_it(word: str, enabled: bool) -> None:
    settings = read(OTEL_SDK_DISABLED=word)
    assert settings.enabled is enabled


@pytest.mark.parametrize(
    ("key", "word", "told"),
    [
        ("ENABLED", "maybe", "AUTOINSTR_ENABLED='maybe' is neither true nor false; true is used"),
        ("STRICT", "2", "AUTOINSTR_STRICT='2' is neither true nor false; false is used"),
        ("CAPTURE_CONTENT", "all", "AUTOINSTR_CAPTURE_CONTENT='all' is neither true nor false; false is used"),
        ("METRICS_ENABLED", "x", "AUTOINSTR_METRICS_ENABLED='x' is neither true nor false; true is used"),
        ("JOURNAL", "yes", "AUTOINSTR_JOURNAL='yes' is none of auto, on, off; auto is used"),
    ],
)
def test_a_wrong_value_is_told_and_the_default_used(key: str, word: str, told: str) -> None:
    settings = read(**{f"AUTOINSTR_{key}": word})
    assert settings.mistakes == (told,)
    assert (settings.enabled, settings.strict, settings.capture_content, settings.journal) == (True, False, False, True)


def test_a_wrong_value_of_a_fallback_is_told_by_its_own_name() -> None:
    assert read(NEMO_LENS_ENABLED="nope").mistakes == (
        "NEMO_LENS_ENABLED='nope' is neither true nor false; true is used",
    )


@pytest.mark.parametrize("prefix", ["NEMO_RL_OTEL_", "NEMO_LENS_"])
def test_nemo_rls_names_are_read(prefix: str) -> None:
    settings = read(
        **{f"{prefix}SPAN_GROUPS": "all", f"{prefix}RUN_ID": "r", f"{prefix}USER_ID": "u", f"{prefix}ENABLED": "0"}
    )
    assert (settings.span_groups, settings.run_id, settings.user_id, settings.enabled) == ("all", "r", "u", False)


def test_the_order_of_the_names() -> None:
    three = {"AUTOINSTR_RUN_ID": "ours", "NEMO_RL_OTEL_RUN_ID": "rl", "NEMO_LENS_RUN_ID": "lens"}
    assert read(**three).run_id == "ours"
    assert read(**{**three, "AUTOINSTR_RUN_ID": " "}).run_id == "rl"  # set to nothing is unset
    assert read(NEMO_LENS_RUN_ID="lens").run_id == "lens"


@pytest.mark.parametrize("key", ["SPAN_GROUPS", "SPAN_MAPS", "RUN_ID", "RUN_DIR", "JOURNAL", "STRICT", "ENABLED"])
def test_set_to_nothing_is_unset(key: str) -> None:
    settings, default = read(**{f"AUTOINSTR_{key}": " "}, AUTOINSTR_USER_ID="u"), read(AUTOINSTR_USER_ID="u")
    assert settings.mistakes == ()
    assert settings._replace(run_id="") == default._replace(run_id="")


# -- the run id -----------------------------------------------------------------------------------------


def test_slurms_job_id_names_the_run() -> None:
    assert read(SLURM_JOB_ID="4711").run_id == "4711"
    assert read(SLURM_JOB_ID="4711", AUTOINSTR_RUN_ID="mine").run_id == "mine"
    assert read(SLURM_JOB_ID="4711", NEMO_RL_OTEL_RUN_ID="rl").run_id == "rl"


def test_a_run_id_is_made_once() -> None:
    assert read().run_id != read().run_id


@pytest.mark.parametrize(
    ("run_id", "used"),
    [
        ("a/b", "a_b"),
        ("../../etc", "______etc"),
        ("../x", "___x"),
        ("a\\b", "a_b"),
        ("..", "__"),
        (".", "_"),
        (".hidden", "_hidden"),
        ("-x", "_x"),
        ("~root", "_root"),
        ("a\nb", "a_b"),
        ("a\x1b[31m", "a_[31m"),
        ("a\udcff", "a_"),
    ],
)
def test_a_run_id_names_a_folder_and_can_be_typed(run_id: str, used: str) -> None:
    settings = read(AUTOINSTR_RUN_ID=run_id)
    assert settings.run_id == used
    assert settings.mistakes == (
        f"AUTOINSTR_RUN_ID={run_id!r} can't name a folder and be typed as a word; {used!r} is used",
    )


def test_a_run_id_that_is_too_long_is_cut_and_stays_its_own() -> None:
    one, other = read(AUTOINSTR_RUN_ID="ä" * 1000 + "1"), read(AUTOINSTR_RUN_ID="ä" * 1000 + "2")
    assert one.run_id != other.run_id
    assert one.run_id.startswith("ä" * 50)
    assert len(one.run_id.encode()) <= 128
    assert len(one.mistakes[0]) < 250


@pytest.mark.parametrize("key", ["RUN_DIR", "SPAN_MAPS"])
def test_a_home_that_nobody_has_is_a_path_like_any_other(key: str) -> None:
    settings = read(**{f"AUTOINSTR_{key}": "~nobody-of-that-name/x"})
    assert Path("~nobody-of-that-name/x") in (settings.run_dir, *settings.span_maps)


def test_a_wrong_run_id_is_told_by_the_name_it_came_with() -> None:
    assert read(NEMO_LENS_RUN_ID="a/b").mistakes[0].startswith("NEMO_LENS_RUN_ID='a/b'")
    assert read(SLURM_JOB_ID="a/b").mistakes[0].startswith("SLURM_JOB_ID='a/b'")


def test_children_of_a_run_with_a_wrong_id_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"AUTOINSTR_RUN_ID": "a/b", "AUTOINSTR_RUN_DIR": "runs"})
    Settings.from_environ().hand_down()
    inherited = Settings.from_environ()
    assert (inherited.run_id, inherited.mistakes) == ("a_b", ())


@pytest.mark.parametrize("run_id", ["a.b", "a..b", "run 1", "größe", "x-", "2026-11-30T10:00"])
def test_what_can_name_a_folder_stays(run_id: str) -> None:
    settings = read(AUTOINSTR_RUN_ID=run_id)
    assert (settings.run_id, settings.mistakes) == (run_id, ())


def test_children_join_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"AUTOINSTR_RUN_DIR": "runs"})
    settings = Settings.from_environ()
    settings.hand_down()
    inherited = Settings.from_environ()
    assert inherited.run_id == settings.run_id
    assert inherited.run_dir == Path("runs").absolute()  # wherever the child runs
    assert os.environ["AUTOINSTR_RUN_DIR"] == str(Path("runs").absolute())


def test_telemetry_that_is_off_in_nemo_rl_does_not_switch_this_off_in_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"AUTOINSTR_SPAN_GROUPS": "per_step"})
    settings = Settings.from_environ()
    settings.hand_down()
    # what NeMo RL writes for its workers, from the `telemetry:` block of its config
    os.environ.setdefault("NEMO_RL_OTEL_ENABLED", "0")
    os.environ.setdefault("NEMO_RL_OTEL_SPAN_GROUPS", "default")
    os.environ.setdefault("NEMO_RL_OTEL_METRICS_ENABLED", "0")
    worker = Settings.from_environ()
    assert (worker.enabled, worker.span_groups) == (True, "per_step")
    assert switch.are_on({**os.environ, "OTEL_METRICS_EXPORTER": "otlp"})
    assert os.environ["NEMO_RL_OTEL_RUN_ID"] == settings.run_id, "and it has the run's id"


# -- the journal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "OTEL_TRACES_EXPORTER",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_CONFIG_FILE",
    ],
)
def test_auto_is_on_where_spans_go_nowhere_else(name: str) -> None:
    assert not read(**{name: "x"}).journal
    assert read(**{name: " "}).journal
    assert read(**{name: "x"}, AUTOINSTR_JOURNAL="on").journal
    assert not read(**{name: " "}, AUTOINSTR_JOURNAL="off").journal


def test_a_misspelt_variable_is_told() -> None:
    found = Settings.from_environ({"AUTOINSTR_SPAN_MAP": "my.yaml", "AUTOINSTR_RANKS": "all", "AUTOINSTR_QQ": "1"})
    assert found.mistakes == (
        "there is no variable AUTOINSTR_QQ; it is ignored",
        "there is no variable AUTOINSTR_SPAN_MAP, did you mean 'AUTOINSTR_SPAN_MAPS'?; it is ignored",
    )


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, False),
        ({"OTEL_LOGS_EXPORTER": "otlp"}, True),
        ({"OTEL_LOGS_EXPORTER": "none"}, False),
        ({"OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "true"}, True),
        ({"OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "false", "OTEL_LOGS_EXPORTER": "otlp"}, False),
        ({"OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "false", "AUTOINSTR_LOGS_ENABLED": "1"}, True),
        ({"OTEL_LOGS_EXPORTER": "otlp", "NEMO_RL_OTEL_LOGS_ENABLED": "0"}, False),
        ({"NEMO_LENS_LOGS_ENABLED": "yes"}, True),
    ],
)
def test_logs_are_on_where_somebody_asks_for_them(environ: dict[str, str], on: bool) -> None:
    settings = read(**environ)
    assert (settings.logs, settings.mistakes) == (on, ())

"""The dashboards and the Collector's configuration name only what is emitted: series, labels, attributes, components.

What is emitted is taken from the maps and from the code, with the names that Prometheus gives to OTLP metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoinstr import resource
from autoinstr.maps.active import read_active
from autoinstr.maps.metric_model import SeriesEntry
from autoinstr.metrics.bucket_time import BUCKET_DURATION
from autoinstr.metrics.phases import OPERATION_DURATION, PHASE_DURATION
from autoinstr.settings import Settings
from autoinstr.spans import GROUP_ATTRIBUTE
from autoinstr.spans.opening import BUCKET_ATTRIBUTE, LOST_END_ATTRIBUTE

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
COLLECTORS = sorted(FOLDER.glob("collector-*.yaml"))
MAPS = read_active([], "all", "all")
UNITS = {"s": "seconds", "By": "bytes", "%": "percent"}
# made by functions that read them when metrics are collected: kind, unit
OBSERVED = {
    "rl.host.memory.total": ("gauge", "By"),
    "rl.host.memory.available": ("gauge", "By"),
    "rl.host.memory.used": ("gauge", "By"),
    "autoinstr.spans.started": ("counter", "{span}"),
    "autoinstr.spans.ended": ("counter", "{span}"),
    "autoinstr.spans.dropped": ("counter", "{span}"),
    "autoinstr.patches": ("gauge", "{patch}"),
    "autoinstr.journal.size": ("counter", "By"),
}
PHASE_LABELS = {"rl.algorithm", "rl.phase", BUCKET_ATTRIBUTE}


def test_what_is_observed_is_what_the_code_makes() -> None:
    code = "".join(
        (ROOT / "autoinstr" / "metrics" / name).read_text() for name in ("health.py", "host_memory.py")
    )  # fmt: skip
    for name in OBSERVED:
        assert f'"{name}"' in code or f'f"{name.rpartition(".")[0]}.{{' in code, name


def emitted() -> dict[str, set[str]]:
    """Every name that Prometheus has, with its labels but those of the resource."""
    found: dict[str, set[str]] = {}

    def add(name: str, kind: str, unit: str, labels: set[str]) -> None:
        base = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        suffix = UNITS.get(unit, "")
        if suffix and suffix not in base.split("_"):
            base += "_" + suffix
        names = [base + "_total"] if kind == "counter" else [base]
        if kind == "histogram":
            names = [base + end for end in ("_bucket", "_sum", "_count")]
        for one in names:
            found.setdefault(one, set()).update(label.replace(".", "_") for label in labels | {"le"})

    series: list[SeriesEntry] = [one for _, tap in MAPS.taps for one in tap.series]
    for one in series:
        rows = [dict(row) for _, row in one.table or ()]
        add(one.name, one.kind, one.unit, {n for n, _ in one.attributes} | {n for row in rows for n in row})
    add(PHASE_DURATION.name, "histogram", "s", PHASE_LABELS)
    add(OPERATION_DURATION.name, "histogram", "s", {"rl.operation", GROUP_ATTRIBUTE, BUCKET_ATTRIBUTE})
    add(BUCKET_DURATION.name, "counter", "s", {BUCKET_ATTRIBUTE})
    for name, (kind, unit) in OBSERVED.items():
        add(name, kind, unit, {"autoinstr.patch.state"} if name == "autoinstr.patches" else set())
    return found


def resource_attributes() -> set[str]:
    """What the resource of a process may have: of the environment, of a span's `resource`, of the SDK."""
    env = {
        "RANK": "1", "WORLD_SIZE": "2", "NRL_WORKER_GROUP": "policy", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "a",
        "NEMO_RL_OTEL_USER_ID": "me",
    }  # fmt: skip
    found = set(resource.attributes(Settings.from_environ(env), env))
    found |= {"service.name", "service.instance.id"}
    for span in MAPS.spans:
        found |= {name for name, _ in span.entry.resource}
    text = "".join(path.read_text() for path in (ROOT / "span_maps").rglob("*.yaml"))
    return found | set(re.findall(r"\brl\.worker_group\b", text))


def promoted() -> set[str]:
    settings = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    return set(settings["otlp"]["promote_resource_attributes"])


def panels(path: Path) -> Iterator[dict[str, Any]]:
    for panel in json.loads(path.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def queries(kind: str) -> list[Any]:
    return [
        pytest.param(target.get("expr") or target["query"], id=f"{path.stem}-{panel['id']}-{target['refId']}")
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel["targets"]
        if target["datasource"]["type"] == kind
    ]  # fmt: skip


KEYWORDS = {
    "sum", "max", "avg", "count", "by", "on", "and", "or", "rate", "increase", "histogram_quantile", "group_left",
    "ignoring", "label_values", "deriv",
}  # fmt: skip
INSTANCE = {"instance", "job"}
"""Labels that Prometheus makes of service.instance.id and service.name."""


def is_promql(query: str) -> tuple[set[str], set[str]]:
    """The series and the labels of a query."""
    without_variables = query.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$run", "x")
    assert "$" not in without_variables
    for pair in ("()", "{}", "[]"):
        assert query.count(pair[0]) == query.count(pair[1])
    matched = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", without_variables))
    grouped = {
        label.strip()
        for inside in re.findall(r"\b(?:by|on|ignoring|group_left)\s*\(([^)]*)\)", without_variables)
        for label in inside.split(",")
    } - {""}
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|ignoring|group_left)\s*\([^)]*\)", " ", without_variables)
    return set(re.findall(r"\b[a-z]\w*", plain)) - KEYWORDS, matched | grouped


@pytest.mark.parametrize("query", queries("prometheus"))
def test_every_query_names_series_and_labels_that_there_are(query: str) -> None:
    names, labels = is_promql(query)
    known = emitted()
    assert names <= known.keys()
    allowed = {name.replace(".", "_") for name in promoted()} | INSTANCE
    for name in names:
        allowed |= known[name]
    assert labels <= allowed
    groups = {span.entry.group for span in MAPS.spans}
    for word in re.findall(r'autoinstr_group=~?"([^"]*)"', query):
        assert set(word.split("|")) <= groups
    operations = {span.entry.name for span in MAPS.spans}
    for word in re.findall(r'rl_operation=~?"([^"]*)"', query):
        assert set(word.split("|")) <= operations
    phases = {name.split(".", 2)[2] for name in operations if name.count(".") >= 2}
    for word in re.findall(r'rl_phase=~?"([^"]*)"', query):
        assert set(word.split("|")) <= phases


def test_a_series_that_nobody_emits_is_noticed() -> None:
    names, labels = is_promql('sum by (rl_faze) (rate(rl_phase_seconds_sum{run_id=~"$run"}[5m]))')
    assert (names, labels) == ({"rl_phase_seconds_sum"}, {"rl_faze", "run_id"})
    assert not names <= emitted().keys()


def span_attributes() -> set[str]:
    found = {name for span in MAPS.spans for name, _ in span.entry.attributes}
    return found | {BUCKET_ATTRIBUTE, LOST_END_ATTRIBUTE}


@pytest.mark.parametrize("query", queries("tempo"))
def test_every_trace_query_names_attributes_and_spans_that_there_are(query: str) -> None:
    assert set(re.findall(r"\bspan\.([\w.]+)", query)) <= span_attributes()
    assert set(re.findall(r"\bresource\.([\w.]+)", query)) <= resource_attributes()
    names = {span.entry.name for span in MAPS.spans}
    for word in re.findall(r'name = "([^"]*)"', query):
        assert word in names
    for pattern in re.findall(r'name =~ "([^"]*)"', query):
        for one in pattern.replace("\\\\", "\\").split("|"):
            assert any(re.fullmatch(one, name) for name in names), one


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported(path: Path) -> None:
    board = json.loads(path.read_text())
    variables = {one["name"] for one in board["templating"]["list"]}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__range"} <= variables
    page = (ROOT / "docs" / "dashboards.md").read_text()
    for panel in panels(path):
        assert panel["title"] in page, "each panel is explained"
        assert panel["description"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]


def test_the_variables_ask_for_what_there_is() -> None:
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
                assert series.removesuffix("_total") in {name.replace(".", "_") for name in OBSERVED}, (
                    "a run can be chosen from its start on, whatever its groups"
                )
                assert series in emitted()
                assert label in {name.replace(".", "_") for name in promoted()}


# -- the Collector: its binary is in no package registry, so its configuration is held by its structure ----------

COMPONENTS = {
    "receivers": {"otlp", "otlpjsonfile"},
    "processors": {"memory_limiter", "filter", "batch"},
    "exporters": {"otlp", "otlphttp"},
    "extensions": {"file_storage"},
}


@pytest.mark.parametrize("path", COLLECTORS, ids=lambda path: path.stem)
def test_a_collector_configuration_holds_together(path: Path) -> None:
    settings = yaml.safe_load(path.read_text())
    service = settings["service"]
    for kind, known in COMPONENTS.items():
        assert {name.partition("/")[0] for name in settings.get(kind, {})} <= known
    assert set(service.get("extensions", ())) == settings.get("extensions", {}).keys()
    used: dict[str, set[str]] = {}
    for name, pipeline in service["pipelines"].items():
        assert name in ("traces", "metrics", "logs")
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= settings[kind].keys()
            used.setdefault(kind, set()).update(pipeline[kind])
    assert used["receivers"] == settings["receivers"].keys()
    assert used["exporters"] == settings["exporters"].keys()
    assert settings["processors"].keys() - used["processors"] <= {"filter/fast_steps"}, "the one that is offered"


PATHS = {"name", "status.code", "start_time_unix_nano", "end_time_unix_nano"}


@pytest.mark.parametrize("path", COLLECTORS, ids=lambda path: path.stem)
def test_its_conditions_name_what_is_emitted(path: Path) -> None:
    groups = {span.entry.group for span in MAPS.spans}
    for name, processor in yaml.safe_load(path.read_text())["processors"].items():
        if not name.startswith("filter"):
            continue
        assert processor["error_mode"] == "ignore", "a mistake must not stop the pipeline"
        for condition in processor["traces"]["span"]:
            assert set(re.findall(r'resource\.attributes\["([^"]+)"\]', condition)) <= resource_attributes()
            assert set(re.findall(r'instrumentation_scope\.attributes\["([^"]+)"\]', condition)) <= {GROUP_ATTRIBUTE}
            own = re.findall(r'(?<![\w.])attributes\["([^"]+)"\]', condition)
            assert set(own) <= span_attributes()
            for listed in re.findall(r'"\^\(([^)]*)\)\$"', condition):
                assert set(listed.split("|")) <= groups
            plain = re.sub(r'[\w.]*attributes\["[^"]+"\]|"[^"]*"', " ", condition)
            words = set(re.findall(r"[A-Za-z_][\w.]*", plain))
            assert words - PATHS <= {"and", "not", "nil", "IsMatch", "STATUS_CODE_ERROR"}


def test_promoted_attributes_are_of_the_resource() -> None:
    assert promoted() <= resource_attributes()

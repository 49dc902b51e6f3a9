"""docs/span-maps.md teaches the language that the loader reads: all of it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoinstr.cli import main
from autoinstr.maps import keys, loader, values
from autoinstr.maps.catalog import Catalog
from autoinstr.maps.model import BUCKETS
from autoinstr.testing import record

PAGE = (Path(__file__).parents[2] / "docs" / "span-maps.md").read_text(encoding="utf-8")
TABLE = Catalog(lambda mistake: pytest.fail(str(mistake))).table
MAPS = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "spans:" in text]
FULL = max(MAPS, key=len)

SECTIONS = {
    "a map": "\n## The map\n",
    "a span": "\n## A span\n",
    "between": "\n### Pairs: `between`\n",
    "scope": "\n### Scopes\n",
    "coalesce": "\n### Many blocks, one span: `coalesce`\n",
    "a group": "\n## Groups and buckets\n",
    "a metric tap": "\n## Metrics\n",
    "a series": "\nEach series has one source",
    "arguments": "\n## Arguments\n",
}


def rows(heading: str) -> list[str]:
    """The first cells of the first table below a heading."""
    below = PAGE[PAGE.index(heading) :]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table is not None
    return [line.split("|")[1].strip().strip("`") for line in table[0].splitlines()[2:]]


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_is_on_the_page_in_its_table(name: str) -> None:
    assert rows(SECTIONS[name]) == [key.name for key in keys.TABLES[name]]


def test_every_table_of_keys_is_on_the_page() -> None:
    assert SECTIONS.keys() | {"targets"} == keys.TABLES.keys()
    assert all(f"`{key.name}:" in PAGE for key in keys.TARGETS_KEYS)


def test_every_root_reducer_and_bucket_is_on_the_page() -> None:
    words = set(re.findall(r"`([a-z_]+)[`.(]", PAGE))
    assert words >= {*values.ROOTS, *values.REDUCERS, *BUCKETS}


def test_the_shipped_groups_and_presets_are_on_the_page() -> None:
    table = PAGE[PAGE.index("\n| Group | Bucket |") :].split("\n\n")[0].splitlines()[3:]
    shipped = [f"| `{g.name}` | {g.bucket or '-'} | {g.about} |" for g in TABLE.groups.values()]
    assert table == shipped
    (default,) = re.findall(r"`default` is (.*?)\.", PAGE, re.DOTALL)
    assert re.findall(r"`(\w+)`", default) == list(TABLE.presets["default"])
    assert set(TABLE.presets["per_step"]) == TABLE.groups.keys() - {"per_prompt"}


@pytest.mark.parametrize("text", MAPS, ids=range(len(MAPS)))
def test_the_examples_have_no_mistakes(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my_map.yaml"
    path.write_text(text)
    assert main(["lint", str(path)]) == 0
    assert capsys.readouterr().out == "1 map, no mistakes\n"


def test_every_word_of_arguments_is_on_the_page() -> None:
    assert set(keys.WORDS) <= set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


def test_the_full_example_uses_every_key() -> None:
    used = set(re.findall(r"(?:^|[{,-])\s*([a-z_]+):", FULL, re.MULTILINE))
    assert "metrics:" in FULL
    assert {key.name for table in keys.TABLES.values() for key in table} <= used


def test_the_message_on_the_page_is_the_one_that_is_said() -> None:
    (said,) = re.findall(r"autoinstr: /home/me/my_map.yaml:(.*)", PAGE)
    text = "map: m\npackage: p\nspans:\n  my.step:\n    group: step\n    functon: a:b\n"
    (mistake,) = loader.load_map(text, "m", TABLE).mistakes
    assert str(mistake) == f"m:{said}"


def test_the_test_on_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    import sys

    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    package = tmp_path / "my_training"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "timer.py").write_text(
        "import contextlib\n\nclass Timer:\n    @contextlib.contextmanager\n    def time(self, label):\n        yield\n"
    )
    (package / "loop.py").write_text(
        "from my_training.timer import Timer\n\ndef train(steps):\n"
        "    for step in range(steps):\n        with Timer().time('step'):\n            pass\n"
    )
    (tmp_path / "my_map.yaml").write_text(
        "map: m\npackage: my_training\nspans:\n"
        "  my.job: {group: job, function: my_training.loop:train}\n"
        "  my.step:\n    group: step\n    block: my_training.timer:Timer.time(label=step)\n"
        "    attributes: {rl.iteration: caller.step | add(1)}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert namespace["record"] is record
    try:
        namespace["test_my_map"]()  # type: ignore[operator]
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_training"]:
            del sys.modules[name]

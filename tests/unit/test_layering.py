"""Which maps are active: the user's over those of installed packages over the shipped ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoinstr.maps.catalog import Catalog, builtin_folder, layered
from autoinstr.maps.model import SpanEntry

SPAN = "  {name}: {{group: step, function: 'p.{name}:{function}'}}\n"


def write(path: Path, *spans: str, name: str = "m", package: str = "p", more: str = "") -> Path:
    """A map with spans given as `name=function`, or `name` to disable it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(
        SPAN.format(name=span.partition("=")[0], function=span.partition("=")[2])
        if "=" in span
        else f"  {span}: {{disabled: true}}\n"
        for span in spans
    )
    path.write_text(f"map: {name}\npackage: {package}\n{more}spans:\n{body}", encoding="utf-8")
    return path


class Read:
    """A catalog and what it said."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.catalog = Catalog(lambda mistake: self.told.append(str(mistake)))

    def user(self, *paths: Path) -> Read:
        self.catalog.add_user(paths)
        return self

    def entries(self) -> list[SpanEntry]:
        return layered(self.catalog.maps_for())

    def spans(self) -> list[tuple[str, str]]:
        return [(entry.name, entry.targets()[0].qualname) for entry in self.entries()]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped maps: `fast.a`, `fast.b` and `other`."""
    folder = tmp_path / "shipped"
    write(folder / "fast" / "a.yaml", "x=shipped", "y=shipped", name="fast.a", package="fast")
    write(folder / "fast" / "b.yaml", "z=shipped", name="fast.b", package="fast")
    write(folder / "other.yaml", "w=shipped", name="other", package="other.sub")
    (folder / "groups.yaml").write_bytes((builtin_folder() / "groups.yaml").read_bytes())
    monkeypatch.setattr("autoinstr.maps.catalog.builtin_folder", lambda: folder)
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution whose entry point names the package `with_maps.maps`; importing it is an error."""
    site = tmp_path / "site"
    info = site / "with_maps-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: with-maps\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[autoinstr_span_maps]\nmaps = with_maps.maps\n")
    (site / "with_maps" / "maps").mkdir(parents=True)
    (site / "with_maps" / "__init__.py").write_text("raise RuntimeError('a map is data')")
    monkeypatch.syspath_prepend(str(site))
    return site


# -- the shipped ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("all", ["fast.a", "fast.b", "other"]),
        ("none", []),
        ("", []),
        ("fast", ["fast.a", "fast.b"]),  # by package, and the folder's name
        ("fast.a", ["fast.a"]),
        ("b, other", ["fast.b", "other"]),  # by the file's name
        ("other.sub", ["other"]),
    ],
)
def test_the_shipped_maps_that_a_spec_names(shipped: Path, spec: str, found: list[str]) -> None:
    read = Read()
    read.catalog.add_builtin(spec)
    assert sorted(file.name for file in read.catalog.files) == found
    assert read.told == []


@pytest.mark.parametrize("also", ["", ",all"])
def test_an_unknown_shipped_map_is_told(shipped: Path, also: str) -> None:
    read = Read()
    read.catalog.add_builtin("fsat,fast.b" + also)
    assert "fast.b" in [file.name for file in read.catalog.files]
    assert read.told == [
        "AUTOINSTR_BUILTIN_MAPS: there is no built-in map 'fsat', did you mean 'fast'?; it is left out"
    ]


def test_a_shipped_map_is_not_read_before_it_is_needed(shipped: Path) -> None:
    (shipped / "other.yaml").write_text("map: other\npackage: other\nspans: [")
    read = Read()
    read.catalog.add_builtin("all")
    assert read.catalog.packages() == ["fast", "other"]
    assert [m.name for _, m in read.catalog.maps_for("fast")] == ["fast.a", "fast.b"]
    assert read.told == []
    assert read.catalog.maps_for("other") == []
    assert read.catalog.maps_for("other") == []
    assert len(read.told) == 1  # once


# -- layers ----------------------------------------------------------------------------------------------


def test_three_layers(shipped: Path, installed: Path, tmp_path: Path) -> None:
    write(installed / "with_maps" / "maps" / "a.yaml", "x=installed", "y=installed", "z=installed", name="i")
    mine = write(tmp_path / "mine.yaml", "x=mine", "w", "new=mine", name="mine")
    read = Read()
    read.catalog.add_builtin("all")
    read.catalog.add_installed()
    read.user(mine)
    assert read.told == []
    assert sorted(read.spans()) == [("new", "mine"), ("x", "mine"), ("y", "installed"), ("z", "installed")]
    assert "with_maps" not in sys.modules


def test_disabled_in_one_layer_and_there_again_in_a_higher(shipped: Path, installed: Path, tmp_path: Path) -> None:
    write(installed / "with_maps" / "maps" / "a.yaml", "x", "y", name="i")
    read = Read()
    read.catalog.add_builtin("fast.a")
    read.catalog.add_installed()
    assert read.spans() == []
    read.user(write(tmp_path / "mine.yaml", "x=mine"))
    assert read.spans() == [("x", "mine")]


def test_several_entries_of_one_name_are_replaced_together(tmp_path: Path, shipped: Path) -> None:
    (shipped / "other.yaml").write_text(
        "map: other\npackage: p\nspans:\n"
        "  s:\n    - {group: step, function: 'p:one'}\n    - {group: step, block: 'p:two'}\n"
    )
    read = Read()
    read.catalog.add_builtin("other")
    assert read.spans() == [("s", "one"), ("s", "two")]
    read.user(write(tmp_path / "mine.yaml", "s=mine"))
    assert read.spans() == [("s", "mine")]


def test_one_name_in_two_maps_of_a_layer_is_one_span_in_two_places(tmp_path: Path) -> None:
    read = Read().user(write(tmp_path / "a.yaml", "s=one", name="a"), write(tmp_path / "b.yaml", "s=two", name="b"))
    assert read.spans() == [("s", "one"), ("s", "two")]


def test_a_wrong_entry_leaves_the_one_below_in_place(shipped: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("map: mine\npackage: fast\nspans:\n  x: {group: stp, function: 'p:f'}\n")
    read = Read()
    read.catalog.add_builtin("fast.a")
    read.user(mine)
    assert read.spans() == [("x", "shipped"), ("y", "shipped")]
    assert read.told == [f"{mine}:4:14: unknown group 'stp', did you mean 'step'?; the span 'x' is left out"]


def test_the_groups_of_one_map_are_known_to_the_next(tmp_path: Path) -> None:
    one = write(tmp_path / "a.yaml", more="groups: {mine: {}}\n", name="a")
    two = tmp_path / "b.yaml"
    two.write_text("map: b\npackage: p\nspans:\n  s: {group: mine, function: 'p:f'}\n")
    one.write_text("map: a\npackage: p\ngroups: {mine: {}}\n")
    read = Read().user(tmp_path)
    assert (read.spans(), read.told) == ([("s", "f")], [])


# -- the user's files and folders ------------------------------------------------------------------------


def test_a_folder_is_read_to_its_depths_but_for_hidden_files(tmp_path: Path) -> None:
    write(tmp_path / "maps" / "a.yaml", "a=f")
    write(tmp_path / "maps" / "deep" / "b.yml", "b=f")
    write(tmp_path / "maps" / ".ipynb_checkpoints" / "a-checkpoint.yaml", "a=f")
    write(tmp_path / "maps" / ".#a.yaml", "a=f")
    (tmp_path / "maps" / "notes.txt").write_text("no map")
    read = Read().user(tmp_path / "maps")
    assert (read.spans(), read.told) == ([("a", "f"), ("b", "f")], [])


def test_a_file_that_its_folder_names_too_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "a=f")
    broken = tmp_path / "b.yaml"
    broken.write_text("map: [")
    read = Read().user(path, broken, tmp_path, path)
    assert read.spans() == [("a", "f")]
    assert len(read.told) == 1


def test_a_shipped_file_that_the_user_names_is_the_users(shipped: Path) -> None:
    read = Read()
    read.catalog.add_builtin("all")
    read.user(shipped / "other.yaml", shipped / "other.yaml")
    assert sorted(read.spans()) == [("w", "shipped"), ("x", "shipped"), ("y", "shipped"), ("z", "shipped")]


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "maps").mkdir()
    read = Read().user(tmp_path / "mapps", tmp_path / "empty", tmp_path / "no" / "where.yaml")
    assert read.told == [
        f"{tmp_path}/mapps: there is no such file, did you mean 'maps'?; the map is left out",
        f"{tmp_path}/empty: the folder holds no .yaml file; nothing is read from it",
        f"{tmp_path}/no/where.yaml: there is no folder {tmp_path}/no; the map is left out",
    ]


# -- installed packages ----------------------------------------------------------------------------------


def test_an_entry_point_to_nothing_is_told(installed: Path) -> None:
    points = installed / "with_maps-1.0.dist-info" / "entry_points.txt"
    points.write_text(
        "[autoinstr_span_maps]\na = no_such_package\nb = with_maps.no_such_folder\nc = json\nd = with_maps.maps\n"
    )
    read = Read()
    read.catalog.add_installed()
    assert sorted(read.told) == [
        "entry point a = no_such_package: it names no folder with map files; its maps are left out",
        "entry point b = with_maps.no_such_folder: it names no folder with map files; its maps are left out",
        "entry point c = json: it names no folder with map files; its maps are left out",
        "entry point d = with_maps.maps: it names no folder with map files; its maps are left out",
    ]


def test_a_package_of_maps_needs_no_code(installed: Path) -> None:
    write(installed / "only_maps" / "deep" / "a.yaml", "a=f")
    (installed / "with_maps-1.0.dist-info" / "entry_points.txt").write_text("[autoinstr_span_maps]\nm = only_maps\n")
    read = Read()
    read.catalog.add_installed()
    assert (read.spans(), read.told) == ([("a", "f")], [])


# -- the shipped maps as they are ------------------------------------------------------------------------


def test_every_shipped_map_says_its_name_and_package_in_its_head() -> None:
    read = Read()
    read.catalog.add_builtin("all")
    heads = {file.path: (file.name, file.package) for file in read.catalog.files}
    assert {Path(m.file): (m.name, m.package) for _, m in read.catalog.maps_for()} == heads
    assert set(heads) == {p for p in builtin_folder().rglob("*.y*ml") if p.name != "groups.yaml"}
    assert len({name for name, _ in heads.values()}) == len(heads)
    assert read.told == []

"""Which maps there are: the built-in ones, those of installed packages, the user's; layered, last one wins.

A built-in map is read when the package it speaks of is first imported: a process that never imports
`nemo_rl` pays for the file's first lines and not for its YAML. Until then only `map:` and `package:` are
known, taken from the head of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from autoinstr.maps.groups import GroupTable
from autoinstr.maps.model import Mistake, Place, SpanEntry, SpanMap, did_you_mean

GROUPS_FILE = "groups.yaml"
_HEAD_BYTES = 2048
_HEAD_KEY = re.compile(r"^(map|package):[ \t]*[\"']?([\w.-]+)", re.MULTILINE)


def builtin_folder() -> Path:
    """The shipped maps: inside the package in a wheel, in the repository's root in an editable install."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "span_maps"
    return inside if (inside / GROUPS_FILE).is_file() else package.parent / "span_maps"


@dataclass(frozen=True)
class MapFile:
    """A map that is not read yet. `layer` orders the layers: 0 built-in, 1 installed packages, 2 the user's."""

    path: Path
    layer: int
    name: str
    package: str


@dataclass
class Catalog:
    """Finds and reads maps; what is wrong is given to `on_mistake`, never raised."""

    on_mistake: Callable[[Mistake], None]
    files: list[MapFile] = field(default_factory=list)
    _read: dict[Path, SpanMap | None] = field(default_factory=dict)

    @cached_property
    def table(self) -> GroupTable:
        """The shipped groups and presets."""
        from autoinstr.maps import loader

        path = builtin_folder() / GROUPS_FILE
        text, mistake = loader.read_file(path)
        if text is None:
            assert mistake is not None
            self.on_mistake(mistake)
            return GroupTable({}, {})
        table, mistakes = loader.load_groups(text, str(path))
        for wrong in mistakes:
            self.on_mistake(wrong)
        return table

    # -- finding --------------------------------------------------------------------------------------

    def add_builtin(self, spec: str) -> None:
        """The shipped maps that `spec` asks for: `all`, `none`, or map names and folders by comma."""
        words = [word.strip() for word in spec.split(",") if word.strip()]
        if words == ["none"]:
            return
        shipped = [f for f in map(_head, _yaml_files(builtin_folder())) if f is not None]
        if "all" not in words:
            for word in words:
                if not any(_names(word, f) for f in shipped):
                    known = sorted({f.name for f in shipped} | {f.package for f in shipped})
                    self.on_mistake(
                        Mistake(
                            Place("AUTOINSTR_BUILTIN_MAPS"),
                            f"there is no built-in map {word!r}{did_you_mean(word, known)}",
                            "it is left out",
                        )
                    )
            shipped = [f for f in shipped if any(_names(word, f) for word in words)]
        self.files += shipped

    def add_installed(self) -> None:
        """Maps of installed packages: the entry-point group `autoinstr_span_maps`, each a package with YAML files."""
        from importlib import metadata, util

        for point in metadata.entry_points(group="autoinstr_span_maps"):
            place = Place(f"entry point {point.name} = {point.value}")
            try:
                # found, not imported: a map is data, and nobody's code runs for it
                spec = util.find_spec(point.value.partition(":")[0])
                folders = [Path(f) for f in (spec.submodule_search_locations or [])] if spec else []
            except Exception as error:
                self.on_mistake(Mistake(place, f"its package can't be found: {error}", "its maps are left out"))
                continue
            if not folders:
                self.on_mistake(Mistake(place, "it names no package with map files", "its maps are left out"))
            for folder in folders:
                self._add(_yaml_files(folder), layer=1)

    def add_user(self, paths: Iterable[Path]) -> None:
        """The user's files and folders."""
        for path in paths:
            self._add(_yaml_files(path) if path.is_dir() else [path], layer=2)

    def _add(self, paths: Iterable[Path], layer: int) -> None:
        from autoinstr.maps import loader

        for path in paths:
            text, mistake = loader.read_file(path)
            if text is None:
                assert mistake is not None
                self.on_mistake(mistake)
                continue
            loaded = self._load(path, text)
            if loaded is not None:
                self.files.append(MapFile(path, layer, loaded.name, loaded.package))

    # -- reading --------------------------------------------------------------------------------------

    def packages(self) -> list[str]:
        """The top-level packages that wait to be imported."""
        return sorted({f.package.partition(".")[0] for f in self.files})

    def maps_for(self, package: str | None = None) -> list[tuple[int, SpanMap]]:
        """The maps (with layer) of a top-level package, or all, read now."""
        found = []
        for file in self.files:
            if package is None or file.package.partition(".")[0] == package:
                span_map = self._get(file.path)
                if span_map is not None:
                    found.append((file.layer, span_map))
        return found

    def _get(self, path: Path) -> SpanMap | None:
        if path not in self._read:
            from autoinstr.maps import loader

            text, mistake = loader.read_file(path)
            if text is None:
                assert mistake is not None
                self.on_mistake(mistake)
                self._read[path] = None
            else:
                self._load(path, text)
        return self._read[path]

    def _load(self, path: Path, text: str) -> SpanMap | None:
        from autoinstr.maps import loader

        loaded = loader.load_map(text, str(path), self.table)
        self._read[path] = loaded.map
        for mistake in loaded.mistakes:
            self.on_mistake(mistake)
        if loaded.map is not None and loaded.map.groups:
            self.__dict__["table"] = self.table.extended(loaded.map.groups)
        return loaded.map


def layered(maps: Iterable[tuple[int, SpanMap]]) -> list[SpanEntry]:
    """The entries that hold: a span name in a higher layer replaces it in all lower ones, `disabled` removes it."""
    by_layer: dict[int, list[SpanMap]] = {}
    for layer, span_map in maps:
        by_layer.setdefault(layer, []).append(span_map)
    entries: list[SpanEntry] = []
    for _, group in sorted(by_layer.items()):
        replaced = {e.name for m in group for e in m.spans} | {name for m in group for name in m.disabled}
        entries = [e for e in entries if e.name not in replaced]
        entries += [e for m in group for e in m.spans]
    return entries


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml") and p.name != GROUPS_FILE)


def _names(word: str, file: MapFile) -> bool:
    return word in (file.name, file.package, file.path.stem) or file.name.startswith(word + ".")


def _head(path: Path) -> MapFile | None:
    """`map:` and `package:` from a shipped file's first lines, without a YAML parser."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    found = dict(_HEAD_KEY.findall(head))
    return MapFile(path, 0, found["map"], found["package"]) if {"map", "package"} <= found.keys() else None

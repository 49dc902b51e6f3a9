"""Which maps there are: the built-in ones, those of installed packages, the user's; layered, last one wins.

A built-in map is read when the package it speaks of is first imported: a process that never imports
`nemo_rl` pays for the file's first lines and not for its YAML. Until then only `map:` and `package:` are
known, taken from the head of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # every process of a run imports this module, and few of them read a map
    from importlib.metadata import EntryPoint

    from autoinstr.maps.groups import GroupTable
    from autoinstr.maps.model import Mistake, SpanEntry, SpanMap

GROUPS_FILE = "groups.yaml"
_GROUPS_KEY = r"(?m)^(?:(groups|presets):|  ([\w-]+):)"


def builtin_folder() -> Path:
    """The shipped maps: inside the package in a wheel, in the repository's root in an editable install."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "span_maps"
    return inside if (inside / GROUPS_FILE).is_file() else package.parent / "span_maps"


class MapFile(NamedTuple):
    """A map that is not read yet. `layer` orders the layers: 0 built-in, 1 installed packages, 2 the user's."""

    path: Path
    layer: int
    name: str
    package: str


class Catalog:
    """Finds and reads maps; what is wrong is given to `on_mistake`, never raised."""

    def __init__(self, on_mistake: Callable[[Mistake], None]) -> None:
        self.on_mistake = on_mistake
        self.files: list[MapFile] = []
        self._read: dict[Path, SpanMap | None] = {}

    def knows(self, spec: str) -> bool:
        """Whether every word of a group spec is a shipped group or preset, `all`, or the name of a span.

        Told from the lines of `groups.yaml` and of the maps, without a YAML parser: where this says no, `unknown`
        says why.
        """
        words = {word.strip().lstrip("-").strip() for word in spec.split(",")} - {""}
        groups = {word for word in words if "." not in word} - {"all", "default"}
        names = {word for word in words if "." in word}
        return (not groups or groups <= _group_words()) and all(map(self._is_a_key, names))

    def _is_a_key(self, name: str) -> bool:
        """Whether a map may have a span of that name."""
        key = re.compile(rf"^[ \t]+[\"']?{re.escape(name)}[\"']?[ \t]*:", re.MULTILINE)
        return any(key.search(self._text_of(file.path)) for file in self.files)

    @staticmethod
    def _text_of(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def unknown(self, spec: str) -> list[str]:
        """A line for every word of a group spec that nobody has: no group, no preset, no span of any map."""
        from autoinstr.maps.groups import explain_unknown, explain_unknown_span, select

        if select(spec, self.table).unknown:
            self.maps_for()  # a group may be a map's own
        selection = select(spec, self.table)
        asked = [name for name in sorted(selection.spans | selection.without_spans) if not self._is_a_key(name)]
        names: set[str] = set()
        if asked:
            names = {name for _, m in self.maps_for() for name in (*(s.name for s in m.spans), *m.disabled)}
        return [explain_unknown(name, self.table) for name in selection.unknown] + [
            explain_unknown_span(name, names) for name in asked if name not in names
        ]

    @cached_property
    def table(self) -> GroupTable:
        """The shipped groups and presets."""
        from autoinstr.maps import loader
        from autoinstr.maps.groups import GroupTable

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
        shipped = [f for f in map(_head, yaml_files(builtin_folder())) if f is not None]
        for word in words:
            if word != "all" and not any(_names(word, f) for f in shipped):
                from autoinstr.maps.model import Mistake, Place
                from autoinstr.maps.words import did_you_mean, shown

                known = sorted({f.name for f in shipped} | {f.package for f in shipped})
                self.on_mistake(
                    Mistake(
                        Place("AUTOINSTR_BUILTIN_MAPS"),
                        f"there is no built-in map {shown(word)}{did_you_mean(word, known)}",
                        "it is left out",
                    )
                )
        self.files += [f for f in shipped if "all" in words or any(_names(word, f) for word in words)]

    def add_installed(self, entry_points: Callable[..., Iterable[EntryPoint]] | None = None) -> None:
        """Maps of installed packages: the entry-point group `autoinstr_span_maps`, each a package with YAML files.

        `entry_points` stands in for `importlib.metadata.entry_points` (which reads every distribution anew).
        """
        from importlib import metadata

        for point in (entry_points or metadata.entry_points)(group="autoinstr_span_maps"):
            paths: list[Path] = []
            reason = "it names no folder with map files"
            try:
                for folder in _package_folders(point.value.partition(":")[0].strip()):
                    paths += yaml_files(folder)
            except Exception as error:
                reason = f"its package can't be found: {error}"
            if not paths:
                from autoinstr.maps.model import Mistake, Place

                place = Place(f"entry point {point.name} = {point.value}")
                self.on_mistake(Mistake(place, reason, "its maps are left out"))
            self._add(paths, layer=1)

    def add_user(self, paths: Iterable[Path]) -> None:
        """The user's files and folders."""
        for path in paths:
            if not os.path.isdir(path):  # which says no, where Path.is_dir() raises for a folder that is not ours
                self._add([path], layer=2)
                continue
            refused: list[OSError] = []
            found = yaml_files(path, refused.append)
            if refused or not found:
                from autoinstr.maps.model import Mistake, Place

                for error in refused:
                    place = Place(str(error.filename))
                    self.on_mistake(Mistake(place, f"can't be read: {error.strerror}", "its maps are left out"))
                if not refused:
                    place = Place(str(path))
                    self.on_mistake(Mistake(place, "the folder holds no .yaml file", "nothing is read from it"))
            self._add(found, layer=2)

    def looked_at(self) -> int:
        """How many files were read as maps, or could not be."""
        return len(self._read)

    def _add(self, paths: Iterable[Path], layer: int) -> None:
        for path in paths:
            if any(f.path == path and f.layer == layer for f in self.files) or self._read.get(path, self) is None:
                continue  # named twice, by itself and by its folder
            loaded = self._get(path)
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

    def lost_additions(self, more: Callable[[], Iterable[SpanMap]] | None = None) -> list[Mistake]:
        """A mistake for each entry read so far that adds to a span which no map opens; `more` instead of all maps."""
        read = [span_map for span_map in self._read.values() if span_map is not None]
        return lost_additions(read, more or (lambda: [span_map for _, span_map in self.maps_for()])) if read else []

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
    """The entries that hold: a span name in a higher layer replaces it in all lower ones, `disabled` removes it.

    An entry that only adds to a span replaces nothing.
    """
    by_layer: dict[int, list[SpanMap]] = {}
    for layer, span_map in maps:
        by_layer.setdefault(layer, []).append(span_map)
    entries: list[SpanEntry] = []
    for _, group in sorted(by_layer.items()):
        replaced = {e.name for m in group for e in m.spans if e.opens} | {name for m in group for name in m.disabled}
        entries = [e for e in entries if e.name not in replaced]
        entries += [e for m in group for e in m.spans]
    return entries


def lost_additions(maps: Iterable[SpanMap], more: Callable[[], Iterable[SpanMap]]) -> list[Mistake]:
    """A mistake for each entry of `maps` that adds to a span which neither they nor `more` open."""
    from autoinstr.maps.model import Mistake
    from autoinstr.maps.words import did_you_mean

    def opened(those: Iterable[SpanMap]) -> set[str]:
        return {name for m in those for e in m.spans if e.opens for name in (e.name, *e.also)}

    maps = list(maps)
    adding = [entry for m in maps for entry in m.spans if not entry.opens]
    known = opened(maps)
    if any(entry.name not in known for entry in adding):
        known |= opened(more())
    return [
        Mistake(e.place, f"no map opens a span {e.name!r}{did_you_mean(e.name, known)}", "this entry of it is idle")
        for e in adding
        if e.name not in known
    ]


def yaml_files(folder: Path, on_refusal: Callable[[OSError], object] | None = None) -> list[Path]:
    """The map files of a folder and those below it, but hidden ones: editors and notebooks keep copies there.

    A folder that can't be listed is told to `on_refusal`, and the others are looked through.
    """
    found: list[Path] = []
    for at, folders, names in os.walk(folder, onerror=on_refusal):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(at, name) for name in names if not name.startswith(".")]
        found += [path for path in paths if path.suffix in (".yaml", ".yml") and not is_shipped_groups(path)]
    return sorted(found)


def is_shipped_groups(path: Path) -> bool:
    """Whether this is the file of the shipped groups, which is no map."""
    return path.name == GROUPS_FILE and path.resolve() == builtin_folder() / GROUPS_FILE


def _package_folders(name: str) -> list[Path]:
    """Where a package's files are. It is found, not imported: a map is data, and nobody's code runs for it.

    Asking for `a.b` would import `a`, so only `a` is asked for, and `b` is looked for below it.
    """
    from importlib import util

    top, *rest = name.split(".")
    spec = util.find_spec(top)
    folders = [Path(folder, *rest) for folder in (spec.submodule_search_locations or [])] if spec else []
    return [folder for folder in folders if folder.is_dir()]


def _names(word: str, file: MapFile) -> bool:
    return word in (file.name, file.package, file.path.stem) or file.name.startswith(word + ".")


def _group_words() -> set[str]:
    """The names of the shipped groups and presets, by the shape of their lines."""
    try:
        text = (builtin_folder() / GROUPS_FILE).read_text(encoding="utf-8")
    except OSError:
        return set()
    return {name for section, name in re.findall(_GROUPS_KEY, text) if not section}


def _head(path: Path) -> MapFile | None:
    """`map:` and `package:` from a shipped file's first lines, without a YAML parser."""
    found: dict[bytes, str] = {}
    try:
        with open(path, "rb") as lines:
            for line in lines:
                key, _, value = line.partition(b":")
                if key in (b"map", b"package"):
                    found[key] = value.partition(b"#")[0].decode("utf-8", "replace").strip().strip("\"'")
                    if len(found) == 2:
                        return MapFile(path, 0, found[b"map"], found[b"package"])
    except OSError:
        pass
    return None

"""Makes a bundle: the installed distributions that autoinstr needs, copied beside a `sitecustomize` that loads them.

    DIR/sitecustomize.py               see `site/sitecustomize.py`
    DIR/bundle.json                    names, versions, requirements
    DIR/packages/<name>-<version>/     one distribution each, so that each can be put on a path or left off it

Nothing is fetched: the files are those of the environment that makes it. Compiled files come along where the
distribution works without them too; another Python, or another kind of machine, passes them by.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import autoinstr
from autoinstr.maps.catalog import builtin_folder

SITE = Path(__file__).resolve().parent / "site" / "sitecustomize.py"
MANIFEST = "bundle.json"

_HAVE_FALLBACK = frozenset({"charset-normalizer", "protobuf", "pyyaml", "wrapt"})
"""Distributions with compiled modules that do without them."""
_COMPILED = (".so", ".pyd", ".dylib")
_OF_THE_INSTALLATION = frozenset({"INSTALLER", "REQUESTED", "direct_url.json"})


class BundleError(Exception):
    """Why there is no bundle, for the user."""


@dataclass(frozen=True)
class Made:
    """What was written: names and versions in, names left out with the reason, and the size in bytes."""

    folder: Path
    versions: dict[str, str]
    left_out: dict[str, str]
    size: int


def make(folder: Path, also: Sequence[str] = (), replace_older: bool = False) -> Made:
    """Write a bundle to `folder`, which must be new, empty, or an earlier bundle.

    `also` are more distributions, which come with what they need. `replace_older`: an environment whose OpenTelemetry
    is too old gets the bundle's instead.

    Raises:
        BundleError: where the folder is something else, or a distribution is not installed.
        OSError: where it can't be written.
    """
    folder = folder.absolute()
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} is there and is no bundle; name a new folder")
    found, left_out = _closure(also)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        stage.chmod(0o755)
        listed = {}
        for name, distribution in found.items():
            place = f"{name}-{distribution.version}"
            _copy(name, distribution, stage / "packages" / place)
            listed[name] = {
                "version": distribution.version,
                "folder": place,
                "requires": distribution.requires or [],
            }
        shutil.copyfile(SITE, stage / SITE.name)
        manifest = {"replace_older": replace_older, "distributions": listed}
        (stage / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        # the folder may be read-only where it is used; the hash holds wherever it is copied to
        compileall.compile_dir(
            stage,
            quiet=2,
            stripdir=str(stage),
            prependdir=str(folder),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        size = sum(file.stat().st_size for file in stage.rglob("*") if file.is_file())
        if folder.exists():
            earlier = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)) / "earlier"
            folder.rename(earlier)
            stage.rename(folder)
            shutil.rmtree(earlier.parent)
        else:
            stage.rename(folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return Made(folder, {name: d.version for name, d in found.items()}, left_out, size)


def _closure(also: Iterable[str]) -> tuple[dict[str, metadata.Distribution], dict[str, str]]:
    """All that autoinstr and `also` need, as far as it is installed; and what is left out, with the reason."""
    from packaging.requirements import InvalidRequirement, Requirement

    found: dict[str, metadata.Distribution] = {}
    left_out: dict[str, str] = {}
    asked = [canonical(name) for name in also]
    waiting: list[tuple[str, tuple[str, ...]]] = [("autoinstr", ()), ("packaging", ())]
    waiting += [(name, ()) for name in asked]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras = one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in ("autoinstr", *asked):
                raise BundleError(f"{name} is not installed in this environment") from None
            continue  # for another Python
        if name not in _HAVE_FALLBACK and name != "autoinstr" and _is_compiled(distribution):
            if name in asked:
                raise BundleError(f"{name} has compiled modules, which are for one Python on one kind of machine")
            left_out[name] = "it is compiled for one Python"
            continue
        found[name] = distribution
        for text in distribution.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((canonical(requirement.name), tuple(sorted(requirement.extras))))
    return found, left_out


def canonical(name: str) -> str:
    """A distribution's name as the bundle writes it."""
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _is_compiled(distribution: metadata.Distribution) -> bool:
    return any(str(file).endswith(_COMPILED) for file in distribution.files or ())


def _copy(name: str, distribution: metadata.Distribution, place: Path) -> None:
    """The files of a distribution. Ours are taken from where they are: an editable install lists none."""
    place.mkdir(parents=True)
    if name == "autoinstr":
        package = Path(autoinstr.__file__).resolve().parent
        without = shutil.ignore_patterns("__pycache__", "span_maps")
        shutil.copytree(package, place / "autoinstr", ignore=without)
        shutil.copytree(builtin_folder(), place / "autoinstr" / "span_maps", ignore=shutil.ignore_patterns(".*"))
        info = place / f"autoinstr-{distribution.version}.dist-info"
        info.mkdir()
        for file in ("METADATA", "entry_points.txt"):
            (info / file).write_text(distribution.read_text(file) or "", encoding="utf-8")
        return
    copied = 0
    for listed in distribution.files or ():
        if listed.parts[0] in ("..", os.sep) or "__pycache__" in listed.parts or listed.name in _OF_THE_INSTALLATION:
            continue
        source = Path(str(distribution.locate_file(listed)))
        if not source.is_file() or listed.suffix == ".pth":
            continue
        target = place.joinpath(*listed.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        copied += listed.suffix == ".py"
    if not copied:
        raise BundleError(f"{name} {distribution.version} has no files to copy (an editable install, of {sys.prefix})")

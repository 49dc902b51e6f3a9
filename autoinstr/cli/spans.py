"""``autoinstr spans``: every span that the active maps know, or one of them in detail."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoinstr.maps.active import ActiveMaps, ActiveSpan
    from autoinstr.maps.model import Alternatives

_PATTERN = frozenset("*?[")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "spans",
        help="every span that the active maps know",
        description="List the spans of the active maps, or show one in detail.",
        epilog="Which maps are active and what is selected is read from AUTOINSTR_SPAN_MAPS, "
        "AUTOINSTR_BUILTIN_MAPS and AUTOINSTR_SPAN_GROUPS, as in a run.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a span name or a pattern: 'rl.grpo.*'")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from autoinstr.maps.active import read_active
    from autoinstr.settings import Settings

    settings = Settings.from_environ()
    active = read_active(settings.span_maps, settings.builtin_maps, settings.span_groups)
    for line in (*settings.mistakes, *active.mistakes):
        print(f"autoinstr spans: {line}", file=sys.stderr)
    spans = active.spans if args.name is None else _named(args.name, active.spans)
    if args.name is not None and not spans:
        print(f"autoinstr spans: {_not_found(args.name, active)}", file=sys.stderr)
        return 1
    if args.json:
        import json

        document = {"span_groups": settings.span_groups, "spans": [_plain(span) for span in spans]}
        print(json.dumps(document, indent=2, default=str))
    elif args.name is None:
        print(_table(spans))
        selected = sum(span.selected for span in spans)
        print(f"\n{len(spans)} spans, {selected} selected by AUTOINSTR_SPAN_GROUPS={settings.span_groups}")
    else:
        print("\n\n".join(_detail(span, settings.span_groups) for span in spans))
    return 0


def _named(name: str, spans: Sequence[ActiveSpan]) -> list[ActiveSpan]:
    from fnmatch import fnmatchcase

    if _PATTERN.intersection(name):
        return [span for span in spans if fnmatchcase(span.entry.name, name)]
    return [span for span in spans if span.entry.name == name]


def _not_found(name: str, active: ActiveMaps) -> str:
    from autoinstr.maps.words import did_you_mean

    if name in active.disabled:
        return f"the span {name!r} is disabled in {_short(active.disabled[name])}"
    if _PATTERN.intersection(name):
        return f"no active map has a span like {name!r}"
    return f"no active map has the span {name!r}{did_you_mean(name, {s.entry.name for s in active.spans})}"


# -- as text ------------------------------------------------------------------------------------------


def _table(spans: Sequence[ActiveSpan]) -> str:
    rows = [("SPAN", "GROUP", "BUCKET", "SELECTED", "JOIN", "TARGET", "MAP")]
    for span in spans:
        entry = span.entry
        first, *others = [str(target) for target in entry.targets()]
        rows.append(
            (
                entry.name,
                entry.group,
                span.bucket or "-",
                _selected(span),
                entry.join.kind,
                first + _arguments(entry.targets()[0]) + (f" +{len(others)}" if others else ""),
                f"{_shortest(entry.place.file)}:{entry.place.line}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _selected(span: ActiveSpan) -> str:
    return "yes" if span.selected else ("in a scope" if span.counts_as else "no")


def _detail(span: ActiveSpan, spec: str) -> str:
    entry, join = span.entry, span.entry.join
    lines: list[tuple[str, str]] = [("about", entry.about)] if entry.about else []
    lines += [
        ("map", f"{_short(entry.place.file)}:{entry.place.line} ({entry.map}, {span.layer})"),
        *(("replaces", f"{_short(place.file)}:{place.line}") for place in span.replaces),
        ("package", span.package),
        ("group", f"{entry.group}: {span.group_about}" if span.group_about else entry.group),
        *([("bucket", span.bucket or "none")] if entry.opens else []),
        ("selected", f"{_selected(span)} ({_why(span, spec)})"),
    ]
    first = "begin" if join.kind == "between" else join.kind
    lines += [(first, _alternatives(one)) for one in join.targets]
    lines += [("end", _alternatives(one)) for one in join.ends]
    lines += [("until", _alternatives(one)) for one in join.untils]
    if join.match:
        lines.append(("match", ", ".join(path.text for path in join.match)))
    lines += [("inside", module) for module in entry.inside]
    lines += [(f"only when {path.text}", " or ".join(map(str, allowed.values))) for path, allowed in entry.only_when]
    lines += [(f"attribute {key}", " or ".join(path.text for path in paths)) for key, paths in entry.attributes]
    if entry.scope is not None:
        said = [f"bucket {entry.scope.bucket}"] if entry.scope.bucket else []
        said += [f"{one} counts as {other}" for one, other in entry.scope.groups]
        lines.append(("scope", ", ".join(said)))
    if entry.coalesce is not None:
        counted = f", counted in {entry.coalesce.count}" if entry.coalesce.count else ""
        lines.append(("coalesce", f"same {', '.join(path.text for path in entry.coalesce.match)}{counted}"))
    if entry.start_from is not None:
        lines.append(("start_from", f"{entry.start_from}{_arguments(entry.start_from)}"))
    if entry.versions:
        lines.append(("versions", entry.versions))
    flags = [name for name in ("keep", "optional", "subclasses", "content", "threads") if getattr(entry, name)]
    flags += ["once"] if join.once else []
    if flags:
        lines.append(("also", ", ".join(flags)))
    width = max(len(label) for label, _ in lines)
    return "\n".join([entry.name, *(f"  {label.ljust(width)}  {text}".rstrip() for label, text in lines)])


def _why(span: ActiveSpan, spec: str) -> str:
    if span.counts_as:
        return f"counts as {span.counts_as!r} inside a scope that says so"
    by = f"AUTOINSTR_SPAN_GROUPS={spec}"
    return by if span.selected else f"not in {by}"


def _alternatives(alternatives: Alternatives) -> str:
    return ", else ".join(f"{target}{_arguments(target)}" for target in alternatives.targets)


def _arguments(target: Any) -> str:
    said = (f"{s.argument}={'|'.join(str(value) for value in s.values)}" for s in target.selectors)
    return f"({', '.join(said)})" if target.selectors else ""


def _short(file: str) -> str:
    """The path from here where it lies below, else as it is."""
    from pathlib import Path

    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def _shortest(file: str) -> str:
    """As `_short`, and a shipped map without the folder of its installation, which would fill a row of the table."""
    from pathlib import Path

    from autoinstr.maps.catalog import builtin_folder

    shipped = builtin_folder()
    short = _short(file)
    return str(Path(file).relative_to(shipped.parent)) if short == file and shipped in Path(file).parents else short


# -- as JSON ------------------------------------------------------------------------------------------


def _plain(span: ActiveSpan) -> dict[str, Any]:
    """One span of the ``--json`` object. Its keys are public: add, never rename."""
    entry, join = span.entry, span.entry.join
    return {
        "name": entry.name,
        "about": entry.about,
        "group": entry.group,
        "bucket": span.bucket,
        "selected": span.selected,
        "counts_as": span.counts_as,
        "join": join.kind,
        "targets": [_plain_targets(one) for one in join.targets],
        "ends": [_plain_targets(one) for one in join.ends],
        "untils": [_plain_targets(one) for one in join.untils],
        "once": join.once,
        "match": [path.text for path in join.match or ()],
        "inside": list(entry.inside),
        "only_when": {path.text: list(allowed.values) for path, allowed in entry.only_when},
        "attributes": {key: [path.text for path in paths] for key, paths in entry.attributes},
        "scope": None if entry.scope is None else {"bucket": entry.scope.bucket, "groups": dict(entry.scope.groups)},
        "coalesce": None
        if entry.coalesce is None
        else {"match": [path.text for path in entry.coalesce.match], "count": entry.coalesce.count},
        "keep": entry.keep,
        "optional": entry.optional,
        "subclasses": entry.subclasses,
        "content": entry.content,
        "threads": entry.threads,
        "start_from": None if entry.start_from is None else str(entry.start_from),
        "versions": entry.versions,
        "map": entry.map,
        "package": span.package,
        "layer": span.layer,
        "file": entry.place.file,
        "line": entry.place.line,
        "replaces": [str(place) for place in span.replaces],
    }


def _plain_targets(alternatives: Alternatives) -> list[str]:
    """The alternatives of which the first that exists is patched."""
    return [f"{target}{_arguments(target)}" for target in alternatives.targets]

"""Every span and attribute of the maps for NeMo RL is in a whole tree, and docs/nemo-rl.md says in which file.

`python tests/trees/test_every_span.py` writes the tables for the docs.
"""

from __future__ import annotations

import re
from pathlib import Path

from whole_trees import catalog, every_tree, names

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "nemo-rl.md"
IN_NO_RELEASE = "an operation that no release at hand has: there is nothing to make a stand-in of"
NOT_SHOWN = {
    "rl.data_plane.list_sample_ids": IN_NO_RELEASE,
    "rl.data_plane.save_checkpoint": IN_NO_RELEASE,
    "rl.data_plane.load_checkpoint": IN_NO_RELEASE,
}


SHOWN_BESIDE = {("rl.ray.cluster_source", "rl.setup.ray_init"): "test_ray_init.py"}
"""Attributes that no run of an algorithm has, and the tests beside the trees that show them."""
_ATTRIBUTE = re.compile(r" ([a-z_.]+)=")


def mapped() -> list[str]:
    return list(dict.fromkeys(entry.name for _, span_map in catalog().maps_for() for entry in span_map.spans))


def shown_by() -> dict[str, list[str]]:
    """Span → the test files whose trees have it."""
    found: dict[str, list[str]] = {}
    for file, tree in every_tree():
        for span in names(tree):
            if file not in found.setdefault(span, []):
                found[span].append(file)
    return found


def mapped_attributes() -> list[tuple[str, str]]:
    """(attribute, span) of each entry of the maps, in the maps' order by attribute."""
    found: dict[str, dict[str, None]] = {}
    for _, span_map in catalog().maps_for():
        for entry in span_map.spans:
            counted = [entry.coalesce.count] if entry.coalesce is not None and entry.coalesce.count else []
            for key in (*(key for key, _ in entry.attributes), *counted):
                found.setdefault(key, {})[entry.name] = None
    return [(key, span) for key, spans in found.items() for span in spans]


def attributes_shown_by() -> dict[tuple[str, str], list[str]]:
    """(attribute, span) → the test files whose trees have it there."""
    found = {pair: [file] for pair, file in SHOWN_BESIDE.items()}
    for file, tree in every_tree():
        for line in filter(None, map(str.strip, tree.splitlines())):
            for key in _ATTRIBUTE.findall(line):
                files = found.setdefault((key, line.split()[0]), [])
                if file not in files:
                    files.append(file)
    return found


def attribute_table() -> str:
    shown = attributes_shown_by()
    files: dict[str, dict[str, None]] = {}
    for pair in mapped_attributes():
        files.setdefault(pair[0], {}).update(dict.fromkeys(shown.get(pair, ())))
    rows = [f"| `{key}` | {', '.join(f'`{file}`' for file in sorted(by))} |" for key, by in files.items()]
    return "\n".join(["| Attribute | Tests |", "|---|---|", *rows])


def table() -> str:
    shown = shown_by()
    rows = [f"| `{span}` | {', '.join(f'`{file}`' for file in shown[span])} |" for span in mapped() if span in shown]
    return "\n".join(["| Span | Tests |", "|---|---|", *rows])


def test_every_span_is_in_a_tree() -> None:
    shown = shown_by()
    assert [span for span in mapped() if span not in shown] == list(NOT_SHOWN)
    assert not set(shown) - set(mapped()), "a tree has a span that no map has"


def test_every_attribute_is_in_a_tree_on_each_of_its_spans() -> None:
    shown = attributes_shown_by()
    assert [
        (key, span) for key, span in mapped_attributes() if (key, span) not in shown and span not in NOT_SHOWN
    ] == []
    assert not set(shown) - set(mapped_attributes()), "a tree has an attribute that no map has"


def test_the_docs_say_which_test_shows_a_span() -> None:
    for written in (table(), attribute_table()):
        assert written in DOCS.read_text(encoding="utf-8"), "write it anew: python tests/trees/test_every_span.py"


if __name__ == "__main__":
    print(table(), attribute_table(), sep="\n\n")

"""Every span of the maps for NeMo RL is in at least one whole tree, and docs/nemo-rl.md says in which file.

`python tests/trees/test_every_span.py` writes the table for the docs.
"""

from __future__ import annotations

from pathlib import Path

from whole_trees import catalog, every_tree, names

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "nemo-rl.md"
IN_NO_RELEASE = "an operation that no release at hand has: there is nothing to make a stand-in of"
NOT_SHOWN = {
    "rl.data_plane.list_sample_ids": IN_NO_RELEASE,
    "rl.data_plane.save_checkpoint": IN_NO_RELEASE,
    "rl.data_plane.load_checkpoint": IN_NO_RELEASE,
}


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


def table() -> str:
    shown = shown_by()
    rows = [f"| `{span}` | {', '.join(f'`{file}`' for file in shown[span])} |" for span in mapped() if span in shown]
    return "\n".join(["| Span | Tests |", "|---|---|", *rows])


def test_every_span_is_in_a_tree() -> None:
    shown = shown_by()
    assert [span for span in mapped() if span not in shown] == list(NOT_SHOWN)
    assert not set(shown) - set(mapped()), "a tree has a span that no map has"


def test_the_docs_say_which_test_shows_a_span() -> None:
    assert table() in DOCS.read_text(encoding="utf-8"), "write it anew: python tests/trees/test_every_span.py"


if __name__ == "__main__":
    print(table())

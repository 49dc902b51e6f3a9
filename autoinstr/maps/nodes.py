"""YAML with its places: a thin reading of PyYAML's node tree that keeps every line and column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from autoinstr.maps.model import Place

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(ValueError):
    """YAML that can't be read; `place` says where."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


class Node:
    """One value of a YAML file and its place."""

    def __init__(self, node: Any, file: str) -> None:
        self._node = node
        self._file = file

    @property
    def place(self) -> Place:
        mark = self._node.start_mark
        return Place(self._file, mark.line + 1, mark.column + 1)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def kind(self) -> str:
        """The value's type in words, for messages."""
        if self.is_mapping:
            return "a mapping"
        if self.is_sequence:
            return "a list"
        tag = self._node.tag.rpartition(":")[2]
        return {
            "str": "a text",
            "int": "a number",
            "float": "a number",
            "bool": "true or false",
            "null": "nothing",
        }.get(tag, f"a {tag}")

    @property
    def scalar(self) -> Any:
        """The Python value of a scalar."""
        try:
            return yaml.SafeLoader("").construct_object(self._node)
        except Exception:
            return self._node.value

    def items(self) -> Iterator[tuple[str, Node, Node]]:
        """Key text, key node and value node of a mapping, in order."""
        for key, value in self._node.value:
            yield str(key.value), Node(key, self._file), Node(value, self._file)

    def __iter__(self) -> Iterator[Node]:
        return (Node(item, self._file) for item in self._node.value)


def read(text: str, file: str) -> Node | None:
    """The root of the YAML document `text`, or None for an empty one.

    Raises:
        YamlError: where the text is not YAML.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = Place(file, mark.line + 1, mark.column + 1) if mark is not None else Place(file)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise YamlError(place, f"this is not YAML: {problem}") from None
    return None if root is None else Node(root, file)

"""YAML with its places: a thin reading of PyYAML's node tree that keeps every line and column.

Anchors, aliases and merge keys (`<<`) mean what YAML 1.1 says; tags such as `!!python/object` mean nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from autoinstr.maps.model import Place

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE: Final = "tag:yaml.org,2002:"
_IN_WORDS: Final = {
    "str": "a text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
}
_NOT_ALLOWED: Final = "the character #x{:04x} is not allowed"
_PLAINER: Final = {
    "but found another document": "a second document begins here, and a file holds one map",
    "mapping values are not allowed in this context": "a second ': ' in one line; put the text in quotes",
    "found a tab character that violates indentation": "a tab; YAML is indented with spaces",
    "did not find expected node content": "a value is missing, or a bracket is not closed",
    "found unexpected end of stream": "the file ends inside a quoted text",
}


class YamlError(ValueError):
    """YAML that can't be read; `place` says where."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


class Unreadable:
    """Stands for a scalar that is not what its tag or look says, such as `!!int x`."""


UNREADABLE: Final = Unreadable()


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
        return isinstance(self._node, yaml.MappingNode) and self._node.tag == _CORE + "map"

    @property
    def is_sequence(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode) and self._node.tag == _CORE + "seq"

    @property
    def is_scalar(self) -> bool:
        return isinstance(self._node, yaml.ScalarNode)

    @property
    def kind(self) -> str:
        """The value's type in words, for messages."""
        if self.is_mapping:
            return "a mapping"
        if self.is_sequence:
            return "a list"
        tag = str(self._node.tag)
        word = tag.removeprefix(_CORE)
        if word in _IN_WORDS:
            return _IN_WORDS[word]
        return f"a value with the tag {'!!' + word if word != tag else tag}"

    @property
    def scalar(self) -> Any:
        """The Python value of a scalar."""
        if self._node.tag == _CORE + "str":
            return self._node.value
        try:
            return yaml.SafeLoader("").construct_object(self._node)
        except Exception:
            return UNREADABLE

    def items(self) -> Iterator[tuple[str, Node, Node]]:
        """Key (as it is written; empty for a list or mapping), key node, value node, in order, merged ones last.

        Raises:
            YamlError: for a merge of what is no mapping.
        """
        own: set[str] = set()
        merges = []
        for key, value in self._node.value:
            if key.tag == _CORE + "merge":
                merges.append(value)
                continue
            text = key.value if isinstance(key, yaml.ScalarNode) else ""
            own.add(text)
            yield text, Node(key, self._file), Node(value, self._file)
        for key, value in self._merged(merges, own):
            yield key.value, Node(key, self._file), Node(value, self._file)

    def _merged(self, waiting: list[Any], taken: set[str]) -> Iterator[tuple[Any, Any]]:
        """The pairs that `<<` brings, those that come first winning, none of `taken`."""
        waiting, seen = list(waiting), {id(self._node)}
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, yaml.SequenceNode):
                waiting[:0] = node.value
                continue
            if not isinstance(node, yaml.MappingNode):
                wrong = Node(node, self._file)
                raise YamlError(wrong.place, f"'<<' merges a mapping or a list of them, not {wrong.kind}")
            if id(node) in seen:
                continue
            seen.add(id(node))
            deeper = []
            for key, value in node.value:
                if key.tag == _CORE + "merge":
                    deeper.append(value)
                elif isinstance(key, yaml.ScalarNode) and key.value not in taken:
                    taken.add(key.value)
                    yield key, value
            waiting[:0] = deeper

    def __iter__(self) -> Iterator[Node]:
        return (Node(item, self._file) for item in self._node.value)


def read(text: str, file: str) -> Node | None:
    """The root of the YAML document `text`, or None for an empty one.

    Raises:
        YamlError: where the text is not YAML.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise YamlError(
            _at(text, text.find(chr(code)), file), f"this is not YAML: {_NOT_ALLOWED.format(code)}"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = Place(file, mark.line + 1, mark.column + 1) if mark is not None else Place(file)
        raise YamlError(place, f"this is not YAML: {_problem(error, text, place)}") from None
    except UnicodeEncodeError as error:  # half a surrogate pair, which no file holds
        code = ord(text[error.start])
        raise YamlError(_at(text, error.start, file), f"this is not YAML: {_NOT_ALLOWED.format(code)}") from None
    except RecursionError:
        raise YamlError(Place(file), "this is not YAML: it is nested too deep") from None
    return None if root is None else Node(root, file)


def _problem(error: yaml.YAMLError, text: str, place: Place) -> str:
    problem = str(getattr(error, "problem", None) or str(error).partition("\n")[0])
    if problem == "found character that cannot start any token":
        at = text.splitlines()[place.line - 1][place.column - 1 : place.column] if place.line else ""
        return _PLAINER["found a tab character that violates indentation"] if at == "\t" else (
            f"a text can't begin with {at!r}; put it in quotes"
        )  # fmt: skip
    return _PLAINER.get(problem, problem)


def _at(text: str, position: int, file: str) -> Place:
    if position < 0:
        return Place(file)
    before = text[:position]
    return Place(file, before.count("\n") + 1, position - before.rfind("\n"))

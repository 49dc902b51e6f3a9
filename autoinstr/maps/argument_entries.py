"""Reads the `arguments` section of a map: what calls hand on, by the function that is called.

A wrong entry leaves out that entry; spans stand as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autoinstr.environment_variables import SWITCHES
from autoinstr.maps import keys
from autoinstr.maps.model import ArgumentsEntry
from autoinstr.maps.nodes import Node
from autoinstr.maps.words import shown, suggest

if TYPE_CHECKING:
    from autoinstr.maps.loader import Pair, _Reader


def kinds(reader: _Reader) -> dict[str, Callable[[Node, str], Any]]:
    """The readers of this section's kinds of values, for the loader's table."""

    def switch(node: Node, what: str) -> str:
        word = reader.text(node, what)
        if word not in SWITCHES:
            raise reader.wrong(node.place, f"there is no switch {shown(word)}{suggest(word, SWITCHES)}")
        return word

    def words_by_name(node: Node, what: str) -> tuple[tuple[str, str], ...]:
        def read(pair: Pair) -> tuple[str, str]:
            name, key_node, value = pair
            if not name.isidentifier():
                raise reader.wrong(key_node.place, f"{shown(name)} is no name of an argument")
            word = reader.text(value, name)
            if word not in keys.WORDS or (what == "add" and word != "trace_headers"):
                known = keys.WORDS if what == "set" else ("trace_headers",)
                raise reader.wrong(value.place, f"{what}: {name} can't be {shown(word)}{suggest(word, known)}")
            return name, word

        return tuple(reader.whole(reader.pairs(node, None, what), read))

    return {
        "arguments": lambda node, what: node,  # read last: it needs the map's name
        "switch": switch,
        "words_by_name": words_by_name,
    }


def read(reader: _Reader, node: Node, map_name: str) -> tuple[ArgumentsEntry, ...]:
    """Every entry of the section that can be read. Never raises."""
    found: list[ArgumentsEntry] = []

    def one(pair: Pair) -> None:
        _, key_node, value = pair
        with reader.consequence("the arguments are left out"):
            target = reader.target(key_node, "arguments")
            values = reader.all_fields(value, keys.ARGUMENTS_KEYS, f"the arguments of {target}")
            if not values.get("set") and not values.get("add"):
                raise reader.wrong(value.place, f"the arguments of {target} need 'set' or 'add'")
            if ("group" in values) == ("switch" in values):
                raise reader.wrong(value.place, f"the arguments of {target} need one of 'group' and 'switch'")
            where = values.get("where")
            if where is not None and where.root not in ("args", "self"):
                raise reader.wrong(value.place, f"where reads args or self, not {where.root!r}")
            if target.selectors:
                raise reader.wrong(key_node.place, f"{shown(str(target))} can't be picked by arguments here")
        found.append(ArgumentsEntry(target, map_name, key_node.place, **values))

    with reader.consequence("the arguments of this map are left out"):
        if not node.is_mapping:
            reader.mistake(node.place, f"arguments must be a mapping of keys, not {node.kind}")
            return ()
    with reader.consequence("this one is left out"):
        reader.possible(reader.pairs(node, None, "arguments"), one)
    return tuple(found)

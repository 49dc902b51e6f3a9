"""Stand-ins for objects that can't be changed because they may be shared: all but one operation goes through.

Special methods are looked up on the type, so each kind of object gets a stand-in class of its own with
exactly the special methods that the kind has: what was not callable, sized or iterable is not so now.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

_OWN = frozenset(dir(object)) - {"__dir__", "__eq__", "__format__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__"}
_OWN -= {"__ne__", "__reduce__", "__reduce_ex__", "__repr__", "__sizeof__", "__str__"}
_OWN |= {"__del__", "__getattr__", "__class_getitem__"}
"""Special methods that a stand-in does not pass on: they are about itself, or about its class."""

_classes: WeakKeyDictionary[type, dict[type[Delegate], type]] = WeakKeyDictionary()


class Delegate:
    """Base of the stand-ins. Subclasses say in `OPERATIONS` what they do themselves, where the kind does it at all."""

    __slots__ = ("__weakref__", "_autoinstr_object", "_autoinstr_state")

    OPERATIONS: ClassVar[dict[str, Any]] = {}

    _autoinstr_object: Any
    _autoinstr_state: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._autoinstr_object, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._autoinstr_object, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._autoinstr_object, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._autoinstr_object.__class__


def stand_in(base: type[Delegate], behind: Any, state: Any) -> Any:
    """A stand-in for `behind`, of the class that `base` becomes for its type; `state` is the stand-in's own."""
    kind = type(behind)
    by_base = _classes.get(kind)
    if by_base is None:
        by_base = _classes[kind] = {}
    cls = by_base.get(base)
    if cls is None:
        cls = by_base[base] = _class_for(base, kind)
    made: Any = object.__new__(cls)
    object.__setattr__(made, "_autoinstr_object", behind)
    object.__setattr__(made, "_autoinstr_state", state)
    return made


def _class_for(base: type[Delegate], kind: type) -> type:
    names: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    there = dir(kind)  # not what its metaclass has: every class can be called
    for name in there:
        if not (name.startswith("__") and name.endswith("__")) or name in _OWN:
            continue
        if callable(getattr(kind, name, None)):
            names[name] = _forward(name)
    if getattr(kind, "__hash__", None) is None:
        names["__hash__"] = None
    names.update({name: does for name, does in base.OPERATIONS.items() if name in there})
    return type(kind.__name__, (base,), names)


def _forward(name: str) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._autoinstr_object, name)(*args, **kwargs)

    forward.__name__ = name
    return forward

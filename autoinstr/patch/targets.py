"""From `module:Qual.name` to the object that is patched: who owns it, what is there now, and of what kind."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoinstr.maps.model import did_you_mean

_ABSENT = object()


class TargetMissing(LookupError):
    """The target does not exist in this release; the text says what is missing, and what is near."""


class TargetRefused(TypeError):
    """The target exists and can't be patched; the text says why."""


@dataclass
class Found:
    """Where a target lives. `raw` is what the owner's namespace holds, `inherited` says that it is a base's."""

    owner: Any
    name: str
    raw: Any
    inherited: bool

    def replace(self, new: Any) -> None:
        """Put `new` in its place."""
        setattr(self.owner, self.name, new)

    def restore(self, installed: Any) -> bool:
        """Put back what was there, if `installed` is still in place; False where somebody wrapped it since."""
        if vars(self.owner).get(self.name, _ABSENT) is not installed:
            return False
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.raw)
        return True


def find(module: types.ModuleType, qualname: str) -> Found:
    """Resolve `qualname` in `module`.

    Raises:
        TargetMissing: with the nearest name that is there.
    """
    owner: Any = module
    *path, name = qualname.split(".")
    for part in path:
        owner = _get(owner, part, module)
    namespace = vars(owner) if hasattr(owner, "__dict__") else {}
    if name in namespace:
        return Found(owner, name, namespace[name], inherited=False)
    if isinstance(owner, type):
        for base in owner.__mro__[1:]:
            if name in vars(base):
                return Found(owner, name, vars(base)[name], inherited=True)
    elif isinstance(owner, types.ModuleType):
        value = getattr(owner, name, _ABSENT)  # a lazy module makes it now
        if value is not _ABSENT:
            return Found(owner, name, value, inherited=False)
    raise TargetMissing(_missing(owner, name, module))


def _get(owner: Any, part: str, module: types.ModuleType) -> Any:
    try:
        return getattr(owner, part)
    except AttributeError:
        raise TargetMissing(_missing(owner, part, module)) from None


def _missing(owner: Any, name: str, module: types.ModuleType) -> str:
    where = module.__name__ + ("" if owner is module else "." + getattr(owner, "__qualname__", type(owner).__name__))
    return f"{where} has no {name!r}{did_you_mean(name, dir(owner))}"


def underlying(raw: Any) -> Any:
    """The function that a namespace entry runs: of a static or class method, property or partial."""
    if isinstance(raw, (staticmethod, classmethod)):
        return raw.__func__
    if isinstance(raw, property):
        return raw.fget
    if isinstance(raw, functools.cached_property):
        return raw.func
    if isinstance(raw, functools.partial):
        return raw.func
    return raw


def rebuilt(raw: Any, wrap: Callable[[Any], Any]) -> Any:
    """What stands in `raw`'s place when the function it runs is replaced by `wrap(function)`.

    Raises:
        TargetRefused: where it is no callable of a kind that can be replaced.
    """
    if isinstance(raw, (staticmethod, classmethod)):
        return type(raw)(wrap(raw.__func__))
    if isinstance(raw, property):
        if raw.fget is None:
            raise TargetRefused("the property has no getter")
        return type(raw)(wrap(raw.fget), raw.fset, raw.fdel, raw.__doc__)
    if isinstance(raw, functools.cached_property):
        new = functools.cached_property(wrap(raw.func))
        new.attrname = raw.attrname  # type: ignore[attr-defined,unused-ignore]
        new.__doc__ = raw.__doc__
        return new
    if type(raw) is functools.partial:
        made = functools.partial(wrap(raw.func), *raw.args, **raw.keywords)
        made.__dict__.update(raw.__dict__)
        return made
    if isinstance(raw, type):
        raise TargetRefused("it is a class; name one of its methods, as in Class.__init__")
    if isinstance(raw, functools._lru_cache_wrapper):
        cached: Any = wrap(raw)
        for name in ("cache_info", "cache_clear", "cache_parameters"):
            setattr(cached, name, getattr(raw, name))
        return cached
    if isinstance(
        raw, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType,
              types.WrapperDescriptorType)
    ) or (callable(raw) and hasattr(raw, "__wrapped__")):  # fmt: skip
        return wrap(raw)
    if callable(raw):
        return _callable_instance(raw, wrap)
    raise TargetRefused(f"it is not callable but {type(raw).__name__}")


def _callable_instance(instance: Any, wrap: Callable[[Any], Any]) -> Any:
    """The very instance, its class changed to a subclass whose `__call__` is wrapped."""
    kind = type(instance)
    call = kind.__call__

    def reduce(self: Any, protocol: Any) -> Any:
        plain: Any = getattr(kind, "__reduce_ex__")(self, protocol)  # noqa: B009
        # pickled as what it was: its own class is not importable
        return tuple(tuple(kind if x is traced else x for x in p) if isinstance(p, tuple) else p for p in plain)

    traced = type(
        kind.__name__,
        (kind,),
        {
            "__slots__": (),
            "__call__": wrap(call),
            "__reduce_ex__": reduce,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "__autoinstr_class__": kind,
        },
    )
    try:
        instance.__class__ = traced
    except TypeError as error:
        raise TargetRefused(f"it is an instance of {kind.__qualname__} whose class can't be changed: {error}") from None
    return instance


def undo_instance(instance: Any) -> bool:
    """Give a callable instance its own class back; False where it is none that was changed."""
    original = getattr(type(instance), "__autoinstr_class__", None)
    if original is None:
        return False
    instance.__class__ = original
    return True


def find_in_class(cls: type, name: str) -> Found:
    """`name` of a class, its own or inherited."""
    if name in vars(cls):
        return Found(cls, name, vars(cls)[name], inherited=False)
    return Found(cls, name, getattr(cls, name), inherited=True)


def wrap_init_subclass(cls: type, on_subclass: Callable[[type], None]) -> tuple[Found, Any]:
    """Install an `__init_subclass__` that also reports every class defined later below `cls`."""
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(subclass: Any, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, subclass)(**kwargs)
        else:
            super(cls, subclass).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        on_subclass(subclass)

    found = Found(cls, "__init_subclass__", own, inherited=own is None)
    found.replace(classmethod(__init_subclass__))  # type: ignore[arg-type]
    return found, vars(cls)["__init_subclass__"]

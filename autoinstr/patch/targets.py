"""From `module:Qual.name` to the attribute that is patched: who owns it, what is there, how it is put back."""

from __future__ import annotations

import abc
import copyreg
import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoinstr.maps.words import did_you_mean
from autoinstr.patch import functions
from autoinstr.patch.importlib_bootstrap import uncounted
from autoinstr.patch.ledger import installed_as

_ABSENT = object()


class TargetMissing(LookupError):
    """The target does not exist in this release; the text says what is missing, and what is near."""


class TargetElsewhere(LookupError):
    """The target is there, but runs in other processes only, and is patched in those."""


class TargetRefused(TypeError):
    """The target exists and can't be patched; the text says why."""


@dataclass
class Found:
    """Where a target lives. `raw` is what is found there; `inherited`: the owner's own namespace has it not."""

    owner: Any
    name: str
    raw: Any
    inherited: bool

    @property
    def key(self) -> tuple[int, str]:
        """What tells this attribute from every other one."""
        return id(self.owner), self.name

    def replace(self, new: Any) -> None:
        """Put `new` in its place."""
        setattr(self.owner, self.name, new)
        _name_for_pickle(self, new)

    def restore(self, installed: Any) -> bool:
        """Put back what was there, if `installed` is still in place; False where somebody wrapped it since."""
        if vars(self.owner).get(self.name, _ABSENT) is not installed:
            return False
        raw, inherited = self.raw, self.inherited
        # what was there may be a patch of ours that was undone while this one lay over it
        while (below := installed_as(underlying(raw))) is not None and below.retired and below.new is raw:
            raw, inherited = below.found.raw, below.found.inherited
        if inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, raw)
        return True


class CallableInstance(Found):
    """A callable object. It stays the very object: its class is replaced by a subclass with another `__call__`."""

    def __init__(self, instance: Any) -> None:
        super().__init__(instance, "__call__", type(instance).__call__, inherited=False)

    def replace(self, new: Any) -> None:
        kind = type(self.owner)
        if type(kind) not in (type, abc.ABCMeta) or _has_own(kind, "__init_subclass__"):
            raise TargetRefused(f"it is an instance of {kind.__qualname__}, which may count its subclasses")

        def reduce(instance: Any, protocol: Any) -> Any:
            plain: Any = getattr(kind, "__reduce_ex__")(instance, protocol)  # noqa: B009
            if isinstance(plain, tuple) and plain[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
                plain = (kind.__new__, *plain[1:])  # pickle would look at the class of the instance too
            # pickled as what it was: its own class is not importable
            return tuple(tuple(kind if x is traced else x for x in p) if isinstance(p, tuple) else p for p in plain)

        namespace = {
            "__slots__": (),
            "__call__": new,
            "__reduce_ex__": reduce,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
        }
        try:
            traced: Any = types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(namespace))
            traced.__autoinstr_class__ = kind
            self.owner.__class__ = traced
        except Exception as error:
            raise TargetRefused(
                f"it is an instance of {kind.__qualname__} whose class can't be changed: {error}"
            ) from None

    def restore(self, installed: Any) -> bool:
        traced = type(self.owner)
        if vars(traced).get("__call__") is not installed:
            return False
        while True:  # as in Found.restore
            traced = vars(traced)["__autoinstr_class__"]
            below = installed_as(vars(traced).get("__call__"))
            if below is None or not below.retired or "__autoinstr_class__" not in vars(traced):
                break
        self.owner.__class__ = traced
        return True


def _has_own(kind: type, name: str) -> bool:
    """Whether `kind` or a base of it has a `name` of its own, and not only what `object` has."""
    return any(name in vars(base) for base in kind.__mro__[:-1])


def find(module: Any, qualname: str, name: str | None = None) -> Found:
    """Resolve `qualname` in `module`, a module or what stands for one in `sys.modules` under `name`.

    Raises:
        TargetMissing: with the nearest name that is there.
        TargetElsewhere: where it is a method of a class that `@ray.remote` has decorated.
    """
    owner = module
    *path, last = qualname.split(".")
    where = name or module.__name__
    for part in path:
        owner = _get(owner, part, where)
        where = f"{where}.{part}"
    namespace = _namespace(owner)
    if "__ray_metadata__" in namespace:
        raise TargetElsewhere(f"{where} is a Ray actor class, which is patched in its workers")
    if last in namespace:
        return _as_found(owner, last, namespace[last], inherited=False)
    if isinstance(owner, type):
        for base in owner.__mro__[1:]:
            if last in vars(base):
                return _as_found(owner, last, vars(base)[last], inherited=True)
        raise _missing(owner, last, where)
    value = _get(owner, last, where)  # a lazy module makes it now, and may keep it
    return _as_found(owner, last, value, inherited=last not in _namespace(owner))


def find_in_class(cls: type, name: str) -> Found:
    """`name` of a class, its own or inherited."""
    if name in vars(cls):
        return Found(cls, name, vars(cls)[name], inherited=False)
    return Found(cls, name, inspect.getattr_static(cls, name), inherited=True)


def _namespace(owner: Any) -> Any:
    try:
        return vars(owner)
    except TypeError:
        return {}


def _as_found(owner: Any, name: str, value: Any, inherited: bool) -> Found:
    if _is_plain_instance(value) and not (isinstance(owner, type) and hasattr(type(value), "__get__")):
        return CallableInstance(value)
    return Found(owner, name, value, inherited)


def _is_plain_instance(value: Any) -> bool:
    """Whether a call of `value` is a call of its class's `__call__`, written in Python. A proxy is none."""
    call = getattr(type(value), "__call__", None)  # noqa: B004
    if isinstance(value, type) or not isinstance(call, types.FunctionType):
        return False
    try:
        return value.__class__ is type(value)
    except Exception:
        return False


def _get(owner: Any, part: str, where: str) -> Any:
    try:
        return getattr(owner, part)
    except AttributeError:
        missing = _missing(owner, part, where)
        if isinstance(owner, type):
            missing = TargetMissing(f"{missing} (what only an instance holds is no target: name its class's method)")
        raise missing from None
    except Exception as error:  # what a lazy module imports may be broken, or not installed
        raise TargetMissing(f"{where}.{part} can't be had: {type(error).__name__}: {error}") from None


def _name_for_pickle(found: Found, new: Any) -> None:
    """Pickle finds a function by its module and name. Where these lead to the original, name the place itself.

    That is so for what is patched where it was imported to and not where it is defined, for what is inherited,
    and for the function in a partial.
    """
    function, original = underlying(new), underlying(found.raw)
    if type(function) is not types.FunctionType:
        return
    owner = found.owner
    if not isinstance(owner, (type, types.ModuleType)):
        return
    module, path = (owner.__module__, f"{owner.__qualname__}.") if isinstance(owner, type) else (owner.__name__, "")
    path += found.name + (".func" if isinstance(new, functools.partial) else "")
    if _at(function.__module__, function.__qualname__) is original and _at(module, path) is function:
        function.__module__, function.__qualname__ = module, path


def _at(module: Any, path: Any) -> Any:
    try:
        value = functools.reduce(getattr, path.split("."), sys.modules[module])
    except Exception:
        return None
    return underlying(getattr(value, "__func__", value))


def _missing(owner: Any, name: str, where: str) -> TargetMissing:
    try:
        known = [word for word in dir(owner) if isinstance(word, str)]
    except Exception:
        known = []
    return TargetMissing(f"{where} has no {name!r}{did_you_mean(name, known)}")


def underlying(raw: Any) -> Any:
    """The function that a namespace entry runs: of a static or class method, property or partial."""
    kind = type(raw)
    # a proxy of somebody else's says that its class is the one that it stands for
    if issubclass(kind, (staticmethod, classmethod)):
        return raw.__func__
    if issubclass(kind, property):
        return raw.fget
    if issubclass(kind, functools.partialmethod):
        return underlying(raw.func)
    if issubclass(kind, (functools.cached_property, functools.partial)):
        return raw.func
    return raw


def rebuilt(found: Found, wrap: Callable[[Any], Any]) -> Any:
    """What stands in the place of `found.raw` when the function it runs is replaced by `wrap(function)`.

    Nothing is changed yet. What is inherited, and what somebody's descriptor makes, is looked up anew by every
    call, so that a base class patched later, or a class between in the order of inheritance, is still heard.

    Raises:
        TargetRefused: where it is no callable of a kind that can be replaced.
    """
    raw, kind = found.raw, type(found.raw)
    in_class = isinstance(found.owner, type)
    if isinstance(found, CallableInstance):
        return wrap(raw)
    if in_class and found.inherited:
        return _over_base(found, wrap)
    if issubclass(kind, (staticmethod, classmethod)):
        return kind(wrap(_inside(raw)))
    if issubclass(kind, property):
        if raw.fget is None:
            raise TargetRefused("the property has no getter")
        return kind(wrap(raw.fget), raw.fset, raw.fdel, raw.__doc__)
    if issubclass(kind, functools.cached_property):
        new = kind(wrap(raw.func))
        new.attrname = raw.attrname  # type: ignore[attr-defined,unused-ignore]
        new.__doc__ = raw.__doc__
        return new
    if kind in (functools.partial, functools.partialmethod):
        inner = raw.func
        no_method = isinstance(inner, (staticmethod, classmethod))
        new = type(inner)(wrap(_inside(inner))) if no_method else wrap(inner)
        made = kind(new, *raw.args, **raw.keywords)
        if kind is functools.partial:
            made.__dict__.update(raw.__dict__)
        return made
    if isinstance(raw, type):
        raise TargetRefused("it is a class; name one of its methods, as in Class.__init__")
    if issubclass(kind, (types.FunctionType, types.MethodType, *_BUILTIN)):
        return wrap(raw)
    if in_class and hasattr(kind, "__get__") and hasattr(raw, "__wrapped__"):
        return _over_descriptor(found, wrap)
    if not callable(raw):
        what = "a slot" if kind is types.MemberDescriptorType else "not callable"
        raise TargetRefused(f"it is {what} ({kind.__name__})")
    if not in_class and not hasattr(raw, "__wrapped__"):
        raise TargetRefused(f"it is an instance of {kind.__qualname__}, which can't be wrapped")
    if in_class and not isinstance(raw, functools._lru_cache_wrapper):
        raise TargetRefused(f"it is an instance of {kind.__qualname__}; name its __call__")
    return _with_methods(wrap(raw), raw)


def _inside(raw: Any) -> Any:
    """The function of a static or class method; refused where that is a class or a property."""
    kind, function = type(raw).__name__, raw.__func__
    if isinstance(function, type):
        raise TargetRefused(f"it is a class, as a {kind}; name one of its methods, as in Class.__init__")
    if not callable(function):
        raise TargetRefused(f"it is a {kind} over a {type(function).__name__}")
    return function


_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def _with_methods(new: Any, raw: Any) -> Any:
    """Give `new` the public methods of a callable object such as an `lru_cache` (`cache_clear`)."""
    for name in dir(type(raw)):
        if not name.startswith("_") and callable(getattr(type(raw), name, None)) and not hasattr(new, name):
            try:
                setattr(new, name, getattr(raw, name))
            except Exception:
                continue
    return new


def _over_base(found: Found, wrap: Callable[[Any], Any]) -> Any:
    owner, name, raw = found.owner, found.name, found.raw
    if vars(object).get(name) is raw:
        raise TargetRefused(f"{owner.__qualname__} has no {name} of its own")
    if isinstance(raw, (staticmethod, classmethod)):
        _inside(raw)
    if isinstance(raw, staticmethod):
        function = underlying(raw) if type(raw) is staticmethod else raw
        return staticmethod(wrap(_shim(function, lambda: (getattr(super(owner, owner), name), 0))))

    def next_in_order(self: Any) -> Any:
        try:
            found = getattr(super(owner, self), name)
        except TypeError:  # called with something that is no instance
            return raw, 0
        # a call of a bound method would hold the arguments, see functions.wrap_function
        return (found.__func__, 0) if type(found) is types.MethodType and found.__self__ is self else (found, 1)

    if isinstance(raw, classmethod):
        return classmethod(wrap(_shim(raw.__func__, next_in_order)))
    if isinstance(raw, property):
        if raw.fget is None:
            raise TargetRefused("the property has no getter")

        @functools.wraps(raw.fget)
        @uncounted
        def getter(self: Any) -> Any:
            return getattr(super(owner, self), name)

        return property(wrap(getter), raw.fset, raw.fdel, raw.__doc__)
    if isinstance(raw, functools.cached_property):
        return rebuilt(Found(owner, name, raw, inherited=False), wrap)
    if not callable(raw) or not hasattr(type(raw), "__get__") or isinstance(raw, type):
        return rebuilt(Found(owner, name, raw, inherited=False), wrap)
    return wrap(_shim(raw, next_in_order))


def _over_descriptor(found: Found, wrap: Callable[[Any], Any]) -> Any:
    owner, raw = found.owner, found.raw
    if isinstance(raw, staticmethod):
        return staticmethod(wrap(_shim(raw, lambda: (raw.__get__(None, owner), 0))))
    if isinstance(raw, classmethod):
        return classmethod(wrap(_shim(raw, lambda cls: (raw.__get__(None, cls), 1))))
    if isinstance(raw, property):
        raise TargetRefused(f"it is a property behind an instance of {type(raw).__qualname__}")
    return wrap(_shim(raw, lambda self: (raw.__get__(self, type(self)), 1)))


@uncounted
def _shim(function: Any, look_up: Callable[..., tuple[Any, int]]) -> Any:
    """A function with the looks and the kind of `function` that calls what `look_up` finds at each call.

    `look_up` is given the first argument, where it takes one, and returns what to call and how many of the
    arguments that has bound already.
    """
    takes = look_up.__code__.co_argcount
    shim: Any
    if inspect.iscoroutinefunction(function):

        async def shim(*args: Any, **kwargs: Any) -> Any:
            call, bound = look_up(*args[:takes])
            body = call(*args[bound:], **kwargs)
            del args, kwargs  # see functions.wrap_function
            return await body

    elif inspect.isgeneratorfunction(function):

        def shim(*args: Any, **kwargs: Any) -> Any:
            call, bound = look_up(*args[:takes])
            body = call(*args[bound:], **kwargs)
            del args, kwargs
            return (yield from body)

        if functions.is_awaitable_generator(function):
            shim = types.coroutine(shim)

    else:

        def shim(*args: Any, **kwargs: Any) -> Any:
            call, bound = look_up(*args[:takes])
            held: list[Any] = [kwargs, args[bound:]]
            del args, kwargs
            return call(*held.pop(), **held.pop())

        if inspect.isasyncgenfunction(function):
            shim = functions.relayed(shim)

    return functools.update_wrapper(shim, function)


def wrap_init_subclass(cls: type, on_subclass: Callable[[type], None]) -> tuple[Found, Any]:
    """An `__init_subclass__` that also reports every class defined later below `cls`, and where it goes."""
    own = vars(cls).get("__init_subclass__")
    report = _Reporter(on_subclass)

    @uncounted
    def __init_subclass__(subclass: Any, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, subclass)(**kwargs)
        else:
            super(cls, subclass).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        report(subclass)

    if own is None:
        return Found(cls, "__init_subclass__", own, inherited=True), _Unlisted(__init_subclass__)
    functools.update_wrapper(__init_subclass__, own.__func__)
    return Found(cls, "__init_subclass__", own, inherited=False), classmethod(__init_subclass__)  # type: ignore[arg-type]


class _Unlisted(classmethod):  # type: ignore[type-arg]
    """Not seen by who goes through a class's methods, as the one of `object` is not: Ray gives each to an actor."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return functools.partial(self.__func__, type(instance) if owner is None else owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Unlisted, (self.__func__,))  # by cloudpickle, with a class that is pickled by value


class _Reporter:
    def __init__(self, on_subclass: Callable[[type], None]) -> None:
        self._on_subclass = on_subclass

    def __call__(self, cls: type) -> None:
        self._on_subclass(cls)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reporting_to_nobody, ())  # see functions.Entering.__reduce__


def _reporting_to_nobody() -> _Reporter:
    return _Reporter(lambda cls: None)

"""Value paths: `args.batch.size | int`, `caller.step | add(1)`: where an attribute's value comes from.

A path is parsed once, when the map is read, into a root, steps and reducers. Walking one runs no user code
but attribute and item access, turns nothing unknown into a string, leaves tensors alone unless a reducer
asks, and never raises: what can't be had is `MISSING`, and its attribute is left out.
"""

from __future__ import annotations

import fnmatch
import re
import types
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.words import did_you_mean, shown, suggest

if TYPE_CHECKING:
    from inspect import Signature

MAX_TEXT: Final = 1024
"""Strings are cut to this many characters before the SDK sees them."""
MAX_ITEMS: Final = 64
"""Sequences are cut to this many items."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
NOTHING: Final[Mapping[str, Any]] = types.MappingProxyType({})


class PathError(ValueError):
    """A value path that can't be parsed: what is wrong, and the word that was meant, if one is near."""


ROOTS: Final = ("args", "self", "return", "outcome", "caller", "env")
"""What a path may start from; any other constant is written as a YAML number, boolean or `'quoted text'`."""
AT_END: Final = frozenset({"return", "outcome"})
"""The roots that are known when the function is over."""


@dataclass(frozen=True)
class Where:
    """A step that stays where it is if `name` of the value is true there: `[?enabled]`."""

    name: str


@dataclass(frozen=True)
class ValuePath:
    """One parsed path. `root` is one of `ROOTS`, or `const` with the value in `constant`.

    For `args` and `caller` the first step is the name: it is `name`, and `steps` holds the rest.
    """

    text: str
    root: str
    name: str | None
    steps: tuple[str | int | Where | _Every, ...]
    reducers: tuple[tuple[str, Any], ...]
    constant: Any = None

    @property
    def operands(self) -> tuple[ValuePath, ...]:
        """The paths that stand in reducers, as in `args.total | div(args.parts)`."""
        return tuple(argument for _, argument in self.reducers if isinstance(argument, ValuePath))

    def walk(self, start: Any, operands: Mapping[str, Any] = NOTHING) -> Any:
        """Follow the steps and reducers from `start`. Never raises, except for a real `KeyboardInterrupt`.

        `operands` are the values of the paths in reducers, by their texts.
        """
        value = start
        try:
            if value is not MISSING:
                value = _follow(value, self.steps)
            for name, argument in self.reducers:
                if isinstance(argument, ValuePath):
                    argument = operands.get(argument.text, MISSING)
                value = _REDUCERS[name](value, argument)
        except BaseException as error:  # a property may raise anything, SystemExit too
            if is_the_programs(error):
                raise
            for name, argument in self.reducers:
                if name == "default":
                    return operands.get(argument.text, MISSING) if isinstance(argument, ValuePath) else argument
            return MISSING
        return value


class _Every:
    """The step `[*]`."""

    def __repr__(self) -> str:
        return "[*]"


EVERY: Final = _Every()


def _follow(value: Any, steps: tuple[str | int | Where | _Every, ...]) -> Any:
    """What the steps lead to; from a `[*]` on, the list of what they lead to from every item."""
    for step in steps:
        if step is EVERY:
            return _follow_each(value, steps[steps.index(EVERY) + 1 :])
        value = _step(value, step)  # type: ignore[arg-type]
        if value is MISSING:
            break
    return value


def _follow_each(items: Any, steps: tuple[str | int | Where | _Every, ...]) -> Any:
    found: list[Any] = []
    for item in _items(items):
        one = _follow(item, steps)
        if one is MISSING:
            return MISSING
        found += one if EVERY in steps else [one]
    return found


_HOLDERS: Final = (Sequence, Set, ValuesView)


def _items(value: Any) -> Any:
    """The items of what holds them all, or a mapping's values.

    Raises:
        TypeError: for what only makes them as somebody loops over it. An iterator would be used up before the traced
            code has it, and a DataLoader draws random numbers.
    """
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, _HOLDERS) or hasattr(type(value), "__array__"):
        return value
    raise TypeError


def _step(value: Any, step: str | int | Where) -> Any:
    """One step: an item for mappings and indexes, an attribute else, each falling back on the other."""
    if isinstance(step, int):
        if isinstance(value, Mapping) and step not in value:  # a defaultdict would make it
            return MISSING
        return value[step]
    if isinstance(step, Where):
        return value if _step(value, step.name) is True else MISSING
    if isinstance(value, Mapping):
        if step in value:
            return value[step]
        return getattr(value, step, MISSING) if step.startswith("_") else MISSING
    try:
        return getattr(value, step)
    except AttributeError:
        # OmegaConf and pydantic "extra" containers answer to items only
        getter = getattr(type(value), "__getitem__", None)
        if getter is None:
            return MISSING
        return value[step]


# -- reducers -----------------------------------------------------------------------------------------


def _number(value: Any) -> int | float | _Missing:
    """A plain number of `value`: Python's, numpy's or a one-element tensor's (which is copied to the host)."""
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "item"):
        got = value.item()
        if isinstance(got, (bool, int, float)):
            return got
    if isinstance(value, str):
        return float(value) if any(c in value for c in ".eEnN") else int(value)
    return MISSING


def _reduce_int(value: Any, _: Any) -> Any:
    number = _number(value)
    return MISSING if isinstance(number, _Missing) else int(number)


def _reduce_float(value: Any, _: Any) -> Any:
    number = _number(value)
    return MISSING if isinstance(number, _Missing) else float(number)


def _plain(value: Any) -> Any:
    """A scalar of a subclass as the scalar that it is, and not by its own `__str__` or `__int__`; else `MISSING`."""
    kind = type(value)  # an object may lie about its `__class__`
    if kind is bool or kind is int or kind is float or kind is str:
        return value
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return int.__int__(value)
    return float.__float__(value) if issubclass(kind, float) else MISSING


def _reduce_str(value: Any, _: Any) -> Any:
    plain = _plain(value)
    if plain is not MISSING:
        return str(plain)
    name = getattr(value, "name", None)  # enum members, torch dtypes and devices have short names of their own
    return _plain(name) if issubclass(type(name), str) else MISSING


def _method_or(method: str, function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def reduce(value: Any, _: Any) -> Any:
        if value is MISSING:
            return MISSING
        own = getattr(value, method, None)
        if own is not None and not isinstance(value, Mapping):
            return _number(own())
        return _number(function(_items(value)))

    return reduce


def _reduce_mean(value: Any, _: Any) -> Any:
    if value is MISSING:
        return MISSING
    own = getattr(value, "mean", None)
    if own is not None:
        return _number(own())
    items = list(_items(value))
    return sum(items) / len(items) if items else MISSING


def _reduce_add(value: Any, argument: Any) -> Any:
    first, second = _operand(value), _operand(argument)
    return MISSING if isinstance(first, _Missing) or isinstance(second, _Missing) else first + second


def _reduce_div(value: Any, argument: Any) -> Any:
    first, second = _operand(value), _operand(argument)
    if isinstance(first, _Missing) or isinstance(second, _Missing) or not second:
        return MISSING
    both_int = isinstance(first, int) and isinstance(second, int)
    return first // second if both_int and not first % second else first / second


def _operand(value: Any) -> int | float | _Missing:
    return MISSING if value is MISSING else _number(value)


def _reduce_nbytes(value: Any, _: Any) -> Any:
    return MISSING if value is MISSING or value is None else _nbytes(value, [_MAX_LEAVES])


_MAX_LEAVES: Final = 10_000


def _nbytes(value: Any, left: list[int]) -> int:
    """The bytes of all tensors, arrays and byte strings in `value`, told by their shapes: no data is looked at."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("too many items to count their bytes")
    kind = type(value)
    if kind in (bytes, bytearray):
        return len(value)
    if isinstance(value, Mapping):  # TensorDict is one
        return sum(_nbytes(item, left) for item in value.values())
    if kind in (list, tuple):
        return sum(_nbytes(item, left) for item in value)
    if getattr(value, "is_nested", False) is True:  # its own `nbytes` does not know, or counts what is only a view
        value = value.values() if callable(getattr(value, "offsets", None)) else value
        return int(value.numel()) * int(value.element_size())
    own = getattr(value, "nbytes", None)
    return own if type(own) is int else 0


def _reduce_len(value: Any, _: Any) -> Any:
    return MISSING if value is MISSING else len(value)


def _reduce_lens(value: Any, _: Any) -> Any:
    return MISSING if value is MISSING else [len(item) for item in _items(value)]


def _reduce_type(value: Any, _: Any) -> Any:
    return MISSING if value is MISSING else type(value).__name__


def _reduce_keys(value: Any, pattern: Any) -> Any:
    if not isinstance(value, Mapping):
        return MISSING
    return [key for key in value if type(key) is str and fnmatch.fnmatchcase(key, str(pattern))] or MISSING


def _reduce_then(value: Any, argument: Any) -> Any:
    return MISSING if value is MISSING or value is None else argument


def _reduce_default(value: Any, argument: Any) -> Any:
    return argument if value is MISSING or value is None else value


_REDUCERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "len": _reduce_len,
    "lens": _reduce_lens,
    "sum": _method_or("sum", sum),
    "mean": _reduce_mean,
    "max": _method_or("max", max),
    "min": _method_or("min", min),
    "int": _reduce_int,
    "float": _reduce_float,
    "str": _reduce_str,
    "type": _reduce_type,
    "nbytes": _reduce_nbytes,
    "keys": _reduce_keys,
    "add": _reduce_add,
    "div": _reduce_div,
    "then": _reduce_then,
    "default": _reduce_default,
}
REDUCERS: Final = tuple(_REDUCERS)
_OF_NUMBERS: Final = frozenset({"add", "div"})
"""They take a number, or a path to one."""
_OF_ANYTHING: Final = frozenset({"then", "default"})
"""They take a constant, or a path."""
_WITH_ARGUMENT: Final = _OF_NUMBERS | _OF_ANYTHING | {"keys"}

# -- parsing ------------------------------------------------------------------------------------------

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_HEAD = re.compile(rf"({_NAME})")
_STEP = re.compile(rf"""\.({_NAME})|\[(-?[0-9]{{1,9}}|\*)\]|\["([^"]*)"\]|\['([^']*)'\]|\[\?({_NAME})\]""")
_PATH = re.compile(r"(?:args|self|caller|env)[.\[]")
_REDUCER = re.compile(rf"\s*({_NAME})\s*(?:\((.*)\))?\s*", re.DOTALL)
_CALL = re.compile(rf"({_NAME})\(\s*(.*?)\s*\)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?")


def constant(value: Any) -> ValuePath:
    """A path that is always `value`."""
    return ValuePath(repr(value), "const", None, (), (), value)


def parse(text: str) -> ValuePath:
    """Parse one path.

    Raises:
        PathError: with what is wrong.
    """
    source = text.strip()
    quoted = re.fullmatch(r"'([^']*)'|\"([^\"]*)\"", source)
    if quoted:
        return constant(quoted.group(1) if quoted.group(1) is not None else quoted.group(2))
    number = _NUMBER.fullmatch(source)
    if number and number.group(2):  # YAML 1.1 takes 1e-6 for a text
        return constant(float(source))
    head, *pipes = split(source, "|")
    found = _HEAD.match(head)
    if not found:
        raise PathError(f"{shown(text)} is no value path")
    root = found.group(1)
    call = _CALL.fullmatch(source)
    if call and call.group(1) in _REDUCERS.keys() - _WITH_ARGUMENT:
        raise PathError(f"{shown(text)} is a call and no value path; write {shown(' | '.join(call.groups()[::-1]))}")
    if root not in ROOTS:
        # YAML takes one pair of quotes off a text
        meant = did_you_mean(root, ROOTS) or "; a constant text has two pairs of quotes: \"'text'\""
        raise PathError(f"a value path starts with {', '.join(ROOTS)}, not {shown(root)}{meant}")
    steps: list[str | int | Where | _Every] = []
    position = found.end()
    while position < len(head):
        step = _STEP.match(head, position)
        if not step:
            raise PathError(f"can't read {shown(head[position:])} in the value path {shown(text)}")
        name, index, double, single, where = step.groups()
        if index == "*":
            steps.append(EVERY)
        elif where is not None:
            steps.append(Where(where))
        else:
            steps.append(int(index) if index is not None else next(s for s in (name, double, single) if s is not None))
        position = step.end()
    first: str | None = None
    if root in ("args", "caller", "env"):
        if not steps or not isinstance(steps[0], str):
            raise PathError(f"{root!r} needs a name, as in {root}.step")
        first = str(steps.pop(0))
    if root == "outcome" and steps:
        raise PathError(f"'outcome' is a text, 'ok', 'error' or 'timeout', and has nothing below it: {shown(text)}")
    path = ValuePath(source, root, first, tuple(steps), tuple(_parse_reducer(p, text) for p in pipes))
    for operand in path.operands:
        if root in AT_END or operand.root in AT_END:
            raise PathError(f"{shown(text)} mixes what is known at the end with what is known at the start")
    return path


def split(source: str, mark: str) -> list[str]:
    """Split at `mark`, but not inside quotes; the parts are stripped."""
    parts, quote, start = [], "", 0
    for i, c in enumerate(source):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == mark:
            parts.append(source[start:i].strip())
            start = i + 1
    parts.append(source[start:].strip())
    return parts


def _parse_reducer(part: str, text: str) -> tuple[str, Any]:
    found = _REDUCER.fullmatch(part)
    if not found:
        raise PathError(f"can't read the reducer {shown(part)} in {shown(text)}")
    name, raw = found.groups()
    if name not in _REDUCERS:
        raise PathError(f"unknown reducer {shown(name)} in {shown(text)}{suggest(name, REDUCERS)}")
    if (raw is not None) != (name in _WITH_ARGUMENT):
        form = f"{name}(value)" if name in _WITH_ARGUMENT else name
        raise PathError(f"the reducer {name!r} is written {form}")
    argument = None if raw is None else literal(raw)
    if name in _OF_NUMBERS and (isinstance(argument, bool) or not isinstance(argument, (int, float))):
        return name, _parse_operand(name, raw.strip())
    if name in _OF_ANYTHING and _PATH.match(raw.strip()):
        return name, parse(raw)
    return name, argument


def _parse_operand(name: str, raw: str) -> ValuePath:
    if raw.partition(".")[0] not in ROOTS:
        raise PathError(f"{name}(...) takes a number or a value path, not {shown(raw)}")
    return parse(raw)


def literal(raw: str) -> Any:
    """A constant inside a path or a target: a number, true or false, None, a text with or without quotes."""
    word = raw.strip()
    number = _NUMBER.fullmatch(word)
    if number:
        return float(word) if number.group(1) or number.group(2) else int(word)
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word == "None":
        return None
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    return word


# -- from a value to an attribute ---------------------------------------------------------------------

_SECRET = re.compile(
    r"(?:^|[^a-z0-9])(?:prompts?|completions?|texts?|tokens?|passwords?|secrets?|api_?keys?|authorization)(?:$|[^a-z0-9])"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_INT64: Final = 2**63
REDACTED: Final = "[redacted]"


def is_sensitive(key: str) -> bool:
    """Whether a key or path looks like a secret, or like a prompt or completion, by the words in it."""
    words = _CAMEL.sub("_", key).lower().replace("_", " ")
    return _SECRET.search(words) is not None or "api key" in words


def sendable(text: str) -> str:
    """`text` without lone surrogates, which no exporter can encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def to_attribute(value: Any, redact: bool = False) -> Any:
    """`value` as an OpenTelemetry attribute, or `MISSING` when it is none.

    Scalars pass (numpy's become Python's), strings are cut, sequences of scalars become tuples. With
    `redact`, strings are replaced. Tensors, objects, bytes, mappings and None are none.
    """
    kind = type(value)
    if kind is float or kind is bool:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else MISSING  # OTLP has 64 bits
    if kind is str:
        return REDACTED if redact else sendable(value[:MAX_TEXT])
    plain = _plain(value)  # enum members and numpy floats
    if plain is not MISSING:
        return to_attribute(plain, redact)
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return to_attribute(value.item(), redact)
    if kind in (list, tuple):
        items = [to_attribute(item, redact) for item in value[:MAX_ITEMS]]
        if items and all(type(i) is type(items[0]) and not isinstance(i, (tuple, _Missing)) for i in items):
            return tuple(items)
    return MISSING


Getter = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


def argument_getter(name: str, parameters: Mapping[str, tuple[int | None, Any]]) -> Getter:
    """How to read the argument `name` from `args, kwargs`, decided once.

    `parameters` maps a name to its position (None: keyword only) and its default (`MISSING`: none).
    A name that is no parameter is looked for in `kwargs` (it may come through `**kwargs`).
    """
    position, default = parameters.get(name, (None, MISSING))
    if position is None:

        def from_keywords(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            return kwargs.get(name, default)

        return from_keywords
    index = position

    def from_position(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return args[index] if len(args) > index else kwargs.get(name, default)

    return from_position


def signature_of(function: Any) -> Signature | None:
    """The signature of what a Python function, or what stands for one, does; None where it can't be told."""
    import inspect

    seen = 0
    while not isinstance(function, types.FunctionType) and seen < 16:
        inner = getattr(function, "__func__", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function, seen = inner, seen + 1
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def parameters_of(function: Any) -> dict[str, tuple[int | None, Any]]:
    """Parameter name → (position or None, default or `MISSING`) of a Python function; {} where it can't be told."""
    signature = signature_of(function)
    if signature is None:
        return {}
    found: dict[str, tuple[int | None, Any]] = {}
    for index, (name, parameter) in enumerate(signature.parameters.items()):
        default = MISSING if parameter.default is parameter.empty else parameter.default
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found[name] = (index, default)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            found[name] = (None, default)
    return found

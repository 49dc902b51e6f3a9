"""Values that fight back: nothing that an attribute's path meets reaches the code that is traced."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_modules import Make, span_map

from autoinstr.maps.values import REDACTED, REDUCERS
from autoinstr.testing import record

SOURCE = """
def f(x=None, label=None, api_key=None):
    return x

class Thing:
    def __init__(self, label):
        self.label = label
    def __enter__(self):
        return self
    def __exit__(self, *exc):
        return None

def start(x): return x
def stop(x): return x
"""

touched: list[str] = []
"""Every call of a `__str__`, `__repr__` or `__format__` of these objects."""


class Quiet:
    """Says when it is turned into text."""

    def __str__(self) -> str:
        touched.append("str")
        return "text"

    def __repr__(self) -> str:
        touched.append("repr")
        return "text"

    def __format__(self, spec: str) -> str:
        touched.append("format")
        return "text"


def hostile(error: type[BaseException]) -> Any:
    """An object whose every answer is `error`, an error that can't even be described."""

    class Mute(error):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise SystemExit("str of an error")

    def fail(*args: Any) -> Any:
        raise Mute

    names = (
        "__len__ __iter__ __getitem__ __contains__ __eq__ __hash__ __int__ __float__ __index__ __bool__ __str__ "
        "__repr__ __getattr__ __call__ __add__ __radd__ __lt__ __gt__"
    ).split()
    return type("Hostile", (), {"__class__": property(fail), **dict.fromkeys(names, fail)})()


class Recursing:
    def __getattr__(self, name: str) -> Any:
        return getattr(self, name + "x")


class Liar(Quiet):
    """Says that it is a `str` of length 10 ** 18."""

    @property
    def __class__(self) -> Any:
        return str

    def __len__(self) -> int:
        return 10**18

    def __iter__(self) -> Any:
        return iter(())


class Answering(Quiet):
    """Has every attribute, as a mock does."""

    def __getattr__(self, name: str) -> Any:
        return Answering()

    def __getitem__(self, key: Any) -> Any:
        return Answering()


class LyingInt(int):
    def __int__(self) -> int:
        raise SystemExit("int")

    def __str__(self) -> str:
        touched.append("int")
        return "n"


class LyingText(str):
    def __str__(self) -> str:
        touched.append("text")
        raise SystemExit("str")

    def __hash__(self) -> int:
        raise SystemExit("hash")

    def __eq__(self, other: object) -> bool:
        raise SystemExit("eq")

    def __getitem__(self, key: Any) -> str:
        raise SystemExit("item")


ERRORS = (ValueError, SystemExit, GeneratorExit, StopIteration, RecursionError, MemoryError, BaseException)


class Recipe:
    """Makes a value later: hypothesis itself would trip over these."""

    def __init__(self, make: Any, *args: Any) -> None:
        self.make, self.args = make, args

    def __repr__(self) -> str:
        return f"{self.make.__name__}{self.args}"


def cooked(value: Any) -> Any:
    if type(value) is Recipe:
        return value.make(*value.args)
    if type(value) in (list, tuple):
        return type(value)(cooked(v) for v in value)
    return {k: cooked(v) for k, v in value.items()} if type(value) is dict else value


leaves = st.one_of(
    st.builds(Recipe, st.just(hostile), st.sampled_from(ERRORS)),
    st.builds(Recipe, st.sampled_from([Quiet, Recursing, Liar, Answering])),
    st.builds(Recipe, st.just(LyingInt), st.integers()),
    st.builds(Recipe, st.just(LyingText), st.text()),
    st.integers(),
    st.floats(allow_nan=True),
    st.text().map(lambda t: t * 1000),
    st.binary(),
    st.none(),
    st.booleans(),
    st.just(Quiet),
)
things = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", "label"]), inner, max_size=3),
    ),
    max_leaves=8,
)
steps = st.sampled_from(["", ".a", "[0]", ".label", ".a.b", "[-1].a"])
WITHOUT_ARGUMENT = [name for name in REDUCERS if name not in ("add", "div", "keys", "then", "default")]
reducers = st.sampled_from(["", " | keys(*)", *(f" | {name}" for name in WITHOUT_ARGUMENT)])
paths = st.builds(lambda s, r: f"args.x{s}{r}", steps, reducers)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import sys
    import types

    made = types.ModuleType("hostile_values")
    exec(SOURCE, made.__dict__)
    for thing in (made.f, made.Thing, made.start, made.stop):
        thing.__module__ = "hostile_values"
    sys.modules["hostile_values"] = made
    yield made
    del sys.modules["hostile_values"]


@settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(recipe=things, path=paths)
@example(recipe={"a": Recipe(Liar)}, path="args.x.a | str")
@example(recipe=Recipe(LyingText, "a"), path="args.x | str")
@example(recipe=Recipe(LyingInt, 1), path="args.x")
@example(recipe=[Recipe(LyingText, "a"), Recipe(LyingText, "b")], path="args.x")
@example(recipe=Recipe(hostile, SystemExit), path="args.x")
def test_no_value_reaches_the_code_that_is_traced(recipe: Any, path: str, module: Any) -> None:
    value = cooked(recipe)
    from_return, from_self = path.replace("args.x", "return"), path.replace("args.x", "self.label")
    text = f"""
        it: {{group: job, function: '{{m}}:f', attributes: {{v: "{path}", r: "{from_return}"}}}}
        block: {{group: step, block: '{{m}}:Thing(label=*)', attributes: {{v: "{from_self}"}}}}
        pair: {{group: step, between: {{begin: '{{m}}:start(x=a)', end: '{{m}}:stop', match: args.x}}}}
        selected: {{group: job, function: '{{m}}:f(label=a*)'}}
    """
    touched.clear()
    with record(text=span_map(module, text)) as spans:
        assert module.f(value) is value
        assert module.f(x=1, label=value) == 1
        with module.Thing(value) as thing:
            assert thing.label is value
        assert module.start(value) is value
        assert module.stop(value) is value
    assert touched == []
    assert sum(s.name == "it" for s in spans.spans) == 2
    for span in spans.spans:
        for key, attribute in (span.attributes or {}).items():
            items = attribute if isinstance(attribute, tuple) else (attribute,)
            assert len(items) <= 64, key
            assert all(type(i) in (str, int, float, bool) and len(str(i)) <= 1024 or isinstance(i, int) for i in items)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -0.0, 2**80, "x" * 10**7, "\ud800"],
    ids=lambda v: str(v)[:9].encode("ascii", "replace").decode(),
)
def test_odd_but_honest_values(value: Any, module: Any) -> None:
    with record(text=span_map(module, "it: {group: job, function: '{m}:f', attributes: {v: args.x}}")) as spans:
        assert module.f(value) is value
    (span,) = spans.spans
    found = (span.attributes or {}).get("v")
    if isinstance(value, float) and math.isnan(value):
        assert isinstance(found, float)
        assert math.isnan(found)
    elif isinstance(value, str) and len(value) > 1024:
        assert found == value[:1024]


def test_ctrl_c_is_the_users(module: Any) -> None:
    class Interrupted:
        @property
        def a(self) -> Any:
            raise KeyboardInterrupt

    text = span_map(module, "it: {group: job, function: '{m}:f', attributes: {v: args.x.a, r: return.a}}")
    with record(text=text) as spans:
        with pytest.raises(KeyboardInterrupt):
            module.f(Interrupted())
    assert spans.tree() == ""


def test_ctrl_c_as_the_result_is_read_ends_the_span(make: Make) -> None:
    module = make(
        """
        class Interrupted:
            @property
            def a(self):
                raise KeyboardInterrupt
        def f():
            return Interrupted()
        """
    )
    text = span_map(module, "it: {group: job, function: '{m}:f', attributes: {r: return.a}}")
    with record(text=text) as spans:
        with pytest.raises(KeyboardInterrupt):
            module.f()
    assert spans.tree() == "it !KeyboardInterrupt"


@pytest.mark.parametrize("error", [ValueError, SystemExit, BaseException])
def test_an_exception_that_cannot_be_described_passes_and_is_recorded(error: Any, make: Make) -> None:
    class Mute(error):  # type: ignore[misc]
        def __str__(self) -> str:
            raise SystemExit("str of an error")

    module = make("def f(x):\n    raise x\n")
    raised = Mute(3)
    with record(text=span_map(module, "it: {group: job, function: '{m}:f'}")) as spans:
        with pytest.raises(Mute) as caught:
            module.f(raised)
        assert caught.value is raised
    assert spans.tree() == "it !Mute"
    assert [e.name for e in spans.spans[0].events] == ["exception"]


def test_secrets_and_content_are_redacted(module: Any) -> None:
    text = """
        it:
          group: job
          function: '{m}:f'
          attributes: {api_key: args.x, a: args.api_key, "user.prompt": args.x, ok: args.x, many: args.label}
    """
    with record(text=span_map(module, text)) as spans:
        module.f("shown", label=["a", "b"], api_key="secret")
    assert spans.tree() == f"it a='{REDACTED}' api_key='{REDACTED}' many=('a', 'b') ok='shown' user.prompt='{REDACTED}'"

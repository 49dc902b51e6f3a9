"""Every kind of callable under a `function` span: it looks, answers, fails, pickles and goes back as it was."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest
from made_modules import Make, span_map

from autoinstr.testing import record

SOURCE = '''
import asyncio
import functools
from contextlib import asynccontextmanager, contextmanager
from math import floor

import wrapt

def works(x):
    """Doubles, or fails."""
    if x == "fail":
        raise ValueError("no good")
    return x * 2

def plain(x, y: int = 1, *, z=0):
    """A function."""
    return works(x)

async def coroutine(x, y=1):
    """A coroutine."""
    await asyncio.sleep(0)
    return works(x)

def generator(x, y=1):
    """A generator."""
    yield works(x)
    return "done"

async def async_generator(x):
    """An async generator."""
    yield works(x)

def base_of_partial(y, x):
    return works(x)

partial = functools.partial(base_of_partial, 1)

@functools.lru_cache(maxsize=None)
def cached(x):
    """Cached."""
    return works(x)

def decorator(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapped

def shaped_decorator(function):
    @functools.wraps(function)
    def wrapped(first, *others, **named):
        return function(first, *others, **named)
    return wrapped

@wrapt.decorator
def through(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)

@decorator
def decorated(x, y=1):
    """Decorated."""
    return works(x)

@shaped_decorator
def shaped(x, y=1):
    return works(x)

@decorator
async def decorated_coroutine(x):
    await asyncio.sleep(0)
    return works(x)

@decorator
def decorated_generator(x):
    yield works(x)

@decorator
async def decorated_async_generator(x):
    yield works(x)

@through
def by_wrapt(x):
    """By wrapt."""
    return works(x)

@through
async def coroutine_by_wrapt(x):
    return works(x)

@contextmanager
def manager(x):
    """A manager."""
    yield works(x)

@asynccontextmanager
async def async_manager(x):
    """An async manager."""
    yield works(x)

class Callable_:
    def __init__(self):
        self.calls = 0
    def __call__(self, x):
        """Callable."""
        self.calls += 1
        return works(x)
    def __eq__(self, other):
        return isinstance(other, Callable_) and self.calls == other.calls
    __hash__ = object.__hash__

instance = Callable_()

class Base:
    def inherited(self, x):
        """Inherited."""
        return works(x)
    async def inherited_coroutine(self, x):
        return works(x)
    def inherited_generator(self, x):
        yield works(x)
    async def inherited_agen(self, x):
        yield works(x)

class Thing(Base):
    def __init__(self, x=1):
        self.x = works(x)
    def __eq__(self, other):
        return type(self) is type(other) and self.x == other.x
    __hash__ = object.__hash__
    def method(self, x):
        """A method."""
        return works(x)
    @classmethod
    def of_class(cls, x):
        """Of the class."""
        return works(x)
    @staticmethod
    def static(x):
        """Static."""
        return works(x)
    @property
    def prop(self):
        """A property."""
        return works(self.x)
    async def coroutine_method(self, x):
        return works(x)
    class Nested:
        @classmethod
        def deep(cls, x):
            """Nested."""
            return works(x)

class Locked(Base):  # holds locks, so that it can't be pickled by value
    def __init__(self, x=1):
        self.x = x
    @functools.cached_property
    def cached_prop(self):
        """A cached property."""
        return works(self.x)
    @functools.lru_cache
    def cached_method(self, x):
        return works(x)
'''


@dataclass
class Kind:
    """A target, how the object that is called is had from the module, and how it is called with one value."""

    target: str
    get: Callable[[Any], Any]
    call: Callable[[Any, Any], Any]
    spans: int = 1

    def run(self, module: Any, x: Any) -> Any:
        return self.call(self.get(module), x)


def _await(f: Any, x: Any) -> Any:
    return asyncio.run(_awaited(f, x))


async def _awaited(f: Any, x: Any) -> Any:
    return await f(x)


def _alist(f: Any, x: Any) -> Any:
    async def run() -> list[Any]:
        return [item async for item in f(x)]

    return asyncio.run(run())


def _with(f: Any, x: Any) -> Any:
    with f(x) as got:
        return got


def _async_with(f: Any, x: Any) -> Any:
    async def run() -> Any:
        async with f(x) as got:
            return got

    return asyncio.run(run())


def _plain(f: Any, x: Any) -> Any:
    return f(x)


def _listed(f: Any, x: Any) -> Any:
    return list(f(x))


def _thing(m: Any) -> Any:
    return m.Thing(1)


def _attribute(name: str) -> Callable[[Any, Any], Any]:
    def read(thing: Any, x: Any) -> Any:
        thing.x = x
        return getattr(thing, name)

    return read


KINDS = {
    "plain function": Kind("plain", lambda m: m.plain, _plain),
    "instance method": Kind("Thing.method", lambda m: _thing(m).method, _plain),
    "class method": Kind("Thing.of_class", lambda m: m.Thing.of_class, _plain),
    "static method": Kind("Thing.static", lambda m: m.Thing.static, _plain),
    "static method of an instance": Kind("Thing.static", lambda m: _thing(m).static, _plain),
    "nested class method": Kind("Thing.Nested.deep", lambda m: m.Thing.Nested.deep, _plain),
    "__init__": Kind("Thing.__init__", lambda m: m.Thing, lambda f, x: f(x).x),
    "inherited method": Kind("Thing.inherited", lambda m: _thing(m).inherited, _plain),
    "inherited coroutine": Kind("Thing.inherited_coroutine", lambda m: _thing(m).inherited_coroutine, _await),
    "inherited generator": Kind("Thing.inherited_generator", lambda m: _thing(m).inherited_generator, _listed),
    "inherited async generator": Kind("Thing.inherited_agen", lambda m: _thing(m).inherited_agen, _alist),
    "property": Kind("Thing.prop", _thing, _attribute("prop")),
    "cached property": Kind("Locked.cached_prop", lambda m: m.Locked(), _attribute("cached_prop")),
    "coroutine function": Kind("coroutine", lambda m: m.coroutine, _await),
    "coroutine method": Kind("Thing.coroutine_method", lambda m: _thing(m).coroutine_method, _await),
    "generator function": Kind("generator", lambda m: m.generator, _listed),
    "async generator function": Kind("async_generator", lambda m: m.async_generator, _alist),
    "partial": Kind("partial", lambda m: m.partial, _plain),
    "lru_cache": Kind("cached", lambda m: m.cached, _plain),
    "lru_cache method": Kind("Locked.cached_method", lambda m: m.Locked().cached_method, _plain),
    "callable instance": Kind("instance", lambda m: m.instance, _plain),
    "decorated function": Kind("decorated", lambda m: m.decorated, _plain),
    "function under a decorator of another shape": Kind("shaped", lambda m: m.shaped, _plain),
    "decorated coroutine function": Kind("decorated_coroutine", lambda m: m.decorated_coroutine, _await),
    "decorated generator function": Kind("decorated_generator", lambda m: m.decorated_generator, _listed),
    "decorated async generator": Kind("decorated_async_generator", lambda m: m.decorated_async_generator, _alist),
    "function under wrapt": Kind("by_wrapt", lambda m: m.by_wrapt, _plain),
    "coroutine function under wrapt": Kind("coroutine_by_wrapt", lambda m: m.coroutine_by_wrapt, _await),
    "contextmanager function": Kind("manager", lambda m: m.manager, _with),
    "asynccontextmanager function": Kind("async_manager", lambda m: m.async_manager, _async_with),
    "builtin": Kind("floor", lambda m: m.floor, lambda f, x: f(4.5) * x if x != "fail" else f("fail")),
}

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def _map(module: types.ModuleType, kind: Kind) -> str:
    return span_map(module, f"it: {{group: job, function: '{{m}}:{kind.target}'}}")


@each_kind
def test_the_result_is_the_same_and_a_span_was_there(kind: Kind, make: Make) -> None:
    module = make(SOURCE)
    expected = kind.run(module, 3)
    kind.run(module, 3)
    if hasattr(module.cached, "cache_clear"):
        module.cached.cache_clear()
    with record(text=_map(module, kind)) as spans:
        ready = kind.get(module)
        spans.clear()
        assert kind.call(ready, 3) == expected
    assert spans.tree() == "it"
    assert spans.notices == []


def _failure(kind: Kind, module: types.ModuleType) -> tuple[BaseException, list[str]]:
    """The exception and its traceback, of the module's own code from where it is called."""
    ready = kind.get(module)
    with pytest.raises((ValueError, TypeError)) as caught:
        kind.call(ready, "fail")
    lines = traceback.TracebackException.from_exception(caught.value)
    ours = [f for f in lines.stack if "/autoinstr/" not in f.filename]
    lines.stack = traceback.StackSummary.from_list(ours)
    return caught.value, list(lines.format())


@each_kind
def test_an_exception_is_the_same_and_its_traceback_is_readable(kind: Kind, make: Make) -> None:
    module = make(SOURCE)
    _, before = _failure(kind, module)
    with record(text=_map(module, kind)) as spans:
        kind.get(module)
        spans.clear()
        error, with_us = _failure(kind, module)
    assert with_us == before
    assert (error.__context__, error.__cause__) == (None, None)
    if "manager" in kind.target:  # its call only makes the manager: a `block` would show how that was left
        assert spans.tree() == "it"
        return
    (span,) = [s for s in spans.spans if not s.status.is_ok]
    assert span.status.description == f"{type(error).__name__}: {error}"
    assert [e.name for e in span.events] == ["exception"]


def test_it_is_the_very_exception_object(make: Make) -> None:
    module = make("error = KeyError('mine')\ndef f():\n    raise error\n")
    with record(text=span_map(module, "it: {group: job, function: '{m}:f'}")) as spans:
        with pytest.raises(KeyError) as caught:
            module.f()
        assert caught.value is module.error
    assert spans.tree() == "it !KeyError"


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "signature": inspect.signature,
    "getfullargspec": inspect.getfullargspec,
    "iscoroutinefunction": inspect.iscoroutinefunction,
    "asyncio.iscoroutinefunction": asyncio.iscoroutinefunction,
    "isgeneratorfunction": inspect.isgeneratorfunction,
    "isasyncgenfunction": inspect.isasyncgenfunction,
    "ismethod": inspect.ismethod,
    "isfunction": inspect.isfunction,
    "isroutine": inspect.isroutine,
    "callable": callable,
    "name": lambda f: f.__name__,
    "qualname": lambda f: f.__qualname__,
    "module": lambda f: f.__module__,
    "doc": inspect.getdoc,
    "annotations": lambda f: f.__annotations__,
    "innermost": lambda f: (
        inspect.unwrap(getattr(f, "__func__", f)) if not hasattr(f, "func") else inspect.unwrap(f.func)
    ),
    "source": inspect.getsource,
    "bound to": lambda f: type(f.__self__),
    "its function's name": lambda f: f.__func__.__name__,
}

STAYS_DIFFERENT = {
    # a plain function stands in for what is none
    ("lru_cache", "isfunction"),
    ("lru_cache method", "isfunction"),
    ("builtin", "isfunction"),
    ("builtin", "bound to"),
    ("function under wrapt", "bound to"),
    ("coroutine function under wrapt", "bound to"),
    ("builtin", "annotations"),  # has none; a Python function always does
    # a function that pickle would not find by its own module and name is named by the place where it is patched
    ("builtin", "module"),
    ("inherited method", "qualname"),
    ("inherited coroutine", "qualname"),
    ("inherited generator", "qualname"),
    ("inherited async generator", "qualname"),
    # could not be told before, and can be now
    ("lru_cache", "getfullargspec"),
    ("lru_cache method", "getfullargspec"),
    # `getfullargspec` does not follow `__wrapped__`, and a `__signature__` answers both alike
    ("function under a decorator of another shape", "getfullargspec"),
}  # fmt: skip


def _answers(thing: Any) -> dict[str, Any]:
    found = {}
    for question, ask in QUESTIONS.items():
        try:
            answer = ask(thing)
        except (TypeError, AttributeError, OSError, ValueError) as error:
            answer = type(error)
        found[question] = answer
    return found


def _subject(kind: Kind, module: Any) -> Any:
    """What the questions are asked about: for a property, its getter."""
    owner, _, name = kind.target.partition(".")
    if name in ("prop", "cached_prop"):
        raw = vars(getattr(module, owner))[name]
        return getattr(raw, "fget", None) or raw.func
    return kind.get(module)


@pytest.mark.parametrize("name", KINDS)
def test_inspect_answers_as_before(name: str, make: Make) -> None:
    kind, module = KINDS[name], make(SOURCE)
    before = _answers(_subject(kind, module))
    with record(text=_map(module, kind)):
        after = _answers(_subject(kind, module))
    allowed = {question for kind_name, question in STAYS_DIFFERENT if kind_name == name}
    assert {q for q in before if before[q] != after[q]} <= allowed


PAST_THE_DECORATOR = """
import functools

calls = 0

@functools.lru_cache
def cached():
    global calls
    calls += 1
    return calls

def no_grad(function):
    @functools.wraps(function)
    def wrapped(*args):
        return ("no grad", function(*args))
    return wrapped

class Model:
    @no_grad
    def generate(self):
        return "tokens"
    def plain(self):
        return 1

class Sub(Model):
    pass
"""


@pytest.mark.parametrize("spans", [1, 2])
def test_a_decorator_is_gone_past_by_its_wrapped_as_without_us(spans: int, make: Make) -> None:
    """As `model.generate.__wrapped__(model)` where gradients are wanted, or a function behind its cache."""
    module = make(PAST_THE_DECORATOR)
    targets = ["cached", "Model.generate", "Sub.generate", "Model.plain"]
    originals = [vars(module.Model)["plain"]]
    text = "\n".join(
        f"s{n}{again}: {{group: job, function: '{{m}}:{target}'}}"
        for n, target in enumerate(targets)
        for again in range(spans)
    )
    with record(text=span_map(module, text)) as recorded:
        assert (module.cached(), module.cached(), module.cached.__wrapped__(), module.cached()) == (1, 1, 2, 1)
        for cls in (module.Model, module.Sub):
            assert cls().generate() == ("no grad", "tokens")
            assert cls.generate.__wrapped__(cls()) == "tokens"
        assert module.Model.plain.__wrapped__ in originals
        patched = {r.target: r.state for r in recorded.ledger.records}
        assert set(patched.values()) == {"applied"}


@each_kind
def test_everything_is_back_after_undo(kind: Kind, make: Make) -> None:
    module = make(SOURCE)
    *path, name = kind.target.split(".")
    owner = functools.reduce(getattr, path, module)
    before, kind_before = dict(vars(owner)), type(module.instance)
    with record(text=_map(module, kind)) as spans:
        assert [r.state for r in spans.ledger.records] == ["applied"]
        assert vars(owner).get(name) is not before.get(name) or type(module.instance) is not kind_before
    after = dict(vars(owner))
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in before)
    assert type(module.instance) is kind_before


PICKLABLE = [n for n in KINDS if n not in ("property", "cached property", "lru_cache method")]


@pytest.mark.parametrize("name", PICKLABLE)
@pytest.mark.parametrize("library", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_it_pickles_as_without_us(name: str, library: Any, make: Make) -> None:
    kind, module = KINDS[name], make(SOURCE)

    def there_and_back() -> Any:
        try:
            return pickle.loads(library.dumps(kind.get(module)))
        except Exception as error:
            return type(error)

    before = there_and_back()
    with record(text=_map(module, kind)) as spans:
        if isinstance(before, type) and issubclass(before, Exception):
            return
        after = there_and_back()
        spans.clear()
        assert kind.call(after, 3) == kind.call(kind.get(module), 3)
        # found by name it is the patched one; these are copied, by value
        copied = name == "callable instance" or (library is cloudpickle and "class method" in name)
        assert spans.tree() == ("it" if copied else "it\nit")
    assert type(after) is type(before) or isinstance(after, types.FunctionType)


BY_VALUE = [n for n in PICKLABLE if "lru_cache" not in n and "wrapt" not in n]


@pytest.mark.parametrize("name", BY_VALUE)
def test_it_pickles_by_value_and_the_copy_is_switched_off(name: str, make: Make) -> None:
    kind, module = KINDS[name], make(SOURCE)
    cloudpickle.register_pickle_by_value(module)
    try:
        try:
            pickle.loads(cloudpickle.dumps(kind.get(module)))
        except Exception as error:
            pytest.skip(f"does not pickle without us either: {error}")
        expected = kind.run(module, 3)
        with record(text=_map(module, kind)) as spans:
            copied = pickle.loads(cloudpickle.dumps(kind.get(module)))
            spans.clear()
            assert kind.call(copied, 3) == expected
            if name not in ("builtin", "callable instance"):  # these two are still pickled by name
                assert spans.tree() == ""
    finally:
        cloudpickle.unregister_pickle_by_value(module)


JOINS = {
    "function with everything": "{group: job, function: '{m}:Timer.time', inside: '{m}', "
    "attributes: {a: self.x, b: args.label, c: caller.q, d: return.x}}",
    "block": "{group: job, block: '{m}:Timer.time(label=a)'}",
    "class block": "{group: job, block: '{m}:Region(label=a)'}",
    "between": "{group: job, between: {begin: '{m}:Timer.start(label=a)', end: '{m}:Timer.stop(label=a)'}}",
    "between once": "{group: job, between: {begin: '{m}:Timer.start', until: '{m}:Timer.stop', "
    "match: args.label, once: true}}",
    "each": "{group: job, each: '{m}:Timer.items'}",
    "start_from": "{group: job, function: '{m}:Timer.time', start_from: '{m}:Timer.start'}",
    "subclasses": "{group: job, function: '{m}:Timer.start', subclasses: true}",
}


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS.keys())
def test_a_class_with_any_join_point_pickles_by_value(join: str, make: Make) -> None:
    module = make(
        """
        from contextlib import contextmanager
        class Region:
            label = "a"
            def __enter__(self): return self
            def __exit__(self, *exc): return None
        class Timer:
            x = 1
            @contextmanager
            def time(self, label): yield label
            def start(self, label): return label
            def stop(self, label): return label
            def items(self): yield from (1, 2)
        """
    )
    cloudpickle.register_pickle_by_value(module)
    try:
        with record(text=span_map(module, f"it: {join}")) as spans:
            timer = module.Timer()
            timer.start("a")
            with module.Region():  # while spans are open
                Timer, Region = pickle.loads(cloudpickle.dumps((module.Timer, module.Region)))
            timer.stop("a")
            spans.clear()
            copied = Timer()
            assert (copied.start("a"), list(copied.items()), copied.stop("a")) == ("a", [1, 2], "a")
            with copied.time("a") as got, Region() as region:
                assert (got, region.label) == ("a", "a")

            class Later(Timer):
                def start(self, label):
                    return [super().start(label)]

            assert Later().start("a") == ["a"]
        assert spans.tree() == ""
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@each_kind
def test_it_can_be_deep_copied(kind: Kind, make: Make) -> None:
    module = make(SOURCE)
    with record(text=_map(module, kind)) as spans:
        copied = copy.deepcopy(kind.get(module))
        spans.clear()
        expected = kind.run(module, 3)
        assert kind.call(copied, 3) == expected


def test_the_function_of_a_method_is_the_patch(make: Make) -> None:
    """torch's schedulers and accelerate call `method.__func__` themselves, with an instance of theirs."""
    module = make(SOURCE)
    with record(text=span_map(module, "it: {group: job, function: '{m}:Thing.method'}")) as spans:
        thing = module.Thing()
        assert thing.method.__func__(thing, 2) == 4
        assert thing.method.__func__.__get__(thing, type(thing))(3) == 6
    assert spans.tree() == "it\nit"


def test_cache_of_a_cached_function_is_reached(make: Make) -> None:
    module = make(SOURCE)
    with record(text=span_map(module, "it: {group: job, function: '{m}:cached'}")) as spans:
        assert [module.cached(2), module.cached(2)] == [4, 4]
        assert module.cached.cache_info().hits == 1
        module.cached.cache_clear()
        assert module.cached.cache_info().currsize == 0
    assert spans.tree() == "it\nit"


@pytest.mark.parametrize("target", ["OnlyNew.__init__", "OnlyInit.__new__", "Nothing.__init__"])
def test_what_object_defines_is_left_alone(target: str, make: Make) -> None:
    """`object.__init__` takes any arguments as long as it is the class's own: a patch would change that."""
    module = make(
        """
        class OnlyNew:
            def __new__(cls, x): return super().__new__(cls)
        class OnlyInit:
            def __init__(self, x): self.x = x
        class Nothing: pass
        """
    )
    with record(text=span_map(module, f"it: {{group: job, function: '{{m}}:{target}'}}")) as spans:
        module.OnlyNew(1), module.OnlyInit(1), module.Nothing()
        with pytest.raises(TypeError, match=r"Nothing\(\) takes no arguments"):
            module.Nothing(1)
        assert [r.state for r in spans.ledger.records] == ["refused"]
    assert spans.tree() == ""


def test_a_wrong_call_fails_as_before(make: Make) -> None:
    module = make(SOURCE)
    spans_text = "\n".join(f"{n}: {{group: job, function: '{{m}}:{n}'}}" for n in ("plain", "coroutine", "generator"))
    with pytest.raises(TypeError) as before:
        module.plain(1, 2, 3, 4)
    with record(text=span_map(module, spans_text)) as spans:
        with pytest.raises(TypeError) as after:
            module.plain(1, 2, 3, 4)
        assert str(after.value) == str(before.value)
        # these two raise at their first step and not at the call: see the docstring of patch/functions.py
        wrong = module.coroutine(1, 2, 3, 4)
        with pytest.raises(TypeError, match=r"coroutine\(\) takes from 1 to 2 positional arguments but 4 were given"):
            wrong.send(None)
        wrong = module.generator(1, 2, 3, 4)
        with pytest.raises(TypeError, match=r"generator\(\) takes from 1 to 2 positional arguments but 4 were given"):
            next(wrong)
    assert spans.tree() == "plain !TypeError\ncoroutine !TypeError\ngenerator !TypeError"


def test_two_entries_on_one_function_nest(make: Make) -> None:
    module = make(SOURCE)
    text = "a: {group: job, function: '{m}:decorated'}\nb: {group: step, function: '{m}:decorated'}"
    before = _answers(module.decorated)
    with record(text=span_map(module, text)) as spans:
        assert _answers(module.decorated) == before
        assert module.decorated(2) == 4
    assert spans.tree() == "b\n  a"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated late from 3.14 on")
def test_annotations_that_cannot_be_evaluated(make: Make) -> None:
    module = make("def f(x: Unknown) -> Unknown:\n    return x\n")
    with record(text=span_map(module, "it: {group: job, function: '{m}:f', attributes: {x: args.x}}")) as spans:
        assert module.f(1) == 1
    assert spans.tree() == "it x=1"

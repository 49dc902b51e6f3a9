"""`subclasses: true`: overrides have their span whether they call super or not, now and for classes to come."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import Any

from toy_packages import Write, spans_map

from autoinstr.testing import record

SOURCE = """
class Base:
    def run(self): return ["base"]
    def __init_subclass__(cls, tag=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag
class WithSuper(Base, tag="w"):
    def run(self): return [*super().run(), "with"]
class Without(Base):
    def run(self): return ["without"]
class Deep(Without):
    def run(self): return [*super().run(), "deep"]
class Silent(Base): pass
class Left(Base):
    def run(self): return [*super().run(), "left"]
class Right(Base):
    def run(self): return [*super().run(), "right"]
class Diamond(Left, Right):
    def run(self): return [*super().run(), "diamond"]
"""

MAP = spans_map("toy.run: {function: toy.work:Base.run, subclasses: true}")


def load(name: str) -> Any:
    return importlib.import_module(name)


def overrides(work: Any) -> dict[str, Any]:
    return {
        f"{name}.{key}": value
        for name, cls in vars(work).items()
        if isinstance(cls, type)
        for key, value in vars(cls).items()
        if key in ("run", "__init_subclass__")
    }


def test_one_span_for_every_override_with_super_or_without(write: Write) -> None:
    write(toy__work=SOURCE)
    work = load("toy.work")
    before = overrides(work)
    calls = {
        "Base": ["base"],
        "WithSuper": ["base", "with"],
        "Without": ["without"],
        "Deep": ["without", "deep"],
        "Silent": ["base"],
        "Diamond": ["base", "right", "left", "diamond"],
    }
    with record(text=MAP) as spans:
        for name, result in calls.items():
            assert getattr(work, name)().run() == result
            assert spans.tree() == "toy.run", name
            spans.clear()
    assert overrides(work) == before
    assert spans.notices == []


def test_classes_that_are_defined_later(write: Write) -> None:
    write(toy__work=SOURCE)
    with record(text=MAP) as spans:
        work = load("toy.work")
        made: list[type] = []

        class Registry(type):
            def __new__(mcs, name: str, bases: Any, namespace: Any, **kwargs: Any) -> Any:
                made.append(cls := super().__new__(mcs, name, bases, namespace, **kwargs))
                return cls

        class Later(work.Without, tag="later", metaclass=Registry):
            def run(self) -> list[str]:
                return ["later"]

        class Below(Later):
            def __init_subclass__(cls, **kwargs: Any) -> None:  # calls no super
                cls.tag = "below"

            def run(self) -> list[str]:
                return [*super().run(), "below"]

        class Unheard(Below):
            def run(self) -> list[str]:
                return ["unheard"]

        class Taken(work.Base):
            run = work.Without.run

        assert (Later.tag, Unheard.tag, made) == ("later", "below", [Later, Below, Unheard])
        for cls, spans_made in ((Later, 1), (Below, 1), (Taken, 1), (Unheard, 0)):
            cls().run()
            assert len(spans.spans) == spans_made, cls
            spans.clear()
    after = {cls: vars(cls)["run"] for cls in (Later, Below, Taken)}
    assert {function.__qualname__.rpartition(".")[0].rpartition(".")[2] for function in after.values()} == {
        "Later", "Below", "Without",
    }  # fmt: skip
    assert not any(hasattr(function, "__wrapped__") for function in after.values())
    assert "__init_subclass__" not in vars(work.Without)

    class AfterUndo(work.Base, tag="x"):
        def run(self) -> list[str]:
            return ["after"]

    assert AfterUndo().run() == ["after"]
    assert not hasattr(AfterUndo.run, "__wrapped__")


def test_two_entries_follow_the_same_method_and_one_names_an_override(write: Write) -> None:
    write(toy__work=SOURCE)
    maps = spans_map(
        "toy.a: {function: toy.work:Base.run, subclasses: true}",
        "toy.b: {function: toy.work:Base.run, subclasses: true}",
        "toy.c: {function: toy.work:Without.run}",
    )
    with record(text=maps) as spans:
        work = load("toy.work")
        before = [name for name in overrides(work) if name.endswith("run")]
        work.Without().run()
        assert sorted(span.name for span in spans.spans) == ["toy.a", "toy.b", "toy.c"]
        spans.clear()
        work.WithSuper().run()
        assert sorted(span.name for span in spans.spans) == ["toy.a", "toy.b"]
    assert len(before) == 7


def test_a_wrapped_hook_of_ours_is_inert_after_undo(write: Write) -> None:
    write(toy__work="class Base:\n    def run(self): return 1\n")
    with record(text=MAP):
        work = load("toy.work")
        ours = vars(work.Base)["__init_subclass__"].__func__

        def theirs(cls: type, **kwargs: Any) -> None:
            ours(cls, **kwargs)

        work.Base.__init_subclass__ = classmethod(theirs)

    class Later(work.Base):
        def run(self) -> int:
            return 2

    assert not hasattr(Later.run, "__wrapped__")


def test_reloaded_classes_are_followed_again(write: Write) -> None:
    write(toy__work=SOURCE)
    with record(text=MAP) as spans:
        work = load("toy.work")
        old = work.Without
        importlib.reload(work)
        assert work.Without is not old
        work.Without().run()
        old().run()
        assert spans.tree() == "toy.run\ntoy.run"
    assert not hasattr(old.run, "__wrapped__")
    assert not hasattr(work.Without.run, "__wrapped__")


OTHER_KINDS = """
class Base:
    @classmethod
    def c(cls): return 'c'
    @property
    def p(self): return 'p'
    async def a(self): return 'a'
class Below(Base):
    @classmethod
    def c(cls): return super().c() + 'b'
    @property
    def p(self): return super().p + 'b'
    async def a(self): return await super().a() + 'b'
"""


def test_other_kinds_of_methods(write: Write) -> None:
    write(toy__work=OTHER_KINDS)
    maps = spans_map(*(f"toy.{x}: {{function: toy.work:Base.{x}, subclasses: true}}" for x in "cpa"))
    with record(text=maps) as spans:
        work = load("toy.work")
        assert (work.Below.c(), work.Below().p, asyncio.run(work.Below().a())) == ("cb", "pb", "ab")
    assert spans.tree() == "toy.c\ntoy.p\ntoy.a"


def test_a_class_is_not_seen_to_have_a_method_more(write: Write) -> None:
    """Ray makes every function and method of a class one of its actors."""
    write(toy__work=SOURCE)
    work = load("toy.work")
    tagged = "class Tagged(Base):\n    def __init_subclass__(cls): super().__init_subclass__()\n"
    exec(tagged, vars(work))

    def listed() -> list[list[str]]:
        classes = (work.Base, work.Without, work.Deep, work.Tagged)
        return [
            [name for name, _ in inspect.getmembers(cls, lambda m: inspect.isfunction(m) or inspect.ismethod(m))]
            for cls in classes
        ]

    before = listed()
    with record(text=MAP):
        assert listed() == before

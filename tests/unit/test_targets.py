"""What a target may be: missing, refused, one of several; and what is said and recorded of it."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest
from toy_packages import Write, spans_map, states

from autoinstr.testing import record

F = "def f():\n    return 1\n"


def load(name: str) -> Any:
    return importlib.import_module(name)


def test_a_missing_target_is_one_line_said_once(write: Write) -> None:
    write(toy__work="def train_step(): return 1\nclass Trainer:\n    def step(self): return 2\n")
    maps = spans_map(
        "toy.a: {function: toy.work:trian_step}",
        "toy.b: {function: toy.work:Trainer.steps}",
        "toy.c: {function: toy.work:Zzz.run}",
        "toy.d: {function: toy.work:nothing_like_it, optional: true}",
        "toy.e: {function: toy.work:Trainer.logger.log}",
    )
    with record(text=maps) as spans:
        work = load("toy.work")
        importlib.reload(work)
    assert spans.notices == [
        "<text>:4:33: toy.a: toy.work has no 'trian_step', did you mean 'train_step'?; it is left out",
        "<text>:5:33: toy.b: toy.work.Trainer has no 'steps', did you mean 'step'?; it is left out",
        "<text>:6:33: toy.c: toy.work has no 'Zzz'; it is left out",
        "<text>:8:33: toy.e: toy.work.Trainer has no 'logger' (what only an instance holds is no target: "
        "name its class's method); it is left out",
    ]


def test_a_list_names_places_that_stand_alone(write: Write) -> None:
    write(toy__work=F, toy__other=F)
    with record(text=spans_map("toy.f: {function: [toy.work:f, toy.work:g, toy.other:f]}")) as spans:
        load("toy.work").f()
        load("toy.other").f()
        assert states(spans) == {
            "toy.work:f": "applied",
            "toy.work:g": "missing: toy.work has no 'g'",
            "toy.other:f": "applied",
        }
    assert spans.tree() == "toy.f\ntoy.f"
    assert spans.notices == ["<text>:4:46: toy.f: toy.work has no 'g'; it is left out"]


def test_the_first_alternative_that_is_there(write: Write) -> None:
    write(toy__work="def new(): return old()\ndef old(): return 1\n")
    maps = spans_map("toy.f: {function: [{first_of: [toy.work:newest, toy.work:new, toy.work:old]}]}")
    with record(text=maps) as spans:
        load("toy.work").new()
        assert list(states(spans).values()) == [
            "missing: toy.work has no 'newest', did you mean 'new'?",
            "applied",
            "missing: an alternative is there",
        ]
    assert spans.tree() == "toy.f"
    assert spans.notices == []


def test_an_alternative_that_is_refused_makes_room_for_the_next(write: Write) -> None:
    write(toy__work="new = 5\ndef old(): return 1\n")
    with record(text=spans_map("toy.f: {function: [{first_of: [toy.work:new, toy.work:old]}]}")) as spans:
        load("toy.work").old()
    assert spans.tree() == "toy.f"
    assert spans.notices == ["<text>:4:46: toy.f: toy.work:new is left alone: it is not callable (int)"]


@pytest.mark.parametrize("order", [("toy.a", "toy.b"), ("toy.b", "toy.a")])
def test_alternatives_in_two_modules(order: tuple[str, str], write: Write) -> None:
    """The one whose module is imported first, and only that one."""
    write(toy__a=F, toy__b=F)
    with record(text=spans_map("toy.f: {function: [{first_of: [toy.a:f, toy.b:f]}]}")) as spans:
        first, second = (load(name) for name in order)
        first.f()
        second.f()
        assert sorted(states(spans).values()) == ["applied", "missing: an alternative is there"]
        importlib.reload(first)
        importlib.reload(second)
        first.f()
        second.f()
    assert spans.tree() == "toy.f\ntoy.f"


def test_alternatives_in_two_modules_that_are_all_missing(write: Write) -> None:
    write(toy__a="", toy__b="")
    with record(text=spans_map("toy.f: {function: [{first_of: [toy.a:f, toy.b:f]}]}")) as spans:
        load("toy.a")
        assert spans.notices == []
        assert list(states(spans).values()) == ["missing: toy.a has no 'f'", "pending"]
        load("toy.b")
    assert spans.notices == ["<text>:4:55: toy.f: toy.a has no 'f'; toy.b has no 'f'; it is left out"]


REFUSED = """
import sys, types

class Made: pass
LIMIT = 5
class Slots:
    __slots__ = ("hook",)
class Frozen(type):
    def __setattr__(cls, name, value):
        raise AttributeError(f"{cls.__name__} is frozen")
class Cold(metaclass=Frozen):
    def f(self): return 1
class Descriptor:
    def __get__(self, instance, owner): return lambda: 3
    def __call__(self): return 4
class Owner:
    d = Descriptor()
    @property
    def p(self): return 1
    only_set = property(None, lambda self, value: None)
class Counted:
    made = []
    def __init_subclass__(cls): Counted.made.append(cls)
    def __call__(self): return 6
counted = Counted()
names = dict
class Kept:
    made = staticmethod(Made)
    here = classmethod(property(lambda cls: cls.__name__))
class Heir(Kept):
    pass
"""


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("toy.work:Made", "it is a class; name one of its methods, as in Class.__init__"),
        ("toy.work:LIMIT", "it is not callable (int)"),
        ("toy.work:Slots.hook", "it is a slot (member_descriptor)"),
        ("toy.work:Cold.f", "AttributeError: Cold is frozen"),
        ("toy.work:Owner.d", "it is an instance of Descriptor; name its __call__"),
        ("toy.work:Owner.only_set", "the property has no getter"),
        ("toy.work:Made.__init__", "Made has no __init__ of its own"),
        ("toy.work:counted", "it is an instance of Counted, which may count its subclasses"),
        ("toy.work:names.update", "TypeError: cannot set 'update' attribute of immutable type 'dict'"),
        ("toy.work:Kept.made", "it is a class, as a staticmethod; name one of its methods, as in Class.__init__"),
        ("toy.work:Heir.made", "it is a class, as a staticmethod; name one of its methods, as in Class.__init__"),
        ("toy.work:Kept.here", "it is a classmethod over a property"),
        ("toy.work:Heir.here", "it is a classmethod over a property"),
    ],
)
def test_a_refused_target_is_left_alone_and_said(target: str, why: str, write: Write) -> None:
    write(toy__work=REFUSED)
    work = load("toy.work")
    before = {name: dict(vars(value)) for name, value in vars(work).items() if isinstance(value, type)}
    with record(text=spans_map(f"toy.f: {{function: {target}}}")) as spans:
        assert states(spans) == {target: f"refused: {why}"}
    assert spans.notices == [f"<text>:4:33: toy.f: {target} is left alone: {why}"]
    assert {name: dict(vars(value)) for name, value in vars(work).items() if isinstance(value, type)} == before


def test_a_block_that_is_entered_by_no_instance_is_left_alone(write: Write) -> None:
    write(
        toy__work="class Held:\n    @classmethod\n    def __enter__(cls): return cls.__name__\n"
        "    def __exit__(self, *error): pass\n"
    )
    with record(text=spans_map("toy.held: {block: toy.work:Held}")) as spans:
        with load("toy.work").Held() as name:
            pass
        assert name == "Held"
    why = "its __enter__ is a classmethod, which knows no instance"
    assert spans.notices == [f"<text>:4:33: toy.held: toy.work:Held is left alone: {why}"]


PARTIAL = """
import functools
class Owner:
    @staticmethod
    def add(x, y): return x + y
    @classmethod
    def name(cls, x): return cls.__name__, x
    add_five = functools.partialmethod(add, 5)
    name_six = functools.partialmethod(name, 6)
"""


def test_partial_methods_of_static_and_class_methods(write: Write) -> None:
    write(toy__work=PARTIAL)
    maps = spans_map(
        "toy.add: {function: toy.work:Owner.add_five, attributes: {toy.y: args.y}}",
        "toy.name: {function: toy.work:Owner.name_six, attributes: {toy.x: args.x}}",
    )
    with record(text=maps) as spans:
        owner = load("toy.work").Owner()
        assert (owner.add_five(2), owner.name_six()) == (7, ("Owner", 6))
    assert spans.notices == []
    assert spans.tree() == "toy.add toy.y=2\ntoy.name toy.x=6"


def test_a_module_that_forbids_it(write: Write) -> None:
    write(
        toy__work="import sys, types\nclass Shut(types.ModuleType):\n    def __setattr__(self, name, value):\n"
        "        raise AttributeError('shut')\n" + F + "sys.modules[__name__].__class__ = Shut\n"
    )
    with record(text=spans_map("toy.f: {function: toy.work:f}")) as spans:
        assert load("toy.work").f() == 1
    assert spans.notices == ["<text>:4:33: toy.f: toy.work:f is left alone: AttributeError: shut"]


def test_versions(write: Write) -> None:
    write(toy__work=F)
    maps = spans_map(
        "toy.a: {function: toy.work:f, versions: 'pytest>=1'}",
        "toy.b: {function: toy.work:f, versions: 'pytest<1'}",
        "toy.c: {function: toy.work:f, versions: 'no-such-distribution>=1'}",
        "toy.d: {function: toy.work:g, versions: 'pytest<1'}",
    )
    with record(text=maps) as spans:
        load("toy.work").f()
        found = [record.state for record in spans.ledger.records]
        why = spans.ledger.records[1].why
    assert found == ["applied", "missing", "applied", "missing"]
    assert why == f"pytest {pytest.__version__} is installed, and it is for <1"
    assert sorted(span.name for span in spans.spans) == ["toy.a", "toy.c"]
    assert spans.notices == []


def test_one_function_under_two_names_has_one_span(write: Write) -> None:
    write(toy="from toy._impl import f, Trainer\n",
          toy___impl=F + "class Trainer:\n    def step(self): return 1\nclass Below(Trainer): pass\n")  # fmt: skip
    maps = spans_map(
        "toy.f: {function: [toy:f, toy._impl:f]}",
        "toy.step: {function: [toy._impl:Below.step, toy:Trainer.step, toy._impl:Trainer.step]}",
    )
    with record(text=maps) as spans:
        load("toy").f()
        load("toy._impl").f()
        load("toy").Trainer().step()
        load("toy._impl").Below().step()
        assert set(states(spans).values()) == {"applied"}
    assert spans.tree() == "toy.f\ntoy.f\ntoy.step\ntoy.step"
    assert load("toy").f is load("toy._impl").f


PAIR = "def start(): pass\ndef stop(): pass\nMADE = start, stop\n"


@pytest.mark.parametrize(
    ("ends", "begin"),
    [
        ("toy.work:stop", "applied"),
        ("[toy.work:stop, toy.work:no]", "applied"),
        ("toy.work:no", "refused: its end is missing"),
        ("toy.work:MADE", "refused: its end is missing"),
        ("[toy.work:no, toy.work:nowhere]", "refused: its end is missing"),
        ("toy.later:stop", "applied"),
    ],
)
def test_a_begin_needs_an_end(ends: str, begin: str, write: Write) -> None:
    write(toy__work=PAIR)
    with record(text=spans_map(f"toy.p: {{between: {{begin: toy.work:start, end: {ends}}}}}")) as spans:
        work = load("toy.work")
        assert states(spans)["toy.work:start"] == begin
        assert (work.start is work.MADE[0]) == (begin != "applied")


def test_an_end_needs_a_begin(write: Write) -> None:
    write(toy__work=PAIR)
    with record(text=spans_map("toy.p: {between: {begin: toy.work:no, end: toy.work:stop}}")) as spans:
        work = load("toy.work")
        assert states(spans)["toy.work:stop"] == "refused: its begin is missing"
        assert work.stop is work.MADE[1]
    assert spans.notices == ["<text>:4:40: toy.p: toy.work has no 'no'; it is left out"]


def test_a_begin_is_put_back_when_its_end_turns_out_to_be_missing(write: Write) -> None:
    write(toy__work=PAIR, toy__later="")
    maps = spans_map(
        "toy.p: {between: {begin: toy.work:start, end: toy.later:stop}}", "toy.f: {function: toy.work:stop}"
    )
    with record(text=maps) as spans:
        work = load("toy.work")
        assert work.start is not work.MADE[0]
        load("toy.later")
        assert work.start is work.MADE[0]
        assert states(spans) == {
            "toy.work:start": "refused: its end is missing",
            "toy.later:stop": "missing: toy.later has no 'stop'",
            "toy.work:stop": "applied",
        }
        work.start()
        work.stop()
    assert spans.tree() == "toy.f"


def test_start_from_may_come_later_or_be_missing(write: Write) -> None:
    write(toy__work=F, toy__early="def begin(): pass\n")
    maps = spans_map(
        "toy.f: {function: toy.work:f, start_from: toy.early:begin}",
        "toy.g: {function: toy.work:f, start_from: toy.early:beginning}",
    )
    with record(text=maps) as spans:
        work = load("toy.work")
        early = load("toy.early")
        before = time.time_ns()
        early.begin()
        between = time.time_ns()
        work.f()
    (f,), (g,) = spans.named("toy.f"), spans.named("toy.g")
    assert before <= f.start_time <= between <= g.start_time
    assert spans.notices == [
        "<text>:5:57: toy.g: toy.early has no 'beginning', did you mean 'begin'?; it starts when it is called"
    ]


def test_an_entry_is_taken_up_once_however_often_it_is_added(write: Write) -> None:
    from autoinstr.maps import catalog, groups, loader
    from autoinstr.patch.patcher import Patcher
    from autoinstr.spans.opening import Tracers

    write(toy__work=F)
    found = catalog.Catalog(print)
    read = loader.load_map(spans_map("toy.f: {function: toy.work:f}"), "<text>", found.table).map
    assert read is not None
    patcher = Patcher(found.table, groups.select("all", found.table), Tracers())
    patcher.add(read.spans)
    work = load("toy.work")
    original = work.f.__wrapped__
    patcher.add(read.spans)
    patcher.patch_module(work)
    patcher.patch_module(work)
    assert work.f.__wrapped__ is original
    assert [record.state for record in patcher.ledger.records] == ["applied"]
    patcher.undo()
    patcher.undo()
    assert work.f is original
    patcher.add(read.spans)
    assert work.f.__wrapped__ is original
    patcher.undo()
    assert work.f is original
    assert [record.state for record in patcher.ledger.records] == ["undone", "undone"]

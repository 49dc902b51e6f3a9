"""`caller.*` and `args.*`: what is read from a call, and that reading the caller's frame changes nothing in it."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
from made_modules import Make, span_map

from autoinstr.testing import record

MARK = "it: {group: job, function: '{m}:f', attributes: {step: caller.step, x: args.x, k: args.k, o: args.other}}"


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, "it k='d' x=1"),
        ((1, "p"), {}, "it k='p' x=1"),
        ((), {"x": 1, "k": "n"}, "it k='n' x=1"),
        ((1,), {"other": 5}, "it k='d' o=5 x=1"),
    ],
)
def test_arguments_by_position_keyword_default_and_through_kwargs(
    args: Any, kwargs: Any, expected: str, make: Make
) -> None:
    module = make("def f(x, k='d', **more):\n    return x\n")
    with record(text=span_map(module, MARK)) as spans:
        assert module.f(*args, **kwargs) == 1
    assert spans.tree() == expected


def test_locals_of_the_caller(make: Make) -> None:
    module = make(
        """
        def f(x=0): return x
        def run():
            for step in range(2):
                f()
            del step
            f()
        def closed():
            step = 5
            def inner():
                f()
                return step
            inner()
        """
    )
    text = span_map(module, "it: {group: job, function: '{m}:f', attributes: {step: caller.step}}")
    with record(text=text) as spans:
        module.run()
        module.closed()
    assert spans.tree() == "it step=0\nit step=1\nit\nit step=5"


def test_what_the_caller_deletes_is_freed(make: Make) -> None:
    """Before Python 3.13, `frame.f_locals` is a snapshot that would keep a batch alive until the function returns."""
    module = make(
        """
        import weakref
        class Batch: pass
        def f(x): pass
        def run():
            step, batch = 1, Batch()
            ref = weakref.ref(batch)
            f(1)
            del batch
            freed = ref() is None
            batch = Batch()
            ref = weakref.ref(batch)
            f(1), f(2)
            del batch
            return freed and ref() is None
        def generator():
            step, batch = 1, Batch()
            ref = weakref.ref(batch)
            f(1)
            del batch
            yield ref() is None
        """
    )
    with record(text=span_map(module, MARK)) as spans:
        assert module.run()
        assert list(module.generator()) == [True]
    assert spans.tree(attributes=False) == "it\nit\nit\nit"
    assert [s.attributes["step"] for s in spans.spans if s.attributes] == [1] * 4


def test_users_of_locals_are_undisturbed(make: Make) -> None:
    module = make(
        """
        import sys
        def f(x): pass
        def uses_locals():
            step = 1
            mine = locals()
            f(1)
            f(2)
            return mine["step"], sorted(locals())
        def helper():
            return sys._getframe(1).f_locals
        def uses_a_helper():
            step = 1
            mine = helper()
            f(1)
            first = dict(mine)
            f(2)
            return first["step"], mine["step"]
        def helper_afterwards():
            step = 1
            f(1)
            mine = helper()
            f(2)
            return mine["step"]
        class Body:
            step = 7
            f(1)
            kept = step
        """
    )
    text = span_map(module, MARK)
    with record(text=text) as spans:
        assert module.uses_locals() == (1, ["mine", "step"])
        assert module.uses_a_helper() == (1, 1)
        assert module.helper_afterwards() == 1
        namespace: dict[str, Any] = {"f": module.f}
        exec("step = 3\nf(1)\nclass C:\n    step = 4\n    f(1)\n    kept = step\n", namespace)
        assert (namespace["step"], namespace["C"].kept, namespace["C"].step) == (3, 4, 4)
        assert eval("[f(1), step]", namespace) == [None, 3]
    assert [s.attributes["step"] for s in spans.spans if s.attributes] == [1, 1, 1, 1, 1, 1, 3, 4, 3]


def test_a_debugger_still_sees_and_sets_locals(make: Make) -> None:
    module = make("def f(x): pass\ndef run():\n    step = 1\n    f(1)\n    y = step\n    return y\n")
    seen: list[Any] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name == "run":
            seen.append(dict(frame.f_locals))
        return tracer

    with record(text=span_map(module, MARK)) as spans:
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            assert module.run() == 1
        finally:
            sys.settrace(before)
    assert seen[-1] == {"step": 1, "y": 1}
    assert [s.attributes["step"] for s in spans.spans if s.attributes] == [1]


@pytest.mark.parametrize("inside", ["app.loop", "app", "[other, app.loop]"])
def test_a_loop_beside_its_own_timer_and_generator_is_inside_its_module(inside: str, make: Make) -> None:
    """For blocks, pairs and items the caller is outside of the target's module, unless `inside` names that one."""
    loop = make(
        """
        from contextlib import contextmanager
        @contextmanager
        def phase(name): yield
        def start(): pass
        def stop(): pass
        def batches(): yield from range(2)
        def train():
            for batch in batches():
                step = batch + 1
                with phase("forward"):
                    pass
                start()
                stop()
        """,
        "app.loop",
    )
    spans_of = """
step: {group: step, each: 'app.loop:batches'}
forward: {group: rollout, block: 'app.loop:phase(name=forward)', attributes: {it: caller.step}}
pair: {group: rollout, between: {begin: 'app.loop:start', end: 'app.loop:stop'}, attributes: {it: caller.step}}
"""
    with record(text=f"inside: {inside}\n" + span_map("app", spans_of)) as spans:
        loop.train()
    assert spans.tree() == "step\n  forward it=1\n  pair it=1\nstep\n  forward it=2\n  pair it=2"

    with record(text="inside: other\n" + span_map("app", spans_of)) as spans:
        loop.train()
    assert spans.tree() == ""


def test_a_recursive_function_is_called_by_itself(make: Make) -> None:
    module = make("def f(x):\n    step = x\n    if x:\n        f(x - 1)\n")
    with record(text=span_map(module, MARK)) as spans:
        module.f(2)
    assert spans.tree() == "it x=2\n  it step=2 x=1\n    it step=1 x=0"


def test_self_of_a_method_is_let_go(make: Make) -> None:
    module = make("class A:\n    n = 1\n    def m(self): pass\n")
    with record(text=span_map(module, "it: {group: job, function: '{m}:A.m', attributes: {n: self.n}}")) as spans:
        a = module.A()
        ref = weakref.ref(a)
        a.m()
        del a
        assert ref() is None
    assert spans.tree() == "it n=1"


def test_the_caller_is_the_users_under_every_other_patch_of_ours(make: Make) -> None:
    module = make("def f(x, headers=None): return x\ndef run():\n    step = 3\n    return f(1)\n")
    text = span_map(
        module,
        """
        run:
          - {group: job, function: "{m}:run"}
          - {group: job, attributes_from: "{m}:f", attributes: {x: return}}
        it: {group: job, function: "{m}:f", attributes: {step: caller.step}}
        """,
    )
    text += """
metrics:
  {m}:f: {series: {my.x: {value: args.x}}}
arguments:
  {m}:f: {group: job, add: {headers: trace_headers}}
""".replace("{m}", module.__name__)
    with record(text=text) as spans:
        assert module.run() == 1
    assert spans.tree() == "run x=1\n  it step=3"
    assert spans.series() == "my.x gauge 1.0"

"""`autoinstr check` and `autoinstr snapshot`: what of a map is still in a release's source."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from autoinstr.check.facts import Facts, SnapshotError, from_json, to_json
from autoinstr.check.fitting import callees_of, fit
from autoinstr.check.outcome import ABSENT, MISSING, THERE, Outcome, note_losses
from autoinstr.check.source import package_folder, read_source
from autoinstr.cli import main
from autoinstr.maps.catalog import Catalog
from autoinstr.maps.loader import load_map
from autoinstr.maps.metric_model import MetricTap
from autoinstr.maps.model import SpanEntry

SNAPSHOTS = Path(__file__).resolve().parents[1] / "snapshots"
RELEASES = ("v0.4.0", "v0.5.0", "v0.6.0", "v0.7.0", "main-20260822", "lens-with-goodput", "newest")
MAIN = SNAPSHOTS / "nemo_rl-main-20260822.json"

TIMER = """
    from contextlib import contextmanager

    class Timer:
        @contextmanager
        def time(self, label, should_log=True):
            self.start(label, should_log)
            yield
            self.stop(label)

        def start(self, label, should_log=True): ...
        def stop(self, label): ...

    class SafeTimer(Timer):
        pass
"""


@pytest.fixture(autouse=True)
def _only_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTOINSTR_SPAN_MAPS", "AUTOINSTR_BUILTIN_MAPS", "AUTOINSTR_SPAN_GROUPS"):
        monkeypatch.delenv(name, raising=False)


def entries(text: str) -> list[SpanEntry]:
    loaded = load_map("map: m\npackage: pkg\nspans:\n" + inspect.cleandoc(text).replace("\n", "\n  ").join(["  ", ""]),
                      "m.yaml", Catalog(lambda mistake: None).table)  # fmt: skip
    assert loaded.map is not None
    assert loaded.mistakes == []
    return list(loaded.map.spans)


def package(folder: Path, **modules: str) -> Path:
    for name, text in {"__init__": "", **modules}.items():
        path = folder / "pkg" / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).strip() + "\n")
    return folder


def check(folder: Path, text: str) -> Outcome:
    """A map against a package, by its source and by its snapshot: both must say the same."""
    found = entries(text)
    source = package_folder(folder, "pkg")
    assert source is not None
    facts = read_source({"pkg": source}, callees_of(found), "here")
    outcome = fit(found, facts)
    assert fit(found, from_json(to_json(facts))) == outcome
    return outcome


def said(outcome: Outcome) -> list[str]:
    return [f"{f.place}: {f.text}" for f in (*outcome.problems, *outcome.absent)]


# -- what is there ----------------------------------------------------------------------------------------


def test_a_map_that_fits(tmp_path: Path) -> None:
    package(
        tmp_path,
        timer=TIMER,
        train="""
            from pkg.timer import Timer

            def train(config, *, resume=False):
                for step in range(2):
                    with Timer().time("step"):
                        pass
        """,
    )
    outcome = check(
        tmp_path,
        """
        a.job: {group: job, function: "pkg.train:train", attributes: {a.resume: args.resume}}
        a.step:
          group: step
          block: pkg.timer:Timer.time(label=step)
          inside: pkg.train
          attributes: {a.iteration: "caller.step | add(1)", a.label: args.label}
        """,
    )
    assert said(outcome) == []
    assert [row.state for row in outcome.rows] == [THERE, THERE]
    assert list(outcome.counts.values()) == [2, 1, 4, 0]


@pytest.mark.parametrize(
    "block",
    [
        'with timer.time("here"): pass',
        'with timer.time(label="here"): pass',
        'with timer.time("here") if timer is not None else nullcontext(): pass',
        'with nullcontext(), timer.time("here"): pass',
        'stack.enter_context(timer.time("here"))',
        'async def inner():\n        with timer.time("here"): pass',
        'label = "here"\n    with timer.time(label): pass',
        'label = "here" if timer else "there"\n    with timer.time(label): pass',
        'with timer.time(f"{prefix}here"): pass',
        'with timer.time(f"{prefix}"): pass',
        'with self._timer.time("here", should_log=False): pass',
    ],
)
def test_the_ways_to_open_a_label(tmp_path: Path, block: str) -> None:
    package(tmp_path, timer=TIMER, train="def train(timer, prefix):\n    " + block)
    outcome = check(tmp_path, 'a.b: {group: step, block: "pkg.timer:Timer.time(label=here)", inside: pkg.train}')
    assert said(outcome) == []


@pytest.mark.parametrize(
    "block",
    [
        'with timer.time("her"): pass',
        'with timer.stop("here"): pass',
        'with timer.time("other", "here"): pass',
        'with timer.time(f"{prefix}/there"): pass',
        "with timer.time(prefix): pass",
        'label = compute("here")\n    with timer.time(label): pass',
    ],
)
def test_what_does_not_open_it(tmp_path: Path, block: str) -> None:
    package(tmp_path, timer=TIMER, train="def train(timer, prefix):\n    " + block)
    outcome = check(tmp_path, 'a.b: {group: step, block: "pkg.timer:Timer.time(label=here)", inside: pkg.train}')
    assert [row.state for row in outcome.rows] == [MISSING]


def test_a_pattern_a_choice_and_a_constant_of_the_module(tmp_path: Path) -> None:
    package(
        tmp_path,
        timer=TIMER,
        train="""
            LABEL = "idle/" "wait"

            def train(timer, kind):
                with timer.time(LABEL):
                    pass
                with timer.time(f"{kind}/sub"):
                    pass
        """,
    )
    outcome = check(
        tmp_path,
        """
        a.a: {group: step, block: "pkg.timer:Timer.time(label=idle/*)"}
        a.b: {group: step, block: "pkg.timer:Timer.time(label=older|idle/wait)"}
        a.c: {group: step, block: "pkg.timer:Timer.time(label=x/sub)"}
        a.d: {group: step, block: "pkg.timer:Timer.time(label=other/*)"}
        """,
    )
    assert [row.state for row in outcome.rows] == [THERE, THERE, THERE, MISSING]


def test_a_pair_that_the_factory_itself_calls(tmp_path: Path) -> None:
    """`Timer.time` hands its label to `start`: who opens the block with time() has opened the pair too."""
    package(tmp_path, timer=TIMER, train='def train(timer, step):\n    with timer.time("wait"): pass')
    outcome = check(
        tmp_path,
        """
        a.wait:
          group: efficiency
          between: {begin: "pkg.timer:Timer.start(label=wait)", end: "pkg.timer:Timer.stop(label=wait)"}
          inside: pkg.train
          attributes: {a.step: caller.step}
        """,
    )
    assert said(outcome) == []


def test_inherited_reexported_and_made_later(tmp_path: Path) -> None:
    package(
        tmp_path,
        base="""
            class Base:
                def run(self, step): ...
        """,
        derived="""
            from .base import Base as Parent
            from pkg import base

            class Middle(Parent[int]): ...
            class Derived(Middle): ...
            class Other(base.Base): ...

            Remote = ray.remote(Derived)
        """,
        sub__in____init__="from .inner import run",
        sub__in__inner="def run(config): ...",
        conditional="""
            try:
                import fast
            except ImportError:
                def run(config): ...
            if True:
                class Worker:
                    class Inner:
                        async def go(self, **kwargs): ...
        """,
    )
    outcome = check(
        tmp_path,
        """
        a.a: {group: job, function: "pkg.derived:Derived.run", attributes: {s: args.step}}
        a.b: {group: job, function: "pkg.derived:Other.run"}
        a.c: {group: job, function: "pkg.sub:run", attributes: {s: args.config}}
        a.d: {group: job, function: "pkg.conditional:run"}
        a.e: {group: job, function: "pkg.conditional:Worker.Inner.go", attributes: {s: args.anything}}
        a.f: {group: job, function: "pkg.derived:Remote"}
        """,
    )
    assert said(outcome) == []


def test_what_is_inherited_from_another_package(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Of the other package only the modules on the way are read, and kept."""
    package(
        tmp_path,
        mine="""
            from other import Trainer, Unused
            import other.kinds as kinds

            class Mine(Trainer): ...
            class Named(kinds.Kind): ...
        """,
    )
    other = tmp_path / "other"
    (other / "deep").mkdir(parents=True)
    (other / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .trainer import Trainer, helper\n"
        "    from .unread import Unused\n"
    )
    (other / "unread.py").write_text("class Unused: ...\n")
    (other / "kinds.py").write_text("class Kind:\n    def log(self, logs): logs['loss'] = 1\n")
    (other / "deep" / "__init__.py").write_text("class Base:\n    def save(self, path): ...\n")
    (other / "trainer.py").write_text(
        "from .deep import Base\nclass Trainer(Base):\n    def fit(self, epochs):\n"
        "        for epoch in range(epochs):\n            self.step()\n    def step(self): ...\n"
    )
    map_file = tmp_path / "mine.yaml"
    map_file.write_text(
        textwrap.dedent(
            """
            map: mine
            package: pkg
            spans:
              a.fit: {group: job, function: "pkg.mine:Mine.fit", attributes: {n: args.epochs}}
              a.step: {group: step, function: "pkg.mine:Mine.step", attributes: {n: caller.epoch}}
              a.save: {group: step, function: "pkg.mine:Mine.save"}
            metrics:
              other.kinds:Kind.log: {values: args.logs, series: {a.loss: {from: loss, optional: true}}}
            """
        )
    )
    monkeypatch.setenv("AUTOINSTR_SPAN_MAPS", str(map_file))
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "none")
    monkeypatch.chdir(tmp_path)
    assert main(["snapshot", ".", "-o", "all.json"]) == 0
    facts = from_json((tmp_path / "all.json").read_text())
    assert sorted(facts.modules) == [
        "other", "other.deep", "other.kinds", "other.trainer", "pkg", "pkg.mine",
    ]  # fmt: skip
    assert facts.modules["other"].imports == {"Trainer": "other.trainer:Trainer", "helper": "other.trainer:helper"}
    for where in (["--source", "."], ["--snapshot", "all.json"]):
        capsys.readouterr()
        assert main(["check", *where]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("4 targets, 0 labels, 2 arguments, 1 ")

    (other / "trainer.py").write_text("class Trainer:\n    def fit(self, epochs): ...\n    def steps(self): ...\n")
    assert main(["check", "--source", "."]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "absent" not in line] == [
        "mine.yaml:6:35: a.step: pkg.mine:Mine has no 'step', did you mean 'steps'?",
        "mine.yaml:7:35: a.save: pkg.mine:Mine has no 'save'",
        "2 missing",
    ]


def test_what_may_be_inherited_from_a_package_that_is_not_there(tmp_path: Path) -> None:
    package(tmp_path, mine="from other import Trainer\nclass Mine(Trainer): ...")
    outcome = check(tmp_path, 'a.fit: {group: job, function: "pkg.mine:Mine.fit"}')
    assert [row.state for row in outcome.rows] == [ABSENT]
    assert said(outcome) == [
        "m.yaml:4:33: pkg.mine:Mine.fit may be inherited from other, which was not read: it is not checked"
    ]


def test_the_caller_of_a_function_and_what_its_closure_holds(tmp_path: Path) -> None:
    package(
        tmp_path,
        work="def work(item): ...",
        loop="""
            def loop(items, flag):
                done = 0
                unused = 0
                def one():
                    attempt = done
                    return work(flag)
                return one
        """,
    )
    outcome = check(
        tmp_path,
        """
        a.a: {group: job, function: "pkg.work:work", attributes: {s: caller.attempt, t: caller.done, u: caller.flag}}
        a.b: {group: job, function: "pkg.work:work", attributes: {s: caller.unused}}
        """,
    )
    assert said(outcome) == ["m.yaml:5:3: s: no caller of work has a local 'unused' (loop.one)"]


def test_conditions_and_divisors_are_checked_and_a_default_may_be_missing(tmp_path: Path) -> None:
    folder = package(
        tmp_path,
        work="def work(size, parts): ...",
        loop="""
            from pkg import work
            def one():
                mode = 1
                work.work(4, 2)
            """,
    )
    outcome = check(
        folder,
        """
        a.good:
          group: job
          function: pkg.work:work
          only_when: {args.size: 4, caller.mode: 1}
          attributes: {n: args.size | div(args.parts), e: caller.epoch | default(0)}
        a.bad: {group: job, function: "pkg.work:work", only_when: {args.sise: 4, caller.mod: 1}}
        a.div: {group: job, function: "pkg.work:work", attributes: {n: args.size | div(args.part)}}
        """,
    )
    assert said(outcome) == [
        "m.yaml:9:3: only_when: work takes no 'sise', did you mean 'size'?",
        "m.yaml:9:3: only_when: no caller of work has a local 'mod' (one), did you mean 'mode'?",
        "m.yaml:10:3: n: work takes no 'part', did you mean 'parts'?",
    ]


def test_several_ways_to_a_value_and_one_is_enough(tmp_path: Path) -> None:
    package(tmp_path, train="def train(config): ...")
    outcome = check(
        tmp_path,
        """
        a.a: {group: job, function: "pkg.train:train", attributes: {s: [args.gone, args.config.seed]}}
        a.b: {group: job, function: "pkg.train:train", attributes: {s: [args.gone, args.confg]}}
        a.c: {group: job, function: "pkg.train:train", attributes: {s: [args.gone, "'text'"]}}
        a.d: {group: job, function: "pkg.train:train", attributes: {s: self.x, t: return.y, u: env.Z}}
        """,
    )
    assert said(outcome) == ["m.yaml:5:3: s: train takes no 'gone'"]


# -- the series of metric taps ----------------------------------------------------------------------------

LOGGER = """
    class Logger:
        def log(self, metrics, step, prefix=""): ...
"""


def taps(text: str) -> list[MetricTap]:
    section = textwrap.indent(textwrap.dedent(text).strip("\n"), "  ")
    loaded = load_map("map: m\npackage: pkg\nmetrics:\n" + section, "m.yaml", Catalog(lambda mistake: None).table)
    assert loaded.map is not None
    assert loaded.mistakes == []
    return list(loaded.map.metrics)


def check_taps(folder: Path, text: str) -> Outcome:
    found = taps(text)
    return fit(found, read_source({"pkg": folder / "pkg"}, callees_of(found), "here"))


def test_a_logger_key_is_found_however_it_is_written(tmp_path: Path) -> None:
    package(
        tmp_path,
        logger=LOGGER,
        train="""
            from dataclasses import asdict, dataclass

            @dataclass
            class Timings:
                data_time_s: float = 0.0

            def train(logger, name):
                metrics = {"in_a_literal": 1, f"efficiency/{name}_s": 2}
                metrics["in_a_subscript"] = 3
                metrics |= dict(in_a_call=4)
                metrics.update(in_an_update=5)
                metrics.setdefault("set_by_default", 6)
                metrics.update({f"of_{k}/mean": v for k, v in asdict(Timings()).items()})
                metrics["appended_to"].append(7)
                logger.log(metrics, 1, prefix="train")
        """,
    )
    names = (
        "in_a_literal",
        "in_a_subscript",
        "in_a_call",
        "in_an_update",
        "set_by_default",
        "data_time_s",
        "appended_to",
    )
    series = "\n".join(f"    a.{name}: {{from: {name}}}" for name in names)
    outcome = check_taps(
        tmp_path,
        "pkg.logger:Logger.log:\n  values: args.metrics\n  only_when: {args.prefix: train}\n  series:\n"
        + series
        + """
    b.first_of_a_list: {from: [renamed, in_a_literal]}
    b.pattern: {from: "efficiency/*_s"}
    b.one_of_a_pattern: {from: efficiency/idle_s}
    b.pattern_of_plain_keys: {from: "*_time_s"}
    b.of_a_comprehension: {from: of_reward/mean}""",
    )
    assert said(outcome) == []
    assert outcome.counts == {"targets": 1, "labels": 0, "arguments": 0, "logger keys": len(names) + 5}


def test_what_a_tap_needs_and_the_source_does_not_have(tmp_path: Path) -> None:
    package(
        tmp_path,
        logger=LOGGER,
        train="""
            def train(logger, key):
                logger.log({"reward": 1, f"{key}/mean": 2}, 1, prefix="train")
        """,
    )
    outcome = check_taps(
        tmp_path,
        """
        pkg.logger:Logger.log:
          - values: args.metrics
            series:
              a.key: {from: rewards}
              a.unknown: {from: entropy/mean}
              a.optional: {from: kl, optional: true}
              a.argument: {value: args.stpe}
              a.attribute: {from: reward, attributes: {k: args.run}}
          - {values: args.metrics, only_when: {args.prefix: trian}, series: {a.never: {from: reward}}}
          - {values: args.metrics, only_when: {args.prefix: [trian, ""]}, series: {a.by_default: {from: reward}}}
          - {values: args.values, series: {a.values: {from: reward}, a.values_too: {from: reward}}}
          - {values: args.metrics, only_when: {args.pre: train}, series: {a.condition: {from: reward}}}
        pkg.logger:Logger.logs:
          {values: args.metrics, series: {a.target: {from: reward}, a.target_too: {from: reward}}}
        pkg.gone:log:
          {values: args.metrics, series: {a.module: {from: reward}}}
        pkg.logger:Logger.flush:
          {values: args.metrics, optional: true, series: {a.flush: {from: reward}}}
        """,
    )
    assert said(outcome) == [
        "m.yaml:7:9: nothing writes the logger key 'rewards', did you mean 'reward'?",
        "m.yaml:8:9: nothing writes the logger key 'entropy/mean'",
        "m.yaml:10:9: Logger.log takes no 'stpe', did you mean 'step'?",
        "m.yaml:11:9: k: Logger.log takes no 'run'",
        "m.yaml:4:3: no Logger.log(prefix=trian), did you mean 'train'?",
        "m.yaml:4:3: Logger.log takes no 'values'",
        "m.yaml:4:3: Logger.log takes no 'pre', did you mean 'prefix'?",
        "m.yaml:16:3: pkg.logger:Logger has no 'logs', did you mean 'log'?",
        "m.yaml:9:9: nothing writes the logger key 'kl'",
        "m.yaml:18:3: there is no module pkg.gone",
        "m.yaml:20:3: pkg.logger:Logger has no 'flush'",
    ]
    assert [row.entry.name for row in outcome.rows if row.state == ABSENT] == ["a.optional", "a.module", "a.flush"]
    assert [row.entry.name for row in outcome.rows if row.state == THERE] == ["a.by_default"]
    lost = [row.entry.name for row in outcome.rows if row.state == MISSING and not row.findings]
    assert lost == ["a.values_too", "a.target_too"], "what is wrong with a function is said once"


# -- what is not ------------------------------------------------------------------------------------------


ARGUMENTS = """
map: m
package: pkg
arguments:
  pkg.engine:Engine.submit: {group: step, set: {trace_headers: trace_headers}}
  pkg.engine:Args.__init__: {group: step, set: {endpoint: traces_endpoint}}
  pkg.engine:Engine.send: {group: step, add: {header: trace_headers}}
  pkg.engine:Engine.sent: {group: step, add: {headers: trace_headers}}
  pkg.gone:Engine.send: {group: step, add: {headers: trace_headers}}
  elsewhere:Client.send: {group: step, add: {headers: trace_headers}}
"""


def test_arguments_that_calls_are_given(tmp_path: Path) -> None:
    package(
        tmp_path,
        engine="""
        from dataclasses import dataclass

        @dataclass
        class Args:
            endpoint: str = ""

        class Engine:
            def submit(self, prompt, trace_headers=None): ...
            def send(self, prompt, headers=None): ...
        """,
    )
    loaded = load_map(ARGUMENTS, "m.yaml", Catalog(lambda mistake: None).table)
    assert loaded.map is not None
    found = list(loaded.map.arguments)
    source = package_folder(tmp_path, "pkg")
    assert source is not None
    outcome = fit(found, read_source({"pkg": source}, callees_of(found), "here"))
    assert [row.state for row in outcome.rows] == [THERE, THERE, MISSING, MISSING, ABSENT]
    assert said(outcome) == [
        "m.yaml:7:3: Engine.send takes no 'header', did you mean 'headers'?",
        "m.yaml:8:3: pkg.engine:Engine has no 'sent', did you mean 'send'?",
        "m.yaml:9:3: there is no module pkg.gone",
    ]


def test_each_kind_of_loss_and_its_place(tmp_path: Path) -> None:
    package(
        tmp_path,
        timer=TIMER,
        train="""
            class Trainer:
                def fit(self, config):
                    total_steps = 0
                    with self.timer.time("total_step_time"):
                        pass
        """,
    )
    outcome = check(
        tmp_path,
        """
        a.function: {group: job, function: "pkg.train:Trainer.fitt"}
        a.class: {group: job, function: "pkg.train:Trainr.fit"}
        a.label: {group: step, block: "pkg.timer:Timer.time(label=total_steps_time)", inside: pkg.train}
        a.argument: {group: job, function: "pkg.train:Trainer.fit", attributes: {s: args.conf}}
        a.selector: {group: step, block: "pkg.timer:Timer.time(lable=total_step_time)", inside: pkg.train}
        a.local:
          group: step
          block: pkg.timer:Timer.time(label=total_step_time)
          inside: pkg.train
          attributes: {s: caller.total_step}
        """,
    )
    assert said(outcome) == [
        "m.yaml:4:38: pkg.train:Trainer has no 'fitt', did you mean 'fit'?",
        "m.yaml:5:35: pkg.train has no 'Trainr', did you mean 'Trainer'?",
        "m.yaml:6:33: pkg.train: no Timer.time(label=total_steps_time), did you mean 'total_step_time'?",
        "m.yaml:7:3: s: fit takes no 'conf', did you mean 'config'?".replace("fit", "Trainer.fit"),
        "m.yaml:8:36: Timer.time takes no 'lable', did you mean 'label'?",
        "m.yaml:8:36: pkg.train: no Timer.time(lable=total_step_time)",
        "m.yaml:9:3: s: no caller of Timer.time has a local 'total_step' (Trainer.fit), did you mean 'total_steps'?",
    ]


def test_what_a_release_does_not_have_is_absent(tmp_path: Path) -> None:
    package(tmp_path, timer=TIMER, train="def train(): ...", new__in__moved="def go(): ...")
    outcome = check(
        tmp_path,
        """
        a.module: {group: job, function: "pkg.ppo:train"}
        a.moved: {group: job, function: "pkg.moved:go"}
        a.optional: {group: job, function: "pkg.train:train_async", optional: true}
        a.label: {group: step, block: "pkg.timer:Timer.time(label=new)", inside: pkg.train, optional: true}
        a.inside: {group: step, block: "pkg.timer:Timer.time(label=new)", inside: pkg.ppo}
        a.some: {group: job, function: ["pkg.train:train", "pkg.ppo:train"]}
        a.half: {group: job, between: {begin: "pkg.train:train", end: "pkg.ppo:end"}}
        a.either: {group: job, function: [{first_of: ["pkg.old:train", "pkg.train:train"]}]}
        other: {group: job, function: "elsewhere.train:train"}
        """,
    )
    assert {row.entry.name: row.state for row in outcome.rows} == {
        "a.module": ABSENT,
        "a.moved": ABSENT,
        "a.optional": ABSENT,
        "a.label": ABSENT,
        "a.inside": ABSENT,
        "a.some": THERE,
        "a.half": ABSENT,
        "a.either": THERE,
    }, "a span of another package is not checked"
    assert outcome.problems == []
    assert "there is no module pkg.moved, did you mean 'pkg.new.moved'?" in [f.text for f in outcome.absent]


def test_a_part_of_a_row_that_an_earlier_release_had(tmp_path: Path) -> None:
    """A row may be true of several places. That one of them is lost is seen beside an earlier release only."""
    loops = 'def train(timer):\n    timer.time("train")\n\ndef train_async(timer):\n    timer.time("{}")\n'
    more = 'def part(timer):\n    timer.time("train")\n'
    package(tmp_path / "old", timer=TIMER, grpo=loops.format("train"), sync="def run(): ...", gone="def run(): ...")
    package(tmp_path / "new", timer=TIMER, grpo=loops.format("training"), sync="def run(): ...")
    package(tmp_path / "moved", timer=TIMER, grpo=loops.format("") + more, sync="def run(): ...", gone="def run(): ...")
    found = entries(
        """
        a.label: {group: step, block: "pkg.timer:Timer.time(label=train)", inside: pkg.grpo}
        a.some: {group: job, function: ["pkg.sync:run", "pkg.gone:run"]}
        a.either: {group: job, function: [{first_of: ["pkg.gone:run", "pkg.sync:run"]}]}
        """
    )
    old, new, moved = (
        fit(found, read_source({"pkg": tmp_path / name / "pkg"}, callees_of(found), name))
        for name in ("old", "new", "moved")
    )
    for outcome in (old, new, moved):
        assert {row.state for row in outcome.rows} == {THERE}
        note_losses(outcome, old)
    assert said(old) == []
    assert said(new) == [
        "m.yaml:4:33: pkg.grpo:train_async opened Timer.time(label=train) before",
        "m.yaml:5:51: pkg.gone:run was there before",
    ]
    assert said(moved) == [], "another function of the module opens it now"


# -- the source is read and never run ----------------------------------------------------------------------


def test_nothing_is_imported(tmp_path: Path) -> None:
    package(tmp_path, train='raise SystemExit("imported")\ndef train(): ...')
    before = set(sys.modules)
    assert said(check(tmp_path, 'a.a: {group: job, function: "pkg.train:train"}')) == []
    assert "pkg" not in set(sys.modules) - before


def test_a_file_that_is_no_python_costs_its_module(tmp_path: Path) -> None:
    package(tmp_path, broken="def (:", train="def train(): ...")
    unreadable: list[str] = []
    facts = read_source({"pkg": tmp_path / "pkg"}, (), "here", unreadable)
    assert list(facts.modules) == ["pkg", "pkg.train"]
    assert len(unreadable) == 1
    assert "broken.py" in unreadable[0]


def test_where_a_package_may_lie(tmp_path: Path) -> None:
    package(tmp_path / "flat")
    package(tmp_path / "layout" / "src")
    assert package_folder(tmp_path / "flat", "pkg") == tmp_path / "flat" / "pkg"
    assert package_folder(tmp_path / "layout", "pkg") == tmp_path / "layout" / "src" / "pkg"
    assert package_folder(tmp_path / "flat" / "pkg", "pkg") == tmp_path / "flat" / "pkg"
    assert package_folder(tmp_path, "pkg") is None


# -- snapshots ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1}', '{"format": 1, "release": 3}']
)
def test_what_is_no_snapshot(text: str) -> None:
    with pytest.raises(SnapshotError):
        from_json(text)


@pytest.mark.parametrize("release", RELEASES)
def test_every_map_fits_every_release(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", "--package", "nemo_rl", "--snapshot", str(SNAPSHOTS / f"nemo_rl-{release}.json")])
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed[:-1] if "(absent in this release)" not in line] == []
    assert status == 0
    assert "all there" in printed[-1]


@pytest.mark.parametrize("release", RELEASES)
def test_a_snapshot_holds_facts_and_stays_small(release: str) -> None:
    path = SNAPSHOTS / f"nemo_rl-{release}.json"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 320_000
    assert to_json(from_json(text)) == text
    assert from_json(text).release == release


@pytest.mark.parametrize("release", ["partial-sft-v2"])
def test_sft_v2_and_ppo_in_the_single_controller(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer than any tree that we have whole: the names were read from single files."""
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "nemo_rl.sft_v2,nemo_rl.single_controller")
    from autoinstr.cli.check import active_entries

    outcome = fit([entry for _, entry in active_entries(None)], facts_of(f"nemo_rl-{release}.json"))
    assert outcome.problems == []
    assert {row.entry.name for row in outcome.rows if row.state != THERE} == {"rl.sc.generate_and_push"}


def facts_of(name: str) -> Facts:
    return from_json((SNAPSHOTS / name).read_text(encoding="utf-8"))


def drifted(tmp_path: Path, change: Any) -> str:
    data = json.loads(MAIN.read_text(encoding="utf-8"))
    change(data)
    path = tmp_path / "drifted.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def rename(mapping: dict[str, Any], old: str, new: str) -> None:
    mapping[new] = mapping.pop(old)


def a_target(snapshot: Any) -> None:
    rename(snapshot["modules"]["nemo_rl.algorithms.sft"]["functions"][""], "sft_train", "sft_trains")


def an_argument(snapshot: Any) -> None:
    methods = snapshot["modules"]["nemo_rl.data_plane.adapters.transfer_queue"]["functions"]["TQDataPlaneClient"]
    methods["put_samples"] = methods["put_samples"].replace("partition_id", "partition")


def a_label(snapshot: Any) -> None:
    handed = snapshot["modules"]["nemo_rl.algorithms.dpo"]["calls"]["dpo_train"]["time"]
    handed["0"] = [label.replace("policy_training", "policy_trainings") for label in handed["0"]]


def a_local(snapshot: Any) -> None:
    found = snapshot["modules"]["nemo_rl.algorithms.rm"]["locals"]
    found["rm_train"] = found["rm_train"].replace("total_steps", "step_count")


def a_logger_key(snapshot: Any) -> None:
    snapshot["keys"] = snapshot["keys"].replace("mean_gen_tokens_per_sample", "mean_gen_tokens_per_samples")


def an_argument_of_the_logger(snapshot: Any) -> None:
    methods = snapshot["modules"]["nemo_rl.utils.logger"]["functions"]["Logger"]
    methods["log_metrics"] = methods["log_metrics"].replace("prefix", "namespace")


@pytest.mark.parametrize(
    ("change", "file", "line_holds", "problem"),
    [
        (
            a_target,
            "sft.yaml",
            "nemo_rl.algorithms.sft:sft_train",
            "rl.sft.job: nemo_rl.algorithms.sft has no 'sft_train', did you mean 'sft_trains'?",
        ),
        (
            an_argument,
            "data_plane.yaml",
            "rl.data_plane.put:",
            "rl.data_plane.put: rl.data_plane.partition: TQDataPlaneClient.put_samples takes no 'partition_id', "
            "did you mean 'partition'?",
        ),
        (
            a_label,
            "dpo.yaml",
            "Timer.time(label=policy_training)",
            "rl.dpo.policy_training: nemo_rl.algorithms.dpo: no Timer.time(label=policy_training), "
            "did you mean 'policy_trainings'?",
        ),
        (
            a_local,
            "rm.yaml",
            "rl.rm.step:",
            "rl.rm.step: rl.iteration: no caller of Timer.time has a local 'total_steps' (rm_train)",
        ),
        (
            a_logger_key,
            "metrics.yaml",
            "rl.response.length.mean:",
            "rl.response.length.mean: nothing writes the logger key 'mean_gen_tokens_per_sample', "
            "did you mean 'mean_gen_tokens_per_samples'?",
        ),
        (
            an_argument_of_the_logger,
            "metrics.yaml",
            "nemo_rl.utils.logger:Logger.log_metrics:",
            "rl.reward.mean: Logger.log_metrics takes no 'prefix'",
        ),
    ],
)
def test_drift_is_named_with_its_line(
    tmp_path: Path, change: Any, file: str, line_holds: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--package", "nemo_rl", "--snapshot", drifted(tmp_path, change)]) == 1
    printed = [line for line in capsys.readouterr().out.splitlines() if "absent in this release)" not in line]
    named = [line for line in printed if line.endswith(problem) or problem in line]
    assert len(named) == 1, printed
    assert printed[-1].partition(" ")[2].startswith("missing")
    place, _, line_number = named[0].partition(f"/{file}:")
    assert place.endswith("nemo_rl")
    lines = (Path(__file__).parents[2] / "span_maps" / "nemo_rl" / file).read_text().splitlines()
    assert line_holds in lines[int(line_number.partition(":")[0]) - 1]


# -- the commands ------------------------------------------------------------------------------------------


def test_snapshot_then_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "tree", train="def train(config): ...")
    map_file = tmp_path / "mine.yaml"
    map_file.write_text("map: mine\npackage: pkg\nspans:\n  mine.job: {group: job, function: 'pkg.train:train'}\n")
    monkeypatch.setenv("AUTOINSTR_SPAN_MAPS", str(map_file))
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "none")
    out = tmp_path / "pkg.json"
    assert main(["snapshot", str(tmp_path / "tree"), "-o", str(out), "--release", "1.0"]) == 0
    assert main(["check", "--snapshot", str(out)]) == 0
    assert main(["check", "--source", str(tmp_path / "tree")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: pkg of 1.0, 2 modules",
        "1 targets, 0 labels, 0 arguments, 0 logger keys: all there",
        "1 targets, 0 labels, 0 arguments, 0 logger keys: all there",
    ]
    assert main(["snapshot", str(tmp_path / "tree")]) == 0
    assert json.loads(capsys.readouterr().out)["release"] == "tree"
    assert main(["check", "--table", "--snapshot", str(out), str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| `mine.job` | job | yes | yes |"

    (tmp_path / "tree" / "pkg" / "train.py").write_text("def trains(config): ...\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--source", "tree"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "mine.yaml:4:36: mine.job: pkg.train has no 'train', did you mean 'trains'?",
        "1 missing",
    ]


def test_what_an_earlier_release_had(capsys: pytest.CaptureFixture[str]) -> None:
    """A module that is gone is no problem by itself, and one where it was there before."""
    new, old = (str(SNAPSHOTS / f"nemo_rl-{release}.json") for release in ("v0.7.0", "main-20260822"))
    assert main(["check", "--package", "nemo_rl", "--snapshot", new]) == 0
    assert main(["check", "--package", "nemo_rl", "--snapshot", new, "--since", old]) == 1
    lost = [line for line in capsys.readouterr().out.splitlines() if "rl.sc.job:" in line]
    assert [line.endswith("(absent in this release)") for line in lost] == [True, False]


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("v0.4.0", "v0.5.0", []),
        ("v0.5.0", "v0.6.0", []),
        ("v0.6.0", "v0.7.0", []),
        # one thread per prompt group became one per batch
        ("v0.7.0", "main-20260822", ["rl.grpo.generation"]),
        ("main-20260822", "lens-with-goodput", []),
        ("main-20260822", "newest", []),
    ],
)
def test_no_release_lost_a_span_unseen(old: str, new: str, lost: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(SNAPSHOTS / f"nemo_rl-{release}.json") for release in (new, old)]
    main(["check", "--package", "nemo_rl", "--snapshot", files[0], "--since", files[1]])
    printed = capsys.readouterr().out.splitlines()[:-1]
    assert [line.split(": ")[1] for line in printed if not line.endswith("(absent in this release)")] == lost


def test_the_table_in_the_documentation_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """A span that a release gains or loses shows here first."""
    files = [str(SNAPSHOTS / f"nemo_rl-{release}.json") for release in RELEASES]
    assert main(["check", "--table", "--package", "nemo_rl", "--snapshot", *files]) == 0
    page = (Path(__file__).parents[2] / "docs" / "nemo-rl.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page


def test_what_can_not_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["check", "--package", "nemo_rl", "--source", str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err == "autoinstr check: nemo_rl is not in empty: its maps are not checked\n"
    assert main(["check", "--snapshot", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
    assert main(["snapshot", str(tmp_path / "empty")]) == 1
    assert "has no package" in capsys.readouterr().err
    assert main(["check", "--package", "nemo_lr"]) == 1
    assert capsys.readouterr().out == "autoinstr check: no active map has a span or a metric tap for nemo_lr\n"
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "none")
    assert main(["check"]) == 1


@pytest.mark.parametrize("arguments", [["check", "--source", "gone"], ["snapshot", "gone"]])
def test_a_folder_that_is_not_there_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(": there is no folder 'gone', or it may not be read")

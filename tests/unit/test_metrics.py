"""Metric taps: the map, the calls, and the series that came out."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import inspect
import math
import pickle
import socket
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from made_modules import Make
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from autoinstr.maps import loader
from autoinstr.maps.catalog import Catalog
from autoinstr.maps.metric_model import LoggerKey, SeriesEntry, layered_taps
from autoinstr.maps.model import Place
from autoinstr.metrics import exporting, health, host_memory, readout, switch
from autoinstr.metrics.bucket_time import BucketTime
from autoinstr.metrics.instruments import Instruments
from autoinstr.metrics.phases import PhaseDurations
from autoinstr.metrics.scalars import ElsewhereError, scalar
from autoinstr.patch.ledger import Ledger, Record
from autoinstr.spans import GROUP_ATTRIBUTE
from autoinstr.spans.opening import BUCKET_ATTRIBUTE, SCOPE_NAME
from autoinstr.testing import MapMistakes, Recording, record

FAKE = Path(__file__).parents[1] / "fake_training"
TABLE = Catalog(lambda mistake: pytest.fail(str(mistake))).table

LOGGER = """
class Logger:
    def __init__(self):
        self.seen = []

    def log_metrics(self, metrics, step, prefix="", step_metric=None):
        '''Log.'''
        self.seen.append((metrics, step, prefix))
        return step
"""

MAP = """
map: toy
package: {m}
metrics:
  {m}:Logger.log_metrics:
    values: args.metrics
    only_when: {args.prefix: [train, ""]}
    series:
"""


def toy_map(module: types.ModuleType, *series: str) -> str:
    """A map that taps `Logger.log_metrics` of `module` with these series, one a line."""
    return MAP.replace("{m}", module.__name__) + "\n".join(f"      {line}" for line in series)


# -- values -------------------------------------------------------------------------------------------


def test_a_key_is_a_series(make: Make) -> None:
    module = make(LOGGER)
    text = toy_map(
        module,
        "my.loss: {from: loss}",
        "my.tokens: {from: tokens, kind: counter, unit: '{token}', about: tokens so far}",
        "my.waiting: {from: waiting, kind: up_down_counter}",
        "my.length: {from: length, kind: histogram, unit: '{token}', boundaries: [10, 100]}",
    )
    with record(text=text) as run:
        logger = module.Logger()
        for step in (1, 2):
            given = {"loss": 1 / step, "tokens": 5, "waiting": 3 - 2 * step, "length": 10 * step, "other": 1}
            assert logger.log_metrics(given, step, prefix="train") == step
            assert logger.seen[-1] == (given, step, "train")
            assert logger.seen[-1][0] is given
        assert (
            run.series()
            == """
            my.length histogram {token} count=2 sum=30.0
            my.loss gauge 0.5
            my.tokens counter {token} 10
            my.waiting up_down_counter 0
        """
        )


def test_only_the_calls_that_the_map_wants(make: Make) -> None:
    module = make(LOGGER)
    with record(text=toy_map(module, "my.loss: {from: loss}")) as run:
        log = module.Logger().log_metrics
        log({"loss": 1.0}, 1, prefix="validation")
        log({"loss": 2.0}, 1, "timing/train")
        assert run.series() == ""
        log({"loss": 3.0}, 1)  # the default is one of those
        assert run.series() == "my.loss gauge 3.0"
        log({"loss": 4.0}, step=1, prefix="train")
        log({"loss": 5.0}, 1, None)
        assert run.series() == "my.loss gauge 4.0"


def test_selectors_of_the_target_say_the_same(make: Make) -> None:
    module = make(LOGGER)
    text = f"""
    map: toy
    package: {module.__name__}
    metrics:
      {module.__name__}:Logger.log_metrics(prefix=train|eval*):
        values: args.metrics
        series: {{my.loss: {{from: loss}}}}
    """
    with record(text=text) as run:
        log = module.Logger().log_metrics
        log({"loss": 1.0}, 1, "train")
        log({"loss": 2.0}, 2, "other")
        assert run.series() == "my.loss gauge 1.0"
        log({"loss": 3.0}, 2, "evaluate")
        assert run.series() == "my.loss gauge 3.0"


def test_a_growing_set_of_keys_is_one_series_with_an_attribute(make: Make) -> None:
    module = make(LOGGER)
    text = toy_map(
        module,
        "my.seconds:",
        "  from: 'efficiency/*_s'",
        "  unit: s",
        "  attributes: {my.category: '*', my.constant: \"'here'\"}",
        "  table:",
        "    idle/wait: {my.window: step, my.exact: true}",
        "    init/total: {my.window: run}",
        "my.setup: {from: ['*_time_s', '*_s'], unit: s, attributes: {my.part: '*'}}",
    )
    with record(text=text) as run:
        module.Logger().log_metrics(
            {"efficiency/idle/wait_s": 1.5, "efficiency/init/total_s": 2, "efficiency/total_waste_s": 9.0, "_s": 7.0}, 1
        )
        # an aggregate beside the categories is not in the table, and the other pattern takes what it likes
        assert (
            run.series("my.seconds")
            == """
            my.seconds gauge s 1.5 my.category='idle/wait' my.constant='here' my.exact=True my.window='step'
            my.seconds gauge s 2.0 my.category='init/total' my.constant='here' my.window='run'
        """
        )
        module.Logger().log_metrics({"ray_init_time_s": 3.0, "data_s": 4.0, "_time_s": 5.0}, 1)
        assert [line for line in run.series("my.setup").lines if "efficiency" not in line] == [
            "my.setup gauge s 3.0 my.part='ray_init'",
            "my.setup gauge s 4.0 my.part='data'",
            "my.setup gauge s 5.0 my.part='_time'",
        ]


def test_the_first_key_that_is_there(make: Make) -> None:
    module = make(LOGGER)
    with record(text=toy_map(module, "my.reward: {from: [reward/mean, reward]}")) as run:
        log = module.Logger().log_metrics
        log({"reward": 1.0}, 1)
        assert run.series() == "my.reward gauge 1.0"
        log({"reward": 2.0, "reward/mean": 3.0}, 1)
        assert run.series() == "my.reward gauge 3.0"
        log({"reward/mean": 4.0, "reward": 5.0}, 1)
        assert run.series() == "my.reward gauge 4.0"


@pytest.mark.parametrize(
    ("pattern", "key", "star"),
    [("a/*_s", "a/b_s", "b"), ("a/*_s", "a/_s", None), ("*", "x", "x"), ("*_s", "b_s", "b"), ("a/*", "b/c", None)],
)
def test_what_the_star_stands_for(pattern: str, key: str, star: str | None) -> None:
    assert LoggerKey(pattern).match(key) == star


class Colour(enum.IntEnum):
    RED = 3


class Odd:
    """Nothing of it may be touched."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit("touched")

    __float__ = __int__ = __bool__ = __eq__ = __str__ = __repr__ = lambda self, *_: (_ for _ in ()).throw(SystemExit())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1), (1.5, 1.5), (True, None), ("1", None), (None, None), ([1.0], None), ({"a": 1}, None), (1j, None),
        (Colour.RED, 3), (10**30, 1e30), (-(10**30), -1e30), (2**53, 2**53),
        (np.float64(1.5), 1.5), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), None),
        (np.array(2.5), 2.5), (np.array([2.5]), None), (np.array(True), None), (np.complex64(1), None),
        (np.str_("x"), None), (np.datetime64("2026-01-01"), None)
    ],
)  # fmt: skip
def test_scalars(value: Any, expected: float | None) -> None:
    found = scalar(value)
    assert found == expected
    assert type(found) in (int, float, type(None))


def test_what_is_unknown_is_not_touched() -> None:
    assert scalar(Odd()) is None


class _Device:
    def __init__(self, kind: str) -> None:
        self.type = kind


def fake_torch() -> types.ModuleType:
    """What of torch is asked for, without torch."""
    torch: Any = types.ModuleType("torch")
    torch.bool = "bool"

    class Tensor:
        def __init__(self, value: Any, device: str = "cpu", ndim: int = 0, dtype: str = "float32") -> None:
            self._value, self.device, self.ndim, self.dtype = value, _Device(device), ndim, dtype

        def is_complex(self) -> bool:
            return False

        def item(self) -> Any:
            assert self.device.type == "cpu", "a device was asked"
            return self._value

    class Parameter(Tensor):
        pass

    class DTensor(Tensor):
        def item(self) -> Any:
            raise AssertionError("other ranks were asked")

    for cls in (Tensor, Parameter, DTensor):
        cls.__module__ = "torch"
        setattr(torch, cls.__name__, cls)
    torch.nn = types.SimpleNamespace(Parameter=Parameter)
    return torch


def test_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = fake_torch()
    assert scalar(torch.Tensor(1.5)) is None, "torch is not imported: it can't be a tensor"
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert scalar(torch.Tensor(1.5)) == 1.5
    assert scalar(torch.Parameter(2.5)) == 2.5
    assert scalar(torch.Tensor(1.5, ndim=1)) is None
    assert scalar(torch.Tensor(True, dtype="bool")) is None
    assert scalar(torch.DTensor(1.5)) is None
    with pytest.raises(ElsewhereError, match="a tensor on cuda"):
        scalar(torch.Tensor(1.5, "cuda"))


def test_a_bad_value_is_said_once_and_silences_nothing_else(
    make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    module = make(LOGGER)
    text = toy_map(
        module,
        "my.nan: {from: nan}",
        "my.infinite: {from: infinite, kind: histogram}",
        "my.shrinks: {from: shrinks, kind: counter}",
        "my.far: {from: far}",
        "my.odd: {from: odd}",
        "my.flag: {from: flag}",
        "my.good: {from: good}",
    )
    given = {"nan": math.nan, "infinite": math.inf, "shrinks": -1, "far": torch.Tensor(1.0, "cuda"), "odd": Odd()}
    with record(text=text) as run:
        for _ in range(3):
            module.Logger().log_metrics({**given, "flag": True, 7: 8, "good": np.array(0.25)}, 1)
        assert run.series() == "my.good gauge 0.25"
    assert capsys.readouterr().err.splitlines() == [
        "autoinstr: my.nan: nan is left out (from 'nan'); said once",
        "autoinstr: my.infinite: inf is left out (from 'infinite'); said once",
        "autoinstr: my.shrinks: -1 is left out (from 'shrinks'): a counter only grows",
        "autoinstr: my.far: 'far' is a tensor on cuda and is left out: reading it would make training wait",
    ]


def test_a_sum_that_no_integer_of_otlp_holds_does_not_silence_the_rest(make: Make) -> None:
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    module = make(LOGGER)
    with record(text=toy_map(module, "my.tokens: {from: tokens, kind: counter}", "my.loss: {from: loss}")) as run:
        for _ in range(3):
            module.Logger().log_metrics({"tokens": 2**63 - 1, "loss": 0.5}, 1)
        data = run.metric_reader.get_metrics_data()
    encoded = encode_metrics(data)
    metrics = {m.name: m for r in encoded.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert metrics["my.tokens"].sum.data_points[0].as_double == 3 * 2.0**63
    assert metrics["my.loss"].gauge.data_points[0].as_double == 0.5


class Refusing(dict):
    def items(self) -> Any:
        raise SystemExit("no")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, ""),
        (5, "its values are no mapping (int)"),
        ([1], "its values are no mapping (list)"),
        (Refusing(loss=1.0), "SystemExit: no"),
    ],
)
def test_what_is_no_mapping_reaches_the_function_as_it_is(make: Make, given: Any, why: str, capsys: Any) -> None:
    module = make(LOGGER)
    with record(text=toy_map(module, "my.loss: {from: loss}")) as run:
        logger = module.Logger()
        logger.log_metrics(given, 1)
        logger.log_metrics(given, 2)
        assert logger.seen[0][0] is given
        assert run.series() == ""
    what = f"the metrics of a call of {module.__name__}:Logger.log_metrics are left out"
    assert capsys.readouterr().err == (f"autoinstr: {what}: {why}\n" if why else "")


def test_wrong_arguments_raise_as_they_do_without_us(make: Make) -> None:
    module = make(LOGGER)
    with pytest.raises(TypeError) as plain:
        module.Logger().log_metrics()
    with record(text=toy_map(module, "my.loss: {from: loss}")), pytest.raises(TypeError) as tapped:
        module.Logger().log_metrics()
    assert str(tapped.value) == str(plain.value)


# -- values of calls ----------------------------------------------------------------------------------

ENGINE = """
import asyncio
import contextlib

class Engine:
    model = "toy-1"

    def generate(self, batch, greedy=False):
        if greedy:
            raise ValueError("greedy")
        return {"lengths": [2 * n for n in batch["lengths"]]}

    async def generate_later(self, batch):
        await asyncio.sleep(0)
        return self.generate(batch)

    def generate_each(self, batch):
        yield from batch["lengths"]

    async def generate_as_it_goes(self, batch):
        for n in batch["lengths"]:
            await asyncio.sleep(0)
            yield {"lengths": [n]}
        if not batch["lengths"]:
            raise ValueError("nothing to generate")
"""


def engine_map(module: types.ModuleType, method: str, *more: str) -> str:
    lines = [
        "map: toy",
        f"package: {module.__name__}",
        "metrics:",
        f"  {module.__name__}:Engine.{method}:",
        "    series:",
        "      my.tokens:",
        "        - {value: args.batch.lengths | sum, kind: histogram, attributes: {my.type: \"'input'\"}}",
        "        - {value: return.lengths | sum, kind: histogram, attributes: {my.type: \"'output'\"}}",
        "      my.duration: {value: duration, kind: histogram, unit: s, attributes: {my.model: self.model}}",
        *more,
    ]
    return "\n".join(lines)


def test_arguments_return_and_duration(make: Make) -> None:
    module = make(ENGINE)
    with record(text=engine_map(module, "generate")) as run:
        engine = module.Engine()
        assert engine.generate({"lengths": [1, 2]}) == {"lengths": [2, 4]}
        assert (
            run.series("my.tokens")
            == """
            my.tokens histogram count=1 sum=3.0 my.type='input'
            my.tokens histogram count=1 sum=6.0 my.type='output'
        """
        )
        (duration,) = run.series("my.duration").lines
        assert duration.startswith("my.duration histogram s count=1 sum=")
        assert duration.endswith("my.model='toy-1'")
        with pytest.raises(ValueError, match="greedy"):
            engine.generate({"lengths": [1]}, greedy=True)
        # it was asked for: its input counts; it gave nothing
        assert (
            run.series("my.tokens")
            == """
            my.tokens histogram count=1 sum=6.0 my.type='output'
            my.tokens histogram count=2 sum=4.0 my.type='input'
        """
        )


def test_a_coroutine(make: Make) -> None:
    module = make(ENGINE)
    with record(text=engine_map(module, "generate_later")) as run:
        assert inspect.iscoroutinefunction(module.Engine.generate_later)
        assert asyncio.run(module.Engine().generate_later({"lengths": [5]})) == {"lengths": [10]}
        assert len(run.series("my.duration").lines) == 1
        assert "my.tokens histogram count=1 sum=10.0 my.type='output'" in run.series("my.tokens").lines


def test_a_generator_is_left_alone_where_its_end_is_asked_for(make: Make) -> None:
    module = make(ENGINE)
    original = module.Engine.generate_each
    with record(text=engine_map(module, "generate_each")) as run:
        assert module.Engine.generate_each is original
        assert [r.state for r in run.ledger.records] == ["refused"]
    assert "a generator has neither a return nor a duration" in run.notices[0]


def test_an_async_generator_returns_its_last_item(make: Make) -> None:
    module = make(ENGINE)

    async def all_of(engine: Any, *lengths: int) -> list[Any]:
        return [item async for item in engine.generate_as_it_goes({"lengths": list(lengths)})]

    async def the_first_of(engine: Any, *lengths: int) -> Any:
        async with contextlib.aclosing(engine.generate_as_it_goes({"lengths": list(lengths)})) as items:
            return await items.__anext__()

    with record(text=engine_map(module, "generate_as_it_goes")) as run:
        engine = module.Engine()
        assert inspect.isasyncgenfunction(module.Engine.generate_as_it_goes)
        assert asyncio.run(all_of(engine, 5, 6)) == [{"lengths": [5]}, {"lengths": [6]}]
        assert (
            run.series("my.tokens")
            == """
            my.tokens histogram count=1 sum=11.0 my.type='input'
            my.tokens histogram count=1 sum=6.0 my.type='output'
        """
        )
        (duration,) = run.series("my.duration").lines
        assert duration.startswith("my.duration histogram s count=1 ")

        # one that fails, or is closed early, has no end that could be measured; what it was given counts
        with pytest.raises(ValueError, match="^nothing to generate$"):
            asyncio.run(all_of(engine))
        assert asyncio.run(the_first_of(engine, 1, 2)) == {"lengths": [1]}
        assert (
            run.series("my.tokens")
            == """
            my.tokens histogram count=1 sum=6.0 my.type='output'
            my.tokens histogram count=3 sum=14.0 my.type='input'
        """
        )
        assert run.series("my.duration").lines == [duration]


def test_a_followed_async_generator_takes_what_its_consumer_sends_and_throws(make: Make) -> None:
    module = make(
        """
class Engine:
    model = "toy-1"

    async def answer(self, batch):
        word = "ready"
        while word is not None:
            try:
                word = yield {"lengths": [len(word)]}
            except KeyError as error:
                word = error.args[0]
"""
    )

    async def main() -> list[Any]:
        answers = module.Engine().answer({"lengths": [1]})
        given = [await answers.__anext__(), await answers.asend("four"), await answers.athrow(KeyError("nine long"))]
        with pytest.raises(StopAsyncIteration):
            await answers.asend(None)
        return [n for item in given for n in item["lengths"]]

    with record(text=engine_map(module, "answer")) as run:
        assert asyncio.run(main()) == [5, 4, 9]
        assert "my.tokens histogram count=1 sum=9.0 my.type='output'" in run.series("my.tokens").lines


def test_a_tap_and_a_span_on_one_function(make: Make) -> None:
    module = make(ENGINE)
    original = vars(module.Engine)["generate"]
    name = module.__name__
    more = ["spans:", f"  my.generate: {{group: generation, function: '{name}:Engine.generate'}}"]
    with record(text=engine_map(module, "generate", *more)) as run:
        module.Engine().generate({"lengths": [1]})
        assert run.tree() == "my.generate [productive]"
        assert len(run.series().lines) == 3
    assert vars(module.Engine)["generate"] is original


# -- patches ------------------------------------------------------------------------------------------


def test_off_means_the_original_and_undo_brings_it_back(make: Make) -> None:
    module = make(LOGGER)
    original = vars(module.Logger)["log_metrics"]
    with record(text=f"map: toy\npackage: {module.__name__}"):
        assert vars(module.Logger)["log_metrics"] is original
    with record(text=toy_map(module, "my.loss: {from: loss}")) as run:
        tapped = vars(module.Logger)["log_metrics"]
        assert tapped is not original
        assert type(tapped) is types.FunctionType
        assert inspect.signature(tapped) == inspect.signature(original)
        assert tapped.__doc__ == "Log."
        assert [(r.target, r.state) for r in run.ledger.records] == [
            (f"{module.__name__}:Logger.log_metrics", "applied")
        ]
        bound = module.Logger().log_metrics
    assert vars(module.Logger)["log_metrics"] is original
    bound({"loss": 1.0}, 1)
    assert run.series() == "", "a method that was taken before records nothing afterwards"


def test_a_missing_target_is_said_and_an_optional_one_is_not(make: Make) -> None:
    module = make(LOGGER)
    text = toy_map(module, "my.loss: {from: loss}").replace("log_metrics:", "log_metric:")
    with record(text=text) as run:
        pass
    assert run.notices == [
        f"<text>:4:3: metrics of {module.__name__}:Logger.log_metric: {module.__name__}.Logger has no 'log_metric', "
        "did you mean 'log_metrics'?; they are left out"
    ]
    assert [record.said for record in run.ledger.records] == [True]
    with record(text=text.replace("    values", "    optional: true\n    values")) as run:
        pass
    assert run.notices == []
    assert [record.said for record in run.ledger.records] == [False]


def test_several_taps_on_one_function_are_one_patch(make: Make) -> None:
    module = make(LOGGER)
    name = module.__name__
    text = f"""
    map: toy
    package: {name}
    metrics:
      {name}:Logger.log_metrics:
        - values: args.metrics
          only_when: {{args.prefix: train}}
          series: {{my.loss: {{from: loss}}}}
        - values: args.metrics
          only_when: {{args.prefix: timing/setup, args.step: 0}}
          series: {{my.setup: {{from: '*_s', unit: s, attributes: {{my.part: '*'}}}}}}
    """
    with record(text=text) as run:
        assert len(run.ledger.installed) == 1
        log = module.Logger().log_metrics
        log({"loss": 1.0, "ray_s": 5.0}, 0, "train")
        log({"loss": 2.0, "ray_s": 6.0}, 0, "timing/setup")
        log({"ray_s": 7.0}, 1, "timing/setup")
        assert (
            run.series()
            == """
            my.loss gauge 1.0
            my.setup gauge s 6.0 my.part='ray'
        """
        )


def test_a_tapped_class_pickled_by_value_does_nothing(make: Make) -> None:
    module = make(LOGGER)
    with record(text=toy_map(module, "my.loss: {from: loss}")) as run:
        cloudpickle.register_pickle_by_value(module)
        try:
            copied = pickle.loads(cloudpickle.dumps(module.Logger))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        logger = copied()
        assert logger.log_metrics({"loss": 1.0}, 3) == 3
        assert logger.seen == [({"loss": 1.0}, 3, "")]
        assert run.series() == ""


def test_many_threads_lose_no_delta(make: Make) -> None:
    module = make(LOGGER)
    with record(text=toy_map(module, "my.tokens: {from: tokens, kind: counter}")) as run:
        log = module.Logger().log_metrics
        threads = [threading.Thread(target=lambda: [log({"tokens": 1}, n) for n in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run.series() == "my.tokens counter 4000"


def test_ever_new_keys_do_not_fill_the_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoinstr.metrics.taps._MAX_ROUTES", 3)
    module = make(LOGGER)
    with record(text=toy_map(module, "my.loss: {from: loss}")) as run:
        log = module.Logger().log_metrics
        for n in range(10):
            log({f"key{n}": 1.0, "loss": float(n)}, n)
        (tap,) = run.ledger.installed[0].plans
        assert len(tap._routes) == 3
        assert run.series() == "my.loss gauge 9.0"


def test_one_name_of_two_kinds_in_two_maps(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = make(LOGGER)
    text = toy_map(module, "my.loss: {from: loss}")
    other = tmp_path / "other.yaml"
    other.write_text(
        toy_map(module, "my.lost: {from: loss}")
        .replace("map: toy", "map: other")
        .replace("my.lost", "my.loss")
        .replace("{from: loss}", "{from: loss, kind: counter}")
    )
    with record(other, text=text) as run:
        module.Logger().log_metrics({"loss": 1.0}, 1)
        # the text is a layer above: its series replaces the other one
        assert run.series() == "my.loss gauge 1.0"
    assert capsys.readouterr().err == ""


# -- the language -------------------------------------------------------------------------------------

MISTAKES = {
    "unknown key": ("my.a: {form: a}", "8:14: unknown key 'form' in the series 'my.a', did you mean 'from'?"),
    "neither": ("my.a: {kind: gauge}", "8:13: the series 'my.a' needs one of 'from' (a key of the values) and "
                                       "'value' (a value path) (has none)"),
    "both": ("my.a: {from: a, value: duration}", "8:13: the series 'my.a' needs one of 'from' (a key of the values) "
                                                 "and 'value' (a value path) (has both)"),
    "kind": ("my.a: {from: a, kind: guage}", "8:29: unknown kind 'guage', did you mean 'gauge'?"),
    "two stars": ("my.a: {from: 'a*b*'}", "8:20: 'a*b*' has more than one '*'"),
    "no star": ("my.a: {from: a, attributes: {b: '*'}}", "8:13: the series 'my.a' has nothing that '*' could stand "
                                                         "for: its 'from' holds no '*'"),
    "iteration": ("my.a: {from: a, attributes: {b: args.step}}",
                  "8:39: 'args.step' counts steps: each would be a time series of its own in the backend"),
    "iteration's name": ("my.a: {from: a, attributes: {rl.iteration: args.n}}",
                         "8:50: 'rl.iteration' counts steps: each would be a time series of its own in the backend"),
    "boundaries": ("my.a: {from: a, boundaries: [1, 2]}", "8:13: boundaries go with a histogram, not with a gauge"),
    "order": ("my.a: {from: a, kind: histogram, boundaries: [2, 1]}", "8:52: boundaries must be a list of rising "
                                                                      "numbers"),
    "name": ("'my a': {from: a}", "8:7: 'my a' is no name of a series (letters, digits, . _ - /)"),
    "unit": ("my.a: {from: a, unit: ü}", "8:29: 'ü' is no unit (at most 63 ASCII characters)"),
    "caller": ("my.a: {value: caller.x}", "8:21: the value of a series does not come from the caller"),
    "path": ("my.a: {value: arg.x}", "8:21: a value path starts with args, self, return, outcome, caller, env, not "
                                     "'arg', did you mean 'args'?"),
    "outcome": ("my.a: {value: outcome}", "8:21: the value of a series does not come from the outcome"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_costs_its_series_only(make: Make, name: str) -> None:
    module = make(LOGGER)
    wrong, text = MISTAKES[name]
    series = "my a" if name == "name" else "my.a"
    loaded = loader.load_map(toy_map(module, wrong, "my.good: {from: good}").lstrip("\n"), "m.yaml", TABLE)
    assert [str(m) for m in loaded.mistakes] == [f"m.yaml:{text}; the series {series!r} is left out"]
    assert loaded.map is not None
    assert [s.name for tap in loaded.map.metrics for s in tap.series] == ["my.good"]


def test_a_wrong_tap_leaves_the_others_and_the_spans(make: Make) -> None:
    text = """
map: toy
package: toy
spans:
  toy.job: {group: job, function: toy:job}
metrics:
  no target: {series: {a: {value: duration}}}
  toy:one: {values: return.x, series: {a: {from: a}}}
  toy:two: {only_when: {return.x: 1}, series: {a: {value: duration}}}
  toy:three: {}
  toy:four: {series: {a: {from: a}}}
  toy:good: {series: {toy.seconds: {value: duration, unit: s}}}
""".lstrip("\n")
    loaded = loader.load_map(text, "m.yaml", TABLE)
    assert [str(m) for m in loaded.mistakes] == [
        "m.yaml:6:3: 'no target' is no target; write package.module:Class.method; the tap is left out",
        "m.yaml:7:21: values reads args or self, not 'return'; the tap is left out",
        "m.yaml:8:25: only_when reads args, self, caller or env, not 'return.x'; the tap is left out",
        "m.yaml:9:14: the tap on toy:three needs series; the tap is left out",
        "m.yaml:10:26: the series 'a' has 'from', but its tap has no 'values' that hold the key; "
        "the series 'a' is left out",
    ]
    assert loaded.map is not None
    assert [e.name for e in loaded.map.spans] == ["toy.job"]
    assert [str(t.target) for t in layered_taps([(0, loaded.map)])] == ["toy:good"]


@pytest.mark.parametrize("metrics", ["5", "[a]", "text"])
def test_metrics_that_are_no_mapping_cost_the_metrics(metrics: str) -> None:
    text = f"map: toy\npackage: toy\nspans:\n  toy.job: {{group: job, function: toy:job}}\nmetrics: {metrics}\n"
    loaded = loader.load_map(text, "m.yaml", TABLE)
    assert "metrics must be a mapping" in str(loaded.mistakes[0])
    assert loaded.map is not None
    assert len(loaded.map.spans) == 1


def test_a_mistake_is_an_error_in_a_test(make: Make) -> None:
    module = make(LOGGER)
    with pytest.raises(MapMistakes, match="unknown kind"), record(text=toy_map(module, "a: {from: a, kind: x}")):
        pass


def test_a_series_of_a_higher_layer_replaces_or_removes(make: Make, tmp_path: Path) -> None:
    module = make(LOGGER)
    below = tmp_path / "below.yaml"
    below.write_text(toy_map(module, "my.a: {from: a}", "my.b: {from: b}", "my.c: {from: c}"))
    above = toy_map(module, "my.a: {from: other}", "my.b: {disabled: true}").replace("map: toy", "map: mine")
    with record(below, text=above) as run:
        module.Logger().log_metrics({"a": 1.0, "b": 2.0, "c": 3.0, "other": 4.0}, 1)
        assert (
            run.series()
            == """
            my.a gauge 4.0
            my.c gauge 3.0
        """
        )


# -- the shipped map ----------------------------------------------------------------------------------

TRAIN = {
    "reward": 0.5, "kl_penalty": 0.25, "loss": -0.125, "critic/loss": 2.0, "approx_entropy": 1.5,
    "mean_gen_tokens_per_sample": 64, "grad_norm": np.array(2.5, dtype=np.float32), "lr": 1e-3,
    "vllm/prompt_tokens": 100, "vllm/generation_tokens": 200, "vllm/prompt_length_mean": 10.0,
    "vllm/generation_length_mean": 20.0, "vllm/generations_ok": 8, "vllm/generations_failed": 1,
    "num_prompts": 4, "table": [1, 2],
}  # fmt: skip
CATEGORIES = {
    "init/total": ("wall_clock", "run", "overhead"),
    "idle/buffer_starvation": ("wall_clock", "step", "idle"),
    "idle/refit_bubble": ("wall_clock", "step", "idle"),
    "idle/validation": ("wall_clock", "step", "idle"),
    "idle/refit_event_wait": ("collector_wall_clock", "run", "idle"),
    "idle/generation_limit_pause": ("collector_wall_clock", "run", "idle"),
    "idle/buffer_full_backoff": ("thread_seconds", "run", "idle"),
    "wasted/failed_trajectory": ("thread_seconds", "run", "wasted"),
}


@pytest.fixture
def fake_nemo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FAKE))
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nemo_rl"}
    for name in before:
        del sys.modules[name]
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "nemo_rl"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("fake_nemo")
def test_every_series_of_nemo_rls_logger() -> None:
    with record(builtin="nemo_rl.metrics") as run:
        from nemo_rl.algorithms.utils import print_efficiency_summary
        from nemo_rl.utils.logger import Logger

        logger = Logger({"log_dir": "unused"})
        logger.log_metrics(
            {"policy_init_time_s": 2.0, "other_setup_s": 0.5, "workers": 3}, step=0, prefix="timing/setup"
        )
        logger.log_metrics(TRAIN, 1, prefix="train")
        logger.log_metrics({"reward": 99.0}, 1, prefix="validation")
        seconds = {category: float(n) for n, category in enumerate(CATEGORIES, 1)}
        summary = print_efficiency_summary(seconds, 100.0, 1)
        assert {"efficiency/total_waste_s", "efficiency/total_wall_time_s"} < summary.keys()
        logger.log_metrics(summary, 1, prefix="")
        assert len(logger.history) == 4
        assert logger.history[1]["metrics"] == TRAIN
        expected = [
            f"rl.efficiency.pct gauge % {summary['efficiency/efficiency_pct']} "
            "rl.efficiency.measurement='wall_clock' rl.efficiency.window='step'",
            "rl.entropy gauge 1.5",
            "rl.grad_norm gauge 2.5",
            "rl.kl.divergence gauge 0.25",
            "rl.learning_rate gauge 0.001",
            "rl.policy.loss gauge -0.125",
            "rl.response.length.mean gauge {token} 64.0",
            "rl.reward.mean gauge 0.5",
            "rl.setup.duration gauge s 0.5 rl.setup.phase='other_setup'",
            "rl.setup.duration gauge s 2.0 rl.setup.phase='policy_init'",
            "rl.value.loss gauge 2.0",
            "rl.vllm.generation_length.mean gauge {token} 20.0",
            "rl.vllm.generation_tokens counter {token} 200",
            "rl.vllm.generations.failed counter {generation} 1",
            "rl.vllm.generations.ok counter {generation} 8",
            "rl.vllm.prompt_length.mean gauge {token} 10.0",
            "rl.vllm.prompt_tokens counter {token} 100",
        ]
        expected += [
            f"rl.efficiency.seconds gauge s {seconds[category]} rl.bucket={bucket!r} "
            f"rl.efficiency.category={category!r} rl.efficiency.measurement={measurement!r} "
            f"rl.efficiency.window={window!r}"
            for category, (measurement, window, bucket) in CATEGORIES.items()
        ]
        assert run.series().lines == sorted(expected)


def assert_calls_of_vllm(run: Recording, calls: int, read: float, generated: float) -> None:
    of = (
        "gen_ai.operation.name='text_completion' gen_ai.provider.name='vllm' "
        "gen_ai.request.model='Qwen/Qwen2.5-1.5B' gen_ai.token.type"
    )
    assert (
        run.series("gen_ai.client.token.usage")
        == f"""
        gen_ai.client.token.usage histogram {{token}} count={calls} sum={generated} {of}='output'
        gen_ai.client.token.usage histogram {{token}} count={calls} sum={read} {of}='input'
    """
    )
    (duration,) = run.series("gen_ai.server.request.duration").lines
    assert duration.startswith(f"gen_ai.server.request.duration histogram s count={calls} ")


@pytest.mark.usefixtures("fake_nemo")
def test_vllms_tokens_and_time() -> None:
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration

    class Engine(VllmGeneration):
        cfg = {"model_name": "Qwen/Qwen2.5-1.5B"}

        def __init__(self) -> None:
            self._samples_generated = 0
            self._worker = types.SimpleNamespace(generate=lambda data, greedy: {"generation_lengths": np.array([7, 8])})

    with record(builtin="nemo_rl.metrics") as run:
        Engine().generate({"input_ids": [[1], [2]], "input_lengths": np.array([3, 4])})
        assert_calls_of_vllm(run, 1, read=7.0, generated=15.0)


@pytest.mark.usefixtures("fake_nemo")
def test_vllms_tokens_and_time_in_asynchronous_rollouts() -> None:
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration

    class Engine(VllmGeneration):
        cfg = {"model_name": "Qwen/Qwen2.5-1.5B"}

        def __init__(self) -> None:
            self._samples_generated = 0
            sample = BatchedDataDict({"generation_lengths": np.array([7])})
            self._worker = types.SimpleNamespace(sample=lambda data, greedy: sample, straggles=lambda: False)

    async def rollout() -> None:
        for length in (3, 4):
            data = BatchedDataDict({"input_ids": [[1]], "input_lengths": np.array([length])})
            async for _index, _output in Engine().generate_async(data):
                pass

    with record(builtin="nemo_rl.metrics") as run:
        asyncio.run(rollout())
        assert_calls_of_vllm(run, 2, read=7.0, generated=14.0)


# -- beside the taps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "on"),
    [
        ({}, False),
        ({"OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": " None "}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "otlp", "AUTOINSTR_METRICS_ENABLED": "false"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp", "NEMO_LENS_METRICS_ENABLED": "0"}, False),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "AUTOINSTR_METRICS_ENABLED": "1", "NEMO_LENS_METRICS_ENABLED": "0"},
            True,
        ),
        ({"OTEL_CONFIG_FILE": "otel.yaml"}, True),
    ],
)
def test_the_switch(env: dict[str, str], on: bool) -> None:
    assert switch.are_on(env) is on


@pytest.mark.parametrize(
    ("env", "exporter"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_METRICS_EXPORTER": "none"}, "none"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "AUTOINSTR_METRICS_ENABLED": "off"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "NEMO_LENS_METRICS_ENABLED": "false"}, None),
    ],
)
def test_the_default_exporter(env: dict[str, str], exporter: str | None) -> None:
    switch.set_default_exporter(env)
    assert env.get("OTEL_METRICS_EXPORTER") == exporter


def meters() -> tuple[InMemoryMetricReader, MeterProvider]:
    reader = InMemoryMetricReader()
    return reader, MeterProvider([reader], shutdown_on_exit=False)


def test_phases_are_a_histogram_with_exemplars() -> None:
    reader, provider = meters()
    phases = PhaseDurations(Instruments(lambda: provider))
    phases.add_algorithms(["grpo", None])
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(phases)
    ours = tracers.get_tracer(SCOPE_NAME, attributes={GROUP_ATTRIBUTE: "policy_update"})
    samples = tracers.get_tracer(SCOPE_NAME, attributes={GROUP_ATTRIBUTE: "per_prompt"})
    theirs = tracers.get_tracer("theirs")
    for tracer, name, bucket in [
        (ours, "rl.grpo.generation", "productive"),
        (ours, "rl.grpo.generation", "overhead"),
        (ours, "rl.grpo.step", None),
        (ours, "rl.policy.worker.train", None),  # no phase of a loop: an operation
        (samples, "rl.vllm.generate_async", None),  # one a prompt: neither
        (theirs, "rl.grpo.step", None),
    ]:
        span = tracer.start_span(name, start_time=10**9, attributes={BUCKET_ATTRIBUTE: bucket} if bucket else None)
        if tracer is ours and name == "rl.grpo.step":
            step = span
        span.end(3 * 10**9)
    data = reader.get_metrics_data()
    metric, operations = data.resource_metrics[0].scope_metrics[0].metrics
    (operation,) = operations.data.data_points
    assert (operations.name, operations.unit) == ("rl.operation.duration", "s")
    assert (operation.count, operation.sum) == (1, 2.0)
    assert operation.attributes == {"rl.operation": "rl.policy.worker.train", "autoinstr.group": "policy_update"}
    found = {p.attributes["rl.phase"] + str(p.attributes.get("rl.bucket", "")): p for p in metric.data.data_points}
    assert metric.name == "rl.phase.duration"
    assert metric.unit == "s"
    assert {key: (p.count, p.sum) for key, p in found.items()} == {
        "generationproductive": (1, 2.0),
        "generationoverhead": (1, 2.0),
        "step": (1, 2.0),
    }
    assert all(p.attributes["rl.algorithm"] == "grpo" for p in found.values())
    assert [e.span_id for e in found["step"].exemplars] == [step.get_span_context().span_id]


def test_a_moment_belongs_to_the_innermost_span_with_a_bucket() -> None:
    reader, provider = meters()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BucketTime(Instruments(lambda: provider)))
    ours, theirs = tracers.get_tracer(SCOPE_NAME), tracers.get_tracer("theirs")

    def span(name: str, bucket: str | None, start: int, end: int, *inside: Any, tracer: Any = ours) -> Any:
        def make(parent: Any) -> None:
            attributes = {BUCKET_ATTRIBUTE: bucket} if bucket else None
            context = trace.set_span_in_context(parent) if parent is not None else None
            made = tracer.start_span(name, context, attributes=attributes, start_time=start * 10**9)
            for child in inside:
                child(made)
            made.end(end * 10**9)

        return make

    span(
        "step", None, 0, 20,
        span("training", "productive", 0, 10,
             span("theirs", None, 1, 6, span("logprobs", "overhead", 2, 5), tracer=theirs)),
        span("generation", "productive", 10, 15, span("engine", "productive", 11, 14)),
        span("wait", "idle", 15, 19),
    )(None)  # fmt: skip
    assert (
        readout.read(reader)
        == """
        rl.bucket.duration counter s 12.0 rl.bucket='productive'
        rl.bucket.duration counter s 3.0 rl.bucket='overhead'
        rl.bucket.duration counter s 4.0 rl.bucket='idle'
    """
    )


def test_our_own_health(tmp_path: Path) -> None:
    reader, provider = meters()
    ledger = Ledger()
    place: Any = None
    ledger.records += [Record("a", "t", place, "applied"), Record("b", "t", place, "applied"),
                       Record("c", "t", place, "missing", said=True), Record("d", "t", place, "missing")]  # fmt: skip
    journal = types.SimpleNamespace(path=tmp_path / "j.jsonl")
    journal.path.write_text("x" * 100)
    spans = health.SpanCounts()
    guard = types.SimpleNamespace(lost=2, dropped=1)
    health.observe(provider.get_meter("test"), lambda: ledger, spans, [guard], journal)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(spans)
    tracers.get_tracer("theirs").start_span("x").end()
    tracers.get_tracer(SCOPE_NAME).start_span("x")
    tracers.get_tracer(SCOPE_NAME).start_span("x").end()
    assert (
        readout.read(reader)
        == """
        autoinstr.journal.size counter By 100
        autoinstr.patches gauge {patch} 1 autoinstr.patch.state='absent'
        autoinstr.patches gauge {patch} 1 autoinstr.patch.state='missing'
        autoinstr.patches gauge {patch} 2 autoinstr.patch.state='applied'
        autoinstr.spans.dropped counter {span} 3
        autoinstr.spans.ended counter {span} 1
        autoinstr.spans.started counter {span} 2
    """
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_one_process_of_a_node_tells_its_memory(tmp_path: Path) -> None:
    first, one = meters()
    host_memory.observe(one.get_meter("test"), "run", tmp_path)
    names = ["rl.host.memory.available", "rl.host.memory.total", "rl.host.memory.used"]
    lines = readout.read(first).lines
    assert [line.split()[0] for line in lines] == names
    available, total, used = (int(line.split()[3]) for line in lines)
    assert 0 < available <= total
    assert 0 <= used == total - available or used > 0
    second = host_memory.NodeLock("run", tmp_path)
    assert not second.is_ours()
    assert host_memory.NodeLock("another run", tmp_path / "another").is_ours()
    assert [p.name for p in tmp_path.glob("*.lock")] == [f"{socket.gethostname()}.lock"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
@pytest.mark.parametrize("trouble", ["no folder", "no locks", "read only"])
def test_where_the_runs_folder_can_not_be_locked_the_lock_is_the_nodes_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def lock(path: Path) -> int | None:
        raise OSError({"no locks": errno.ENOLCK, "read only": errno.EROFS}[trouble], trouble)

    monkeypatch.setattr(host_memory, "_lock", lock)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = None if trouble == "no folder" else tmp_path / "run"
    run = f"a run of {tmp_path}"
    first = host_memory.NodeLock(run, folder)
    assert first.is_ours()
    assert first.is_ours()
    assert not host_memory.NodeLock(run, folder).is_ours()
    assert host_memory.NodeLock(f"another {run}", folder).is_ours()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
@pytest.mark.parametrize("journal", [True, False])
def test_the_lock_passes_on_when_its_holder_is_gone(tmp_path: Path, journal: bool) -> None:
    import os

    run, folder = f"a run of {tmp_path}", tmp_path if journal else None
    child = os.fork()
    if not child:
        os._exit(0 if host_memory.NodeLock(run, folder).is_ours() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock = host_memory.NodeLock(run, folder)
    assert lock.is_ours()
    child = os.fork()
    if not child:
        os._exit(1 if lock.is_ours() else 0)  # a forked child does not take it for its own
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.is_ours()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
@pytest.mark.parametrize("journal", [True, False])
def test_a_daemon_that_closes_all_loses_the_lock_and_no_file_of_its_own(tmp_path: Path, journal: bool) -> None:
    import os

    run, folder = f"a run of {tmp_path}", tmp_path if journal else None
    lock = host_memory.NodeLock(run, folder)
    assert lock.is_ours()
    child = os.fork()
    if not child:
        held = lock._held or 0
        mine = os.open(os.devnull, os.O_RDONLY)
        os.dup2(mine, held)  # what the daemon opens next gets the number
        taken = lock.is_ours()
        os._exit(1 if taken or not os.path.samestat(os.fstat(held), os.fstat(mine)) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.is_ours()


class Failing:
    _preferred_temporality: Any = {}
    _preferred_aggregation: Any = {}
    _endpoint = "127.0.0.1:1"

    def __init__(self) -> None:
        self.calls = 0
        self.ended = 0

    def export(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        raise RuntimeError("no")

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        self.ended += 1


def test_a_dead_collector_is_said_once_and_not_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    exporter: Any = Failing()
    guard = exporting.GuardedMetricExporter(exporter, "key")
    data: Any = None
    guard.export(data)
    guard.export(data)
    guard.see_who_is_there()
    guard.export(data)
    guard.shutdown()
    assert (exporter.calls, exporter.ended) == (2, 1)
    assert capsys.readouterr().err.splitlines() == [
        "autoinstr: metrics could not be sent to 127.0.0.1:1: RuntimeError: no; training goes on"
    ]


# -- the page -----------------------------------------------------------------------------------------


def test_the_page_lists_every_series_of_nemo_rl() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "metrics.md").read_text(encoding="utf-8")
    path = root / "span_maps" / "nemo_rl" / "metrics.yaml"
    loaded = loader.load_map(path.read_text(encoding="utf-8"), str(path), TABLE)
    assert loaded.map is not None
    assert loaded.mistakes == []
    for tap in loaded.map.metrics:
        for series in tap.series:
            (line,) = [text for text in page.splitlines() if text.lstrip("| ").startswith(f"`{series.name}`")][:1]
            assert series.about
            if series.name == "rl.setup.duration":
                assert "(gauge, s;" in line
                continue
            assert f"| {series.kind}" + (f", {series.unit}" if series.unit else "") in line
            if series.keys and not series.table:
                assert f"`{series.keys[0].text}`" in line
    for category, (measurement, window, bucket) in CATEGORIES.items():
        assert f"`{measurement}` | `{window}` | {bucket} |" in next(
            text for text in page.splitlines() if text.startswith("|") and f"`{category}`" in text
        )


def test_what_interrupts_a_recording_is_recorded_after_it() -> None:
    """A signal's handler or a finalizer that ends a span: the SDK's locks would make it wait for its own thread."""
    reader, provider = meters()
    instruments = Instruments(lambda: provider)
    in_time, of_handler = (
        SeriesEntry(name, Place("m.yaml"), kind="counter", unit="s") for name in ("toy.time", "toy.handler")
    )
    lock = threading.Lock()
    made = provider.get_meter

    def interrupt(series: SeriesEntry) -> None:
        with lock:
            instruments.of(series)(1, {}, None)

    class Interrupted(str):
        """An attribute's value that is hashed inside the SDK, which has a lock then."""

        def __hash__(self) -> int:
            if not lock.locked():
                interrupt(in_time)
                interrupt(of_handler)
            return hash(str(self))

    def get_meter(*args: Any) -> Any:
        provider.get_meter = made  # type: ignore[method-assign]
        with provider._meter_lock:
            interrupt(of_handler)
        return made(*args)

    provider.get_meter = get_meter  # type: ignore[method-assign]
    record = instruments.of(in_time)
    record(1, {"a": Interrupted("b")}, None)
    data: Any = reader.get_metrics_data()
    points = {
        metric.name: sum(point.value for point in metric.data.data_points)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    assert points["toy.time"] >= 2
    assert points["toy.handler"] >= 2


def test_what_interrupts_the_collection_of_metrics_is_recorded_after_it() -> None:
    reader, provider = meters()
    exporting.guard(provider, [])
    instruments = Instruments(lambda: provider)
    series = SeriesEntry("toy.time", Place("m.yaml"), kind="counter", unit="s")

    def finalizer(options: Any) -> list[Any]:
        instruments.of(series)(1, {}, None)
        return []

    provider.get_meter("toy").create_observable_gauge("toy.gauge", [finalizer])
    assert reader.get_metrics_data() is None
    data: Any = reader.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.data.data_points[0].value) == ("toy.time", 1)

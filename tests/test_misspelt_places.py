"""A map that names what is not there: a line says so, where the run knows it, and the near word."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from runs import our_lines, run

FILES = {
    "my_pkg/__init__.py": "",
    "my_pkg/loop.py": """
        import contextlib, functools

        def train(config, *, steps=2):
            with block("step"):
                log({"loss": 0.5}, 1)

        def anything(*args, **kwargs): ...

        @contextlib.contextmanager
        def block(label):
            yield

        def log(metrics, step, prefix="train"): ...

        class Base:
            def run(self, batch): ...

        class Derived(Base):
            def run(self, samples): ...

        def decorated(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper

        @decorated
        def wrapped(config): ...
    """,
    "my_pkg/unused.py": "def other(): ...\n",
    "my_pkg/sub/__init__.py": "",
    "my_pkg/sub/deep.py": "",
    "main.py": """
        import my_pkg.loop as loop
        loop.train(1), loop.anything(a=1), loop.Derived().run(1), loop.wrapped(1)
    """,
}


def said(folder: Path, spans: str, main: str = "main.py", package: str = "my_pkg", **env: str) -> list[str]:
    """What a run under this map says, without the map's path."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    path = folder / "m.yaml"
    path.write_text(f"map: m\npackage: {package}\n" + textwrap.dedent(spans))
    done = run(
        main,
        cwd=folder,
        AUTOINSTR_SPAN_MAPS="m.yaml",
        AUTOINSTR_SPAN_GROUPS="all",
        OTEL_METRICS_EXPORTER="console",
        PYTHONPATH=".",
        **env,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return [line.removeprefix(f"autoinstr: {path}:") for line in our_lines(done)]


def test_an_argument_that_the_function_does_not_take(tmp_path: Path) -> None:
    assert said(
        tmp_path,
        """
        spans:
          my.train: {group: job, function: "my_pkg.loop:train", attributes: {a: args.confg, b: [args.x, args.config]}}
          my.block: {group: step, block: "my_pkg.loop:block(lable=step)"}
          my.wrapped: {group: step, function: "my_pkg.loop:wrapped", attributes: {a: args.confi}}
          my.optional: {group: step, function: "my_pkg.loop:train", optional: true, attributes: {a: args.confg}}
        metrics:
          my_pkg.loop:log:
            values: args.metric
            only_when: {args.prefixes: train}
            series: {my.loss: {from: loss}}
        """,
    ) == [
        "5:36: my.train: my_pkg.loop:train takes no 'confg', did you mean 'config'?; the attribute 'a' is left out",
        "6:34: my.block: my_pkg.loop:block takes no 'lable', did you mean 'label'?; no call of it is picked",
        "7:39: my.wrapped: my_pkg.loop:wrapped takes no 'confi', did you mean 'config'?; the attribute 'a' is left out",
        "10:3: metrics: my_pkg.loop:log takes no 'metric', did you mean 'metrics'?; 'values' are never found",
        "10:3: metrics: my_pkg.loop:log takes no 'prefixes', did you mean 'prefix'?; 'only_when' never holds",
    ]


def test_what_a_function_may_take_is_no_mistake(tmp_path: Path) -> None:
    """`**kwargs`, an override with names of its own, and values that are no arguments."""
    assert (
        said(
            tmp_path,
            """
            spans:
              my.any: {group: job, function: "my_pkg.loop:anything", attributes: {a: args.whatever}}
              my.run: {group: step, function: "my_pkg.loop:Base.run", subclasses: true, attributes: {a: args.batch}}
              my.self: {group: step, function: "my_pkg.loop:Derived.run", attributes: {a: self.x, b: caller.y, c: 1}}
            """,
        )
        == []
    )


def test_a_module_that_does_not_exist_is_told_at_the_end(tmp_path: Path) -> None:
    spans = """
    spans:
      my.a: {group: job, function: "my_pkg.lopo:train"}
      my.b: {group: job, function: "my_pkg.sub.dep:train"}
      my.optional: {group: job, function: "my_pkg.gone:train", optional: true}
      my.either: {group: job, function: {first_of: ["my_pkg.gone:train", "my_pkg.loop:train"]}}
      my.unused: {group: job, function: "my_pkg.unused:other"}
    """
    told = [
        "5:32: my.a: there is no module 'my_pkg.lopo', did you mean 'my_pkg.loop'?; nothing was imported to patch",
        "6:32: my.b: there is no module 'my_pkg.sub.dep', did you mean 'my_pkg.sub'?; nothing was imported to patch",
    ]
    assert said(tmp_path, spans) == told
    assert said(tmp_path, spans, RANK="0") == told
    assert said(tmp_path, spans, RANK="1") == [], "one process of a run speaks"


def test_a_package_that_does_not_exist(tmp_path: Path) -> None:
    (told,) = said(tmp_path, 'spans: {my.a: {group: job, function: "my_pgk.loop:train"}}', package="my_pgk")
    assert told == (" there is no package 'my_pgk', did you mean 'my_pkg'?; nothing of the map was used")


@pytest.mark.parametrize("package", ["verl", "my_pkg"])
def test_a_map_of_what_this_run_does_not_use_is_no_mistake(tmp_path: Path, package: str) -> None:
    (tmp_path / "other.py").write_text("print('nothing of the package is imported')\n")
    spans = f'spans: {{my.a: {{group: job, function: "{package}.lopo:train"}}}}'
    assert said(tmp_path, spans, main="other.py", package=package) == []

"""When modules are patched: in circles, lazily, replaced by themselves, half imported, by several threads at once."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from toy_packages import Write, spans_map, states

from autoinstr.patch import importing, patcher, stale, targets
from autoinstr.testing import record

F = "def f():\n    return 1\n"
MAP = spans_map("toy.f: {function: toy.work:f}")


def load(name: str) -> Any:
    return importlib.import_module(name)


def test_a_package_that_is_imported_already_is_patched_at_once(write: Write) -> None:
    write(toy__work=F)
    work = load("toy.work")
    with record(text=MAP) as spans:
        work.f()
    assert spans.tree() == "toy.f"


def test_modules_that_import_each_other(write: Write) -> None:
    write(
        toy__work="def f():\n    return 1\nfrom toy import other\n",
        toy__other="from toy import work\nfrom toy.work import f\ndef late(): return work.f()\ndef early(): return f()",
    )
    with record(text=MAP) as spans:
        other = load("toy.work").other
        other.late()
        other.early()
    assert spans.tree() == "toy.f"
    # said once, and not of the module that defines the function
    assert spans.notices == ["toy.other.f was taken from toy.work before it was patched: calls through it have no span"]
    assert [installed.stale for installed in spans.ledger.installed] == []  # undone


def test_a_name_taken_before_us_is_said_once_and_not_of_the_defining_module(write: Write) -> None:
    write(toy="from toy._impl import f\n", toy___impl=F, toy__taker="from toy import f as mine\n")
    load("toy.taker")
    with record(text=spans_map("toy.f: {function: toy:f}")) as spans:
        load("toy").f()
        load("toy")._impl.f()
        importlib.reload(load("toy"))
    assert spans.tree() == "toy.f"
    assert spans.notices == ["toy.taker.mine was taken from toy before it was patched: calls through it have no span"]


def test_a_module_that_is_half_imported_when_we_come_is_patched_when_it_is_done(write: Write) -> None:
    """The user's package starts us while it is being imported itself."""
    write(
        toy="import us_in_a_circle\nfrom toy import work\n",
        toy__work="import us_in_a_circle\ndef f():\n    return 1\nassert us_in_a_circle.states() == 'pending'\n",
        us_in_a_circle=f"""
from autoinstr.testing import record
import toy
manager = record(text={MAP!r})
spans = manager.__enter__()
def states():
    return spans.ledger.records[0].state
""",
    )
    spans = load("toy.work").us_in_a_circle.spans
    spec = load("toy.work").__spec__
    assert type(spec) is importlib.machinery.ModuleSpec
    load("toy.work").f()
    load("us_in_a_circle").manager.__exit__(None, None, None)
    assert spans.tree() == "toy.f"
    assert spans.notices == []


def test_the_module_that_starts_us_is_patched_when_its_import_is_over(write: Write) -> None:
    write(toy__work=f"from autoinstr.testing import record\nmanager = record(text={MAP!r})\n"
          "spans = manager.__enter__()\nassert spans.notices == []\n" + F)  # fmt: skip
    work = load("toy.work")
    work.f()
    work.manager.__exit__(None, None, None)
    assert work.spans.tree() == "toy.f"
    assert work.spans.notices == []


def test_an_import_that_fails_half_way_is_patched_when_it_is_tried_again(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_toy_tried", "_toy_manager", "_toy_spans"):
        monkeypatch.setattr(sys, name, None, raising=False)
    write(
        toy__work=F + "import toy_broken\n",
        toy_broken=f"""
import sys
if not sys._toy_tried:
    sys._toy_tried = True
    from autoinstr.testing import record
    sys._toy_manager = record(text={MAP!r})
    sys._toy_spans = sys._toy_manager.__enter__()
    raise OSError("not yet")
""",
    )
    with pytest.raises(OSError, match="not yet"):
        load("toy.work")
    load("toy.work").f()
    sys._toy_manager.__exit__(None, None, None)  # type: ignore[attr-defined]
    assert sys._toy_spans.tree() == "toy.f"  # type: ignore[attr-defined]


LAZY = """
def __getattr__(name):
    if name == "f":
        from toy._impl import f
        return f
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
"""


def test_a_lazy_module_has_its_name_made_and_taken_away_again(write: Write) -> None:
    write(toy=LAZY, toy___impl=F)
    with record(text=spans_map("toy.f: {function: toy:f}")) as spans:
        load("toy").f()
    assert spans.tree() == "toy.f"
    assert "f" not in vars(load("toy"))
    assert load("toy").f is load("toy._impl").f


def test_a_lazy_module_whose_import_fails_is_a_missing_target(write: Write) -> None:
    write(toy=LAZY, toy___impl="import no_such_thing_at_all")
    with record(text=spans_map("toy.f: {function: toy:f}")) as spans:
        load("toy")
    (notice,) = spans.notices
    assert notice.endswith(
        "toy.f: toy.f can't be had: ModuleNotFoundError: No module named 'no_such_thing_at_all'; it is left out"
    )


@pytest.mark.parametrize("again", [False, True])
def test_importlibs_own_lazy_module_stays_lazy(again: bool, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(toy="", toy__work="import sys; sys._toy_ran = True\n" + F)
    with record(text=MAP) as spans:
        load("toy")
        if again:
            load("toy.work")
            del sys.modules["toy.work"]
        monkeypatch.setattr(sys, "_toy_ran", False, raising=False)
        spec = importlib.util.find_spec("toy.work")
        assert spec is not None
        assert spec.loader is not None
        spec.loader = importlib.util.LazyLoader(spec.loader)
        work = importlib.util.module_from_spec(spec)
        sys.modules["toy.work"] = work
        spec.loader.exec_module(work)
        assert not sys._toy_ran  # type: ignore[attr-defined]
        work.f()
        assert type(work.__spec__.loader) is type(work.__loader__) is importlib.machinery.SourceFileLoader
    assert spans.tree() == "toy.f"


class LazyFinder:
    """Makes `toy.work` lazy, as a start-up hook of a user's may."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "toy.work" else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


BY_WRAPT = pytest.mark.xfail(
    importing._FIRST_BY_WRAPT, reason="wrapt asks the module for its name, which loads it", strict=True
)


@pytest.mark.parametrize("again", [pytest.param(False, marks=BY_WRAPT), True])
def test_a_finder_that_makes_modules_lazy(again: bool, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(toy="", toy__work="import sys; sys._toy_ran = True\n" + F)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), LazyFinder)  # type: ignore[arg-type]
    with record(text=MAP) as spans:
        if again:
            load("toy.work").f()
            del sys.modules["toy.work"]
            spans.clear()
        monkeypatch.setattr(sys, "_toy_ran", False, raising=False)
        work = load("toy.work")
        assert not sys._toy_ran  # type: ignore[attr-defined]
        work.f()
        assert type(work.__spec__.loader) is importlib.machinery.SourceFileLoader
    assert spans.tree() == "toy.f"


def test_a_module_that_replaces_itself_by_another_module(write: Write) -> None:
    write(
        toy__work="import sys, types\n" + F + "new = types.ModuleType('toy.other_name')\nnew.f = f\nnew.kept = f\n"
        "sys.modules[__name__] = new\n",
    )
    with record(text=MAP) as spans:
        work = load("toy.work")
        work.f()
        load("toy.work").f()
    assert spans.tree(attributes=False) == "toy.f\ntoy.f"
    assert work.f is work.kept


def test_a_module_that_replaces_itself_by_an_object(write: Write) -> None:
    write(
        toy__work="import sys\nclass Namespace:\n    def f(self):\n        return 1\n"
        "    class Inner:\n        def g(self): return 2\nsys.modules[__name__] = Namespace()\n",
    )
    with record(text=spans_map("toy.f: {function: toy.work:f}", "toy.g: {function: toy.work:Inner.g}")) as spans:
        work = load("toy.work")
        assert work.f() == 1
        work.Inner().g()
    assert spans.tree() == "toy.f\ntoy.g"
    assert vars(work) == {}


def test_import_errors_pass_as_they_are(write: Write) -> None:
    write(toy__work="raise_me = ValueError('mine')\nraise raise_me\n", toy__syntax="def f(:\n")
    maps = spans_map("toy.f: {function: toy.work:f}", "toy.g: {function: toy.syntax:f}", "toy.h: {function: toy.no:f}")
    with record(text=maps) as spans:
        with pytest.raises(ValueError, match="^mine$"):
            load("toy.work")
        with pytest.raises(SyntaxError):
            load("toy.syntax")
        with pytest.raises(ModuleNotFoundError) as caught:
            load("toy.no")
        assert (str(caught.value), caught.value.name) == ("No module named 'toy.no'", "toy.no")
        assert "toy.work" not in sys.modules
    assert spans.notices == []


def test_reloading_into_an_error_passes_it_and_keeps_what_is_there(write: Write) -> None:
    write(toy__work="import sys\nif hasattr(sys, '_toy_fail'): raise OSError('changed')\n" + F)
    with record(text=MAP) as spans:
        work = load("toy.work")
        sys._toy_fail = True  # type: ignore[attr-defined]
        try:
            with pytest.raises(OSError, match="^changed$"):
                importlib.reload(work)
        finally:
            del sys._toy_fail  # type: ignore[attr-defined]
        work.f()
    assert spans.tree() == "toy.f"


def test_modules_keep_their_true_loader(write: Write) -> None:
    """`python -m`, `pkgutil` and `importlib.resources` ask it; wrapt 1 leaves its own there, which knows nothing."""
    write(toy__work=F)
    with record(text=MAP):
        first = load("toy.work")
        loaders = [first.__loader__, first.__spec__.loader]
        importlib.reload(first)
        loaders += [first.__loader__, first.__spec__.loader]
        del sys.modules["toy.work"]
        second = load("toy.work")
        loaders += [second.__loader__, second.__spec__.loader]
        assert {type(loader) for loader in loaders} == {importlib.machinery.SourceFileLoader}
        assert (pkgutil.get_data("toy.work", "work.py") or b"").decode() == F


def test_nothing_is_left_in_the_import_system(write: Write) -> None:
    write(toy__work=F)
    before = list(sys.meta_path)
    with record(text=MAP):
        load("toy.work")
        assert importing._reloads in sys.meta_path
    left = [finder for finder in sys.meta_path if finder not in before]
    assert [type(finder).__name__ for finder in left] in ([], ["ImportHookFinder"])  # wrapt's, for good


FAULTS = [
    (targets, "find"),
    (targets, "rebuilt"),
    (targets.Found, "replace"),
    (targets, "underlying"),
    (patcher.Patcher, "patch_module"),
    (patcher.Patcher, "_wrapped"),
    (patcher.Patcher, "_note"),
    (patcher.Patcher, "_conclude"),
    (patcher, "find_stale"),
    (patcher, "claims_of"),
    (patcher, "when_imported"),
    (stale, "sys"),
    (importing._Reloads, "add"),
    (importing, "_give_back_loader"),
]


@pytest.mark.parametrize(("owner", "name"), FAULTS, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_no_fault_of_ours_reaches_an_import(
    owner: Any, name: str, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(toy__work=F + "class A:\n    def g(self): return 2\nclass B(A):\n    def g(self): return 3\n")
    maps = MAP + "\n  toy.g: {group: job, function: toy.work:A.g, subclasses: true}"

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"injected into {name}")

    with record(text=maps):
        monkeypatch.setattr(owner, name, broken)
        work = load("toy.work")
        assert (work.f(), work.A().g(), work.B().g()) == (1, 2, 3)

        class Later(work.A):
            def g(self) -> int:
                return 4

        assert Later().g() == 4
        importlib.reload(work)
        monkeypatch.undo()
    assert (work.f(), work.A().g()) == (1, 2)


def test_threads_that_import_at_the_same_time(write: Write) -> None:
    count = 12
    write(**{f"toy__m{i}": F + "import toy.m0\n" for i in range(count)})
    maps = spans_map(*(f"toy.f{i}: {{function: toy.m{i}:f}}" for i in range(count)))
    ready = threading.Barrier(count)
    failed: list[BaseException] = []

    def use(i: int) -> None:
        try:
            ready.wait()
            load(f"toy.m{i}").f()
            load(f"toy.m{(i + 1) % count}").f()
        except BaseException as error:
            failed.append(error)

    with record(text=maps) as spans:
        threads = [threading.Thread(target=use, args=(i,), daemon=True) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads)
    assert failed == []
    assert sorted(span.name for span in spans.spans) == sorted(2 * [f"toy.f{i}" for i in range(count)])


def test_a_lazy_target_and_a_second_thread_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """One thread patches `toy`, and so imports `slow`, which another thread is importing, to be patched too."""
    lazy = """
        import events
        def __getattr__(name):
            if name != "f":
                raise AttributeError(name)
            events.toy_is_asked.set()
            events.slow_has_begun.wait()
            from slow import f
            return f
        """
    names = ("toy_is_asked", "slow_has_begun")
    (tmp_path / "events.py").write_text("import threading\n" + "".join(f"{n} = threading.Event()\n" for n in names))
    (tmp_path / "toy.py").write_text(textwrap.dedent(lazy))
    (tmp_path / "slow.py").write_text("import events\nevents.slow_has_begun.set()\n" + F)
    maps = spans_map("toy.f: {function: toy:f}", "toy.slow: {function: slow:f}")
    script = f"""
import os, sys, threading
from autoinstr.testing import record
sys.path.insert(0, {str(tmp_path)!r})
import events
def other():
    events.toy_is_asked.wait()
    import slow
def main():
    import toy
manager = record(text={maps!r})
spans = manager.__enter__()
threads = [threading.Thread(target=f, daemon=True) for f in (other, main)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(200)
print("stuck" if any(t.is_alive() for t in threads) else "done", sorted(r.state for r in spans.ledger.records))
sys.stdout.flush()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done ['applied', 'applied']", done.stdout + done.stderr


def test_what_is_off_is_not_touched_and_does_not_stand_in_the_ledger(write: Write) -> None:
    write(toy__work=F + "def g(): return 2\nMADE = f\n")
    maps = MAP + "\n  toy.g: {group: step, function: toy.work:g}"
    with record(text=maps, groups="step") as spans:
        work = load("toy.work")
        assert work.f is work.MADE
        assert work.g() == 2
        assert states(spans) == {"toy.work:g": "applied"}
    assert states(spans) == {"toy.work:g": "undone"}

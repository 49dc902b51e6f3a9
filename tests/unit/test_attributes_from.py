"""`attributes_from`: a function that has no span of its own, and whose calls say something of a span that is open."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from pathlib import Path

import pytest
from made_modules import Make, span_map
from runs import journal_spans, our_lines, run

from autoinstr.cli import main
from autoinstr.testing import MapMistakes, record

SOURCE = '''
import threading
from contextlib import contextmanager

@contextmanager
def timer(label):
    yield

def train(losses, step=lambda: None):
    for loss in losses:
        with timer("step"):
            with timer("forward"):
                compute_loss([loss, loss])
            step()

def compute_loss(values, *, scale: float = 1.0) -> dict[str, float]:
    """The loss."""
    return {"loss": scale * sum(values) / len(values), "token_mult_prob_error": 1.0}

async def score(values):
    return compute_loss(values)

def chunks(values):
    yield from values
    return len(values)

def cluster(resources):
    return resources

def start(address=None):
    if address == "nowhere":
        raise ConnectionError(address)

def connect(resources, address="auto"):
    """Attaches to a cluster, or starts one."""
    try:
        start(address=address)
        found = cluster(resources)
        if "tag_mine" in found or not any(name.startswith("tag_") for name in found):
            return
    except ConnectionError:
        pass
    start()
    cluster({"tag_mine": 1})
'''

STEP = """
my.step:
  - group: step
    block: "{m}:timer(label=step)"
  - group: step
    attributes_from: "{m}:compute_loss"
    attributes:
      my.loss: return.loss | float
      my.samples: args.values | len
my.forward:
  group: logprob
  block: "{m}:timer(label=forward)"
"""


def test_the_loss_that_a_function_returns_is_on_the_open_step(make: Make) -> None:
    module = make(SOURCE)
    with record(text=span_map(module, STEP)) as spans:
        module.train([0.5, 0.25])
        assert module.compute_loss([1])["loss"] == 1  # no step is open
    assert (
        spans.tree()
        == """
        my.step my.loss=0.5 my.samples=2
          my.forward [overhead]
        my.step my.loss=0.25 my.samples=2
          my.forward [overhead]
        """
    )
    assert spans.notices == []


CONNECT = """
my.connect:
  - group: setup
    function: "{m}:connect"
  - group: setup
    attributes_from: "{m}:cluster"
    attributes: {my.cluster: return | keys(tag_*) | then(reused) | default(attached)}
    keep: true
  - group: setup
    attributes_from: "{m}:start"
    only_when: {args.address: null}
    attributes: {my.cluster: "'started'"}
"""


@pytest.mark.parametrize(
    ("resources", "address", "found"),
    [
        ({"CPU": 2}, "auto", "attached"),
        ({"CPU": 2, "tag_mine": 1}, "auto", "reused"),
        ({"CPU": 2, "tag_other": 1}, "auto", "started"),
        ({}, "nowhere", "started"),
    ],
)
def test_the_first_stays_with_keep_and_the_last_counts_without(
    make: Make, resources: dict[str, int], address: str, found: str
) -> None:
    module = make(SOURCE)
    with record(text=span_map(module, CONNECT)) as spans:
        module.connect(resources, address)
    assert spans.tree() == f"my.connect my.cluster='{found}'"


def test_the_nearest_of_several_open_spans_of_the_name(make: Make) -> None:
    module = make(SOURCE)
    with record(text=span_map(module, STEP)) as spans, module.timer("step"):
        module.train([0.5])
        module.compute_loss([3, 3, 3])
    assert (
        spans.tree()
        == """
        my.step my.loss=3.0 my.samples=3
          my.step my.loss=0.5 my.samples=2
            my.forward [overhead]
        """
    )


def test_not_the_span_of_another_thread(make: Make) -> None:
    module = make(SOURCE)

    def in_a_thread() -> None:
        thread = threading.Thread(target=module.compute_loss, args=([9],))
        thread.start()
        thread.join()

    with record(text=span_map(module, STEP)) as spans:
        module.train([0.5], step=in_a_thread)
    assert spans.tree(attributes=True) == "my.step my.loss=0.5 my.samples=2\n  my.forward [overhead]"


def test_a_coroutine_and_each_task_its_own_span(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.step:
          - {group: step, block: "{m}:timer(label=step)"}
          - {group: step, attributes_from: "{m}:score", attributes: {my.loss: return.loss, my.how: outcome}}
        """,
    )

    async def step(values: list[float]) -> None:
        with module.timer("step"):
            await asyncio.sleep(0)
            await module.score(values)

    async def both() -> None:
        await asyncio.gather(step([1.0]), step([2.0]))

    with record(text=text) as spans:
        asyncio.run(both())
        assert inspect.iscoroutinefunction(module.score)
    assert (
        spans.tree()
        == """
        my.step my.how='ok' my.loss=1.0
        my.step my.how='ok' my.loss=2.0
        """
    )


def test_a_call_that_raises_says_how_it_went_and_the_exception_passes(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.connect:
          - {group: setup, function: "{m}:connect"}
          - group: setup
            attributes_from: "{m}:start"
            attributes: {my.address: args.address, my.start: outcome, my.result: return}
        """,
    )
    with record(text=text) as spans:
        with pytest.raises(ConnectionError) as raised:
            module.start("nowhere")
        module.connect({"CPU": 1}, "nowhere")
    assert raised.value.args == ("nowhere",)
    assert spans.tree() == "my.connect my.address='nowhere' my.start='ok'"


def test_the_signature_the_name_and_the_pickle_are_what_they_were(make: Make) -> None:
    module = make(SOURCE)
    before = (inspect.signature(module.compute_loss), module.compute_loss.__doc__, pickle.dumps(module.compute_loss))
    with record(text=span_map(module, STEP)):
        f = module.compute_loss
        assert (inspect.signature(f), f.__doc__, pickle.dumps(f)) == before
        with pytest.raises(TypeError, match="positional argument"):
            f([1], 2)


def test_a_group_that_is_off_leaves_the_function_alone(make: Make) -> None:
    module = make(SOURCE)
    original = module.compute_loss
    with record(text=span_map(module, STEP), groups="job") as spans:
        assert module.compute_loss is original
    assert spans.tree() == ""


def test_undone_it_is_the_original_again(make: Make) -> None:
    module = make(SOURCE)
    original = module.compute_loss
    with record(text=span_map(module, STEP)):
        assert module.compute_loss is not original
    assert module.compute_loss is original


def test_a_generator_gives_its_arguments_and_nothing_else(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.step:
          - {group: step, block: "{m}:timer(label=step)"}
          - {group: step, attributes_from: "{m}:chunks", attributes: {my.chunks: args.values | len}}
        """,
    )
    with record(text=text) as spans, module.timer("step"):
        assert list(module.chunks([1, 2])) == [1, 2]
    assert spans.tree() == "my.step my.chunks=2"
    with record(text=text.replace("args.values | len", "return")) as spans, module.timer("step"):
        assert list(module.chunks([1, 2])) == [1, 2]
    assert spans.tree() == "my.step"
    (notice,) = spans.notices
    assert notice.endswith("is left alone: it is a generator, of which only the arguments can be read")


def test_caller_inside_and_the_arguments_of_the_target_choose_calls(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.step:
          - {group: step, block: "{m}:timer(label=step)"}
          - {group: step, attributes_from: "{m}:compute_loss", inside: "{m}", attributes: {my.inside: return.loss}}
          - {group: step, attributes_from: "{m}:compute_loss(scale=2)", attributes: {my.scaled: return.loss}}
          - {group: step, attributes_from: "{m}:compute_loss", attributes: {my.seen: caller.seen}}
          - {group: step, attributes_from: "{m}:score", attributes: {my.waiting: caller.seen}}
        """,
    )
    with record(text=text) as spans:
        module.train([5.0])
        with module.timer("step"):
            seen = 7
            module.compute_loss([1.0], scale=2)
            module.compute_loss([3.0])
            module.score([1.0]).close()
    assert (
        spans.tree()
        == """
        my.step my.inside=5.0
        my.step my.scaled=2.0 my.seen=7
        """
    )
    assert seen == 7


def test_blocks_that_are_one_span_get_it_from_each(make: Make) -> None:
    module = make(SOURCE)
    text = span_map(
        module,
        """
        my.step:
          - {group: step, block: "{m}:timer(label=step)", coalesce: {match: args.label, count: my.blocks}}
          - {group: step, attributes_from: "{m}:compute_loss", attributes: {my.loss: return.loss}}
        """,
    )
    with record(text=text) as spans:
        module.train([0.5, 0.25])
    assert spans.tree() == "my.step my.blocks=2 my.loss=0.25"


# -- layers and mistakes ---------------------------------------------------------------------------------


def test_a_map_of_ones_own_adds_to_a_span_of_another(make: Make, tmp_path: Path) -> None:
    module = make(SOURCE)
    opens, adds = tmp_path / "opens.yaml", tmp_path / "adds.yaml"
    opens.write_text(span_map(module, 'my.step: {group: step, block: "{m}:timer(label=step)"}'))
    adds.write_text(
        span_map(
            module, 'my.step: {group: step, attributes_from: "{m}:compute_loss", attributes: {my.loss: return.loss}}'
        )
    )
    with record([opens], text=adds.read_text()) as spans:  # the text is of a higher layer, and replaces nothing
        module.train([0.5])
    assert spans.tree() == "my.step my.loss=0.5"


def mistakes(make: Make, entries: str) -> list[str]:
    with pytest.raises(MapMistakes) as wrong, record(text=span_map(make(SOURCE, "toy"), entries)):
        pass
    return wrong.value.mistakes


STEP_OPENS = 'my.step: {group: step, block: "{m}:timer(label=step)"}\n'
ADDS = 'group: step, attributes_from: "{m}:compute_loss"'


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            f"my.stpe: {{{ADDS}, attributes: {{a: return.loss}}}}",
            "5:3: no map opens a span 'my.stpe', did you mean 'my.step'?; this entry of it is idle",
        ),
        (
            f"my.other: {{{ADDS}}}",
            "5:3: attributes_from needs 'attributes': what the open span gets; the span 'my.other' is left out",
        ),
        (
            f"my.other: {{{ADDS}, attributes: {{a: 1}}, bucket: idle}}",
            "5:3: bucket does not go with attributes_from, which opens no span; the span 'my.other' is left out",
        ),
        (
            'my.other: {group: step, function: "{m}:train", keep: true}',
            "5:3: keep goes with attributes_from, not with function; the span 'my.other' is left out",
        ),
        (
            'my.other: {group: step, function: "{m}:train", attributes_form: "{m}:start"}',
            "5:50: unknown key 'attributes_form' in the span 'my.other', did you mean 'attributes_from'?; "
            "the span 'my.other' is left out",
        ),
    ],
)
def test_mistakes_have_a_place(make: Make, entry: str, said: str) -> None:
    assert mistakes(make, STEP_OPENS + entry) == [f"<text>:{said}"]


def test_an_argument_that_the_function_does_not_take_is_said(make: Make) -> None:
    module = make(SOURCE, "toy")
    text = span_map(module, STEP.replace("args.values", "args.valeus"))
    with record(text=text) as spans:
        module.train([0.5])
    assert spans.notices == [
        "<text>:8:24: my.step: toy:compute_loss takes no 'valeus', did you mean 'values'?; "
        "the attribute 'my.samples' is left out"
    ]


def test_a_condition_on_an_argument_that_the_function_does_not_take_is_said(make: Make) -> None:
    module = make(SOURCE, "toy")
    with record(text=span_map(module, CONNECT.replace("args.address", "args.adress"))) as spans:
        module.connect({"CPU": 1})
    assert spans.notices == [
        "<text>:12:24: my.connect: toy:start takes no 'adress', did you mean 'address'?; for 'only_when' it is null"
    ]


# -- what the command line says --------------------------------------------------------------------------


@pytest.fixture
def my_map(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make(SOURCE, "toy.loop")
    path = tmp_path / "my_map.yaml"
    path.write_text(span_map("toy.loop", STEP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOINSTR_SPAN_MAPS", path.name)
    monkeypatch.setenv("AUTOINSTR_BUILTIN_MAPS", "none")
    return path


def test_lint_knows_the_spans_of_the_shipped_maps(my_map: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adds = "{group: step, attributes_from: toy.loop:compute_loss, attributes: {my.loss: return.loss}}"
    my_map.write_text(span_map("toy.loop", f"rl.grpo.step: {adds}"))
    assert main(["lint", my_map.name]) == 0
    my_map.write_text(span_map("toy.loop", f"rl.grpo.stpe: {adds}"))
    capsys.readouterr()
    assert main(["lint", my_map.name]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "my_map.yaml:4:3: no map opens a span 'rl.grpo.stpe', did you mean 'rl.grpo.step'?; this entry of it is idle"
    )


def test_autoinstr_spans_shows_what_adds_to_a_span(my_map: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spans", "my.step"]) == 0
    assert capsys.readouterr().out.partition("\n\n")[2] == (
        "my.step\n"
        "  map                   my_map.yaml:7 (test, yours)\n"
        "  package               toy\n"
        "  group                 step: one training step\n"
        "  selected              no (not in AUTOINSTR_SPAN_GROUPS=default)\n"
        "  attributes_from       toy.loop:compute_loss\n"
        "  attribute my.loss     return.loss | float\n"
        "  attribute my.samples  args.values | len\n"
    )


def test_autoinstr_check_looks_the_function_and_its_arguments_up(
    my_map: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = my_map.read_text()
    assert main(["check", "--source", "."]) == 0
    my_map.write_text(good.replace("args.values", "args.valeus"))
    capsys.readouterr()
    assert main(["check", "--source", "."]) == 1
    assert "my_map.yaml:7:7: my.step: my.samples: compute_loss takes no 'valeus'" in capsys.readouterr().out
    # what adds to a step is no place of it: it does not make the step one that is there
    my_map.write_text(good.replace("toy.loop:timer(label=step)", "toy.moved:timer(label=step)"))
    capsys.readouterr()
    assert main(["check", "--source", ".", "--table"]) == 0
    assert "| `my.step` | step | - |" in capsys.readouterr().out


# -- beside code that opens the span itself --------------------------------------------------------------

THEIRS = """
from contextlib import contextmanager

tracer = None

@contextmanager
def timer(label):
    yield

def note(value):
    return value

def theirs_in_ours():
    with timer("step"), tracer.start_as_current_span("my.step", attributes={"of": "theirs"}) as span:
        span.set_attribute("said", "by them")
        note("us")
        note("us again")

def ours_in_theirs():
    with tracer.start_as_current_span("my.step", attributes={"of": "theirs"}) as span, timer("step"):
        span.set_attribute("said", "by them")
        note("us")
        note("us again")

def theirs_later():
    with tracer.start_as_current_span("my.step") as span, timer("step"):
        note("us")
        span.set_attribute("also", "by them")
        note("us again")
"""


@pytest.mark.parametrize(
    ("run", "tree"),
    [
        ("theirs_in_ours", "my.step also='us again' of='theirs' said='by them'"),
        ("ours_in_theirs", "my.step also='us again' of='theirs' said='by them'"),
        ("theirs_later", "my.step also='by them' of='us again' said='us again'"),
    ],
)
def test_what_the_code_says_of_its_own_span_stays(make: Make, run: str, tree: str) -> None:
    module = make(THEIRS)
    text = span_map(
        module,
        """
        my.step:
          - {group: step, block: "{m}:timer(label=step)"}
          - {group: step, attributes_from: "{m}:note", attributes: {of: return, said: return, also: return}}
        """,
    )
    with record(text=text) as spans:
        module.tracer = spans.provider.get_tracer("theirs")
        getattr(module, run)()
    assert spans.tree() == tree


# -- in a run --------------------------------------------------------------------------------------------


def test_the_journal_has_it_in_the_record_of_the_spans_end(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "loop.py").write_text(SOURCE)
    (tmp_path / "my_map.yaml").write_text(span_map("toy.loop", STEP))
    (tmp_path / "main.py").write_text("from toy.loop import train\ntrain([0.5, 0.25])\n")
    done = run("main.py", cwd=tmp_path, AUTOINSTR_SPAN_MAPS="my_map.yaml", AUTOINSTR_SPAN_GROUPS="step")
    assert (done.returncode, our_lines(done)) == (0, [])
    found = [{a["key"]: a["value"] for a in span["attributes"]} for span in journal_spans(tmp_path)]
    assert [attributes["my.loss"] for attributes in found] == [{"doubleValue": 0.5}, {"doubleValue": 0.25}]

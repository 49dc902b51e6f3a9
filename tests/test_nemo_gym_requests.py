"""NeMo-Gym: what a rollout asks of Gym's servers carries the rollout's span; by the shipped map, over real HTTP."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoinstr.testing import record

aiohttp = pytest.importorskip("aiohttp")

FAKE = Path(__file__).resolve().parent / "fake_training"


@pytest.fixture(autouse=True)
def fake_nemo_rl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FAKE)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]:
        del sys.modules[name]


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server, and the `traceparent` of every request that came."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers.get("traceparent"))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/run", seen
        server.shutdown()


async def rollouts(url: str) -> list[int]:
    """As Gym does: one session for all, a task per example, made as the rollout begins."""
    from nemo_rl.environments import nemo_gym

    async with aiohttp.ClientSession() as session:

        async def ask(index: int) -> int:
            headers = {"Content-Type": "application/json"}
            async with session.request(method="POST", url=url, data=b"{}", headers=headers) as answer:
                assert headers == {"Content-Type": "application/json"}
                return answer.status + index

        async def sleep(_: float) -> None:
            statuses.append(await asyncio.create_task(ask(len(statuses))))

        statuses: list[int] = []
        nemo_gym.asyncio = SimpleNamespace(sleep=sleep)  # where the stand-in waits for its servers
        async for _ in nemo_gym.NemoGym({}).run_rollouts([{}, {}, {}], "timing"):
            pass
        statuses.append(await ask(0))  # outside of any rollout
    return statuses


def test_requests_of_a_rollout_carry_its_span(asked: tuple[str, list[str | None]]) -> None:
    url, seen = asked
    with record(builtin="nemo_rl.nemo_gym", groups="per_step,per_prompt") as spans:
        assert asyncio.run(rollouts(url)) == [204, 205, 206, 204]
    assert spans.tree() == "rl.gym.run_rollouts rl.gym.batch_size=3"
    (span,) = spans.spans
    assert seen == [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"] * 3 + [None]


def test_not_without_the_group(asked: tuple[str, list[str | None]]) -> None:
    url, seen = asked
    before = vars(aiohttp.ClientSession)["_request"]
    with record(builtin="nemo_rl.nemo_gym", groups="per_step") as spans:
        assert asyncio.run(rollouts(url)) == [204, 205, 206, 204]
        assert vars(aiohttp.ClientSession)["_request"] is before
    assert spans.tree() == "rl.gym.run_rollouts rl.gym.batch_size=3"
    assert seen == [None] * 4

"""A run of load against a server whose answers the test holds back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from tuner.protocol import Workload
from workers.load.client import CompletionClient
from workers.load.prompts import PromptSource, Vocabulary
from workers.load.records import TIMEOUT, Window
from workers.load.run import LoadRun

CHUNK = b'data: {"id":"c","choices":[{"index":0,"text":"a"}]}\n\n'
USAGE = {"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@dataclass
class Gate:
    """A server that sends one chunk at once, and the rest when the gate is open."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    status: int = 200

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.status != 200:
            self.asked.put_nowait(1)
            return web.Response(status=self.status)
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(CHUNK)
        self.asked.put_nowait(1)
        await self.open.wait()
        await answer.write(CHUNK + f"data: {json.dumps(USAGE)}\n\ndata: [DONE]\n\n".encode())
        return answer


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def run(gate: Gate) -> AsyncIterator[LoadRun]:
    app = web.Application()
    app.router.add_post("/v1/completions", gate.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    workload = Workload.model_validate(
        {
            "prompts": {"input_tokens": {"mean": 3}, "output_tokens": {"mean": 2}},
            "arrivals": {"kind": "closed", "concurrency": 2},
        }
    )
    clock = asyncio.get_running_loop().time
    prompts = PromptSource(workload.prompts, Vocabulary.of_size(10), seed=0, content_seed=0)
    client = CompletionClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "m", clock=clock)
    async with asyncio.timeout(30), client, LoadRun(workload, prompts, client, clock=clock) as load:
        yield load
        gate.open.set()
    await runner.cleanup()


async def asked(gate: Gate, count: int) -> None:
    for _ in range(count):
        await gate.asked.get()


def window_until_now(run: LoadRun) -> Window:
    return Window(run.records[0].due, asyncio.get_running_loop().time())


class TestTheDrain:
    async def test_waits_for_the_requests_of_the_window_and_goes_on_offering_load(
        self, run: LoadRun, gate: Gate
    ) -> None:
        await asked(gate, 2)
        window = window_until_now(run)
        draining = asyncio.create_task(run.drain(window, 20.0))
        gate.open.set()
        await draining
        await asked(gate, 2)
        first = [record for record in run.records if record.due in window]
        assert [record.completed for record in first] == [True, True]
        assert len(run.records) > 2

    async def test_notes_what_has_not_ended_as_timed_out(self, run: LoadRun, gate: Gate) -> None:
        await asked(gate, 2)
        await run.drain(window_until_now(run), 0.05)
        assert [record.error for record in run.records] == [TIMEOUT, TIMEOUT]

    async def test_does_not_blame_requests_from_before_the_window(self, run: LoadRun, gate: Gate) -> None:
        await asked(gate, 2)
        now = asyncio.get_running_loop().time()
        await run.drain(Window(now, now), 0.05)
        assert [record.error for record in run.records] == [None, None]


class TestTheWatch:
    async def test_sees_how_long_no_token_came(
        self, run: LoadRun, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await asked(gate, 2)
        later: Callable[[], float] = lambda: asyncio.get_running_loop().time() + 90.0  # noqa: E731
        monkeypatch.setattr(run, "_clock", later)
        assert 85.0 < run.silent_for_s() < 95.0

    async def test_is_not_misled_by_requests_that_arrive_meanwhile(
        self, run: LoadRun, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await asked(gate, 2)
        now = asyncio.get_running_loop().time()
        monkeypatch.setattr(run, "_clock", lambda: now + 90.0)
        newcomer = asyncio.create_task(run._send(now + 89.0))
        await asyncio.sleep(0)
        assert len(run.records) == 3
        assert 85.0 < run.silent_for_s() < 95.0
        newcomer.cancel()

    async def test_counts_errors_in_a_row(self, run: LoadRun, gate: Gate) -> None:
        gate.status = 500
        gate.open.set()
        await asked(gate, 8)
        assert run.errors_in_a_row >= 2
        assert "ServerError" in run.last_error()

    async def test_raises_what_went_wrong_in_the_load_itself(self, run: LoadRun, gate: Gate) -> None:
        await asked(gate, 2)
        run._prompts = None  # type: ignore[assignment]  # stands for any fault of ours
        gate.open.set()
        with pytest.raises(ExceptionGroup) as caught:
            await run.failed()
        assert caught.group_contains(AttributeError)

"""Arrivals, on a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tuner.protocol import ClosedLoop, Poisson
from workers.load import arrivals
from workers.load.arrivals import offer
from workers.load.records import Record


class Desk:
    """Takes requests and answers them when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[float] = []
        self.open: list[asyncio.Future[Record]] = []
        self.arrived = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def send(self, due: float) -> Record:
        answer: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.due.append(due)
        self.open.append(answer)
        self.arrived.set()
        return await answer

    def answer(self, *, error: str | None = None) -> None:
        self.open.pop(0).set_result(Record(due=0.0, error=error))

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk()
    pause = asyncio.sleep

    async def jump(seconds: float) -> None:
        desk.now += seconds
        await pause(0)

    monkeypatch.setattr(arrivals.asyncio, "sleep", jump)
    yield desk
    monkeypatch.undo()


class TestAClosedLoop:
    async def test_has_as_many_requests_open_as_it_has_users(self, desk: Desk) -> None:
        load = asyncio.create_task(offer(ClosedLoop(concurrency=3), desk.send, clock=desk.clock, seed=0))
        await desk.settled()
        assert len(desk.open) == 3
        desk.now = 7.0
        desk.answer()
        await desk.settled()
        assert len(desk.open) == 3
        assert desk.due == [0.0, 0.0, 0.0, 7.0]
        load.cancel()

    async def test_pauses_after_an_error(self, desk: Desk) -> None:
        load = asyncio.create_task(offer(ClosedLoop(concurrency=1), desk.send, clock=desk.clock, seed=0))
        await desk.settled()
        desk.answer(error="connection")
        await desk.settled()
        assert desk.due == [0.0, arrivals.PAUSE_AFTER_ERROR_S]
        load.cancel()


class TestPoisson:
    async def run(self, desk: Desk, count: int, *, seed: int = 0, rate_per_s: float = 10.0) -> list[float]:
        load = asyncio.create_task(
            offer(Poisson(rate_per_s=rate_per_s), desk.send, clock=desk.clock, seed=seed)
        )
        while len(desk.due) < count:
            desk.arrived.clear()
            await desk.arrived.wait()
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        return desk.due[:count]

    async def test_never_waits_for_an_answer(self, desk: Desk) -> None:
        due = await self.run(desk, 1000)
        assert len(desk.open) >= 1000
        assert due == sorted(due)

    async def test_has_the_rate_and_the_spread_of_independent_arrivals(self, desk: Desk) -> None:
        due = await self.run(desk, 2000)
        gaps = [later - earlier for earlier, later in pairwise(due)]
        mean = sum(gaps) / len(gaps)
        assert mean == pytest.approx(0.1, rel=0.1)
        assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.1, rel=0.15)

    async def test_is_the_same_in_every_run_of_a_seed(self, desk: Desk) -> None:
        first = await self.run(desk, 50, seed=3)
        desk.now, desk.due = 0.0, []
        assert await self.run(desk, 50, seed=3) == pytest.approx(first)
        desk.now, desk.due = 0.0, []
        assert await self.run(desk, 50, seed=4) != pytest.approx(first)

    async def test_keeps_the_due_time_of_a_request_that_is_sent_late(self, desk: Desk) -> None:
        load = asyncio.create_task(offer(Poisson(rate_per_s=1.0), desk.send, clock=desk.clock, seed=0))
        await desk.settled()
        desk.now += 1000.0  # the event loop was away
        await desk.settled()
        late = [due for due in desk.due if due < 500.0]
        assert len(late) > 5
        load.cancel()

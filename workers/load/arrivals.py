"""When requests are due. Each process offers load until it is cancelled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import assert_never

from tuner.protocol import Arrivals, ClosedLoop, Poisson
from workers.load.records import Record

__all__ = ["Clock", "Send", "offer"]

Clock = Callable[[], float]
"""Seconds on the monotonic clock of the event loop."""

Send = Callable[[float], Coroutine[None, None, Record]]
"""Sends one request, due at the moment given, and returns when it has ended, however it ended."""

PAUSE_AFTER_ERROR_S = 0.25
"""A closed loop's user waits so long after an error: a server that refuses at once would else be asked
thousands of times a second, and the errors would drown what is measured."""


async def offer(arrivals: Arrivals, send: Send, *, clock: Clock, seed: int) -> None:
    """Offer load for ever; cancelling it cancels the requests in flight.

    Args:
        arrivals: the arrival process.
        send: is awaited for each request; a closed loop waits for it, an open loop does not.
        clock: the clock that due times are on.
        seed: decides the gaps of an open loop: two runs of one seed are offered the same.
    """
    match arrivals:
        case ClosedLoop():
            await _closed(arrivals.concurrency, send, clock)
        case Poisson():
            await _poisson(arrivals.rate_per_s, send, clock, random.Random(f"arrivals {seed}"))  # noqa: S311
        case _:
            assert_never(arrivals)


async def _closed(concurrency: int, send: Send, clock: Clock) -> None:
    async with asyncio.TaskGroup() as users:
        for _ in range(concurrency):
            users.create_task(_user(send, clock))


async def _user(send: Send, clock: Clock) -> None:
    while True:
        record = await send(clock())
        if record.error is not None:
            await asyncio.sleep(PAUSE_AFTER_ERROR_S)


async def _poisson(rate_per_s: float, send: Send, clock: Clock, gaps: random.Random) -> None:
    """Independent arrivals. One that is late is sent at once: its due time stays what it was."""
    due = clock()
    async with asyncio.TaskGroup() as requests:
        while True:
            due += gaps.expovariate(rate_per_s)
            await _until(due, clock)
            requests.create_task(_sent(send(due)))


async def _sent(request: Awaitable[Record]) -> None:
    await request


async def _until(moment: float, clock: Clock) -> None:
    # Even when late, let the requests that were just made have their turn.
    await asyncio.sleep(max(0.0, moment - clock()))

"""One run of load against one server, with a record of every request."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import NoReturn, Self

from tuner.protocol import Workload
from workers.load.arrivals import Clock, offer
from workers.load.client import CompletionClient
from workers.load.prompts import PromptSource
from workers.load.records import TIMEOUT, Record, Window

__all__ = ["LoadRun"]


class LoadRun:
    """Offers a workload from entering the context until leaving it.

    Load goes on while the requests of the window are drained: if it ended with the window, the last of them
    would meet an ever emptier server and look faster than they are.

    Attributes:
        records: every request so far, in the order in which they were made.
    """

    def __init__(
        self, workload: Workload, prompts: PromptSource, client: CompletionClient, *, clock: Clock
    ) -> None:
        self.records: list[Record] = []
        self._workload = workload
        self._prompts = prompts
        self._client = client
        self._clock = clock
        self._open: set[int] = set()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_end = clock()
        self._errors_in_a_row = 0

    async def __aenter__(self) -> Self:
        arrivals, seed = self._workload.arrivals, self._workload.seed
        self._task = asyncio.create_task(
            offer(arrivals, self._send, clock=self._clock, seed=seed), name="load"
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(
                self._task, return_exceptions=True
            )  # its own failure was failed()'s to raise

    @property
    def errors_in_a_row(self) -> int:
        """Requests that failed since the last one that did not."""
        return self._errors_in_a_row

    def silent_for_s(self) -> float:
        """Seconds since a token arrived or a request ended, while some request is open; 0 with none open.

        It begins with the oldest open request, so that new arrivals do not hide an engine that hangs.
        """
        if not self._open:
            return 0.0
        records = [self.records[index] for index in self._open]
        tokens = [record.chunks[-1] for record in records if record.chunks]
        return max(0.0, self._clock() - max(self._last_end, min(record.due for record in records), *tokens))

    async def failed(self) -> NoReturn:
        """Wait until the load generator itself fails, which is a fault of ours; raises its error."""
        if self._task is None:
            raise RuntimeError("use the run as a context manager")
        await asyncio.shield(self._task)
        raise RuntimeError("the load ended by itself")

    async def drain(self, window: Window, within_s: float) -> None:
        """Wait until all requests due before the window's end have ended.

        The warm-up's are awaited too: their tokens inside the window are counted by the ``usage`` at their
        end. Requests of the window that have not ended in time are noted as timed out.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(self.records[index].due < window.closed for index in self._open):
                    self._ended.clear()
                    await self._ended.wait()
        for index in self._open:
            if self.records[index].due in window:
                self.records[index].error = TIMEOUT

    def last_error(self) -> str:
        """What the server or the connection said when a request last failed."""
        return next((record.detail for record in reversed(self.records) if record.detail), "")

    async def _send(self, due: float) -> Record:
        record, index = Record(due), len(self.records)
        self.records.append(record)
        self._open.add(index)
        await self._client.send(record, self._prompts.next())
        self._open.discard(index)
        self._last_end = self._clock()
        self._errors_in_a_row = self._errors_in_a_row + 1 if record.error else 0
        self._ended.set()
        return record

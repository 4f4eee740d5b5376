"""The engine and its clients in virtual time: a loop over batches, with arrivals between them.

vLLM V1 composes the next batch while one runs (asynchronous scheduling), so a request that arrives during
batch b, and a place that falls free at its end, are seen by batch b + 2.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.protocol import ClosedLoop, Workload
from tuner.simulation.load import Lengths, due_times
from tuner.simulation.scheduler import Batch, Request, Scheduler

__all__ = ["TIMEOUT", "Client", "Engine", "Exchange", "Trace"]

TIMEOUT = "timeout"

SHORTEST_DRAIN_S = 60.0
"""The window's requests are awaited for twice its length, and at least so long, as the workers wait."""


@dataclass(frozen=True, slots=True)
class Client:
    """What lies between a user and the scheduler.

    Attributes:
        ingest_s: seconds in which the API server takes in one request, one after another.
        latency_s: seconds between the API server and the user, both ways together.
        token_s: seconds in which the API server sends one token's chunk, one after another.
    """

    ingest_s: float = 0.002
    latency_s: float = 0.004
    token_s: float = 30e-6


@dataclass(slots=True, eq=False)
class Exchange:
    """One request as its user sees it; seconds since the load began.

    Attributes:
        first_s: arrival of the first token; ``None`` while there is none.
        last_s: arrival of the last token; ``None`` while it has not come.
        error: kind of the error it ended in.
    """

    request: Request
    due_s: float
    sent_s: float
    first_s: float | None = None
    last_s: float | None = None
    error: str | None = None


@dataclass(slots=True)
class Trace:
    """Everything that happened.

    Attributes:
        exchanges: all requests in the order of sending.
        ends_s: when each batch's tokens reached the users (the mean of its tokens).
        emitted: tokens that each batch emitted.
        preempted: requests preempted before each batch.
        blocks_used: blocks held during each batch.
        blocks_total: blocks there are.
    """

    blocks_total: int
    exchanges: list[Exchange] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    blocks_used: list[int] = field(default_factory=list)


class Engine:
    """Runs a workload: load goes on until all requests that were due before the window's end are answered."""

    def __init__(
        self,
        scheduler: Scheduler,
        step_s: Callable[[Batch], float],
        client: Client,
    ) -> None:
        self._scheduler = scheduler
        self._step_s = step_s
        self._client = client
        self._api_free_s = 0.0
        self._arrivals: list[tuple[float, int]] = []
        self._open = 0
        self._trace = Trace(blocks_total=scheduler.pool.total)

    def run(self, workload: Workload, lengths: Lengths) -> Trace:
        """Offer the workload. What is still unanswered when the drain is over is noted as timed out."""
        self._lengths = lengths
        self._closes_s = workload.warmup_s + workload.measure_s
        self._closed_loop = isinstance(workload.arrivals, ClosedLoop)
        self._due = due_times(workload)
        self._next_due_s = next(self._due)
        self._serve(self._closes_s + max(2.0 * workload.measure_s, SHORTEST_DRAIN_S))
        for exchange in self._trace.exchanges:
            if exchange.last_s is None and exchange.due_s < self._closes_s:
                exchange.error = TIMEOUT
        return self._trace

    def _serve(self, until_s: float) -> None:
        now_s = 0.0
        asynchronous = self._scheduler.limits.asynchronous
        batch: Batch | None = None
        while now_s < until_s and (now_s < self._closes_s or self._open):
            self._admit_arrivals(now_s)
            batch = batch or self._scheduler.schedule()
            if batch is None:
                now_s = max(now_s, self._next_event_s())
                continue
            end_s = now_s + self._step_s(batch)
            following = self._scheduler.schedule() if asynchronous else None
            now_s = end_s
            self._deliver(batch, now_s)
            batch = following

    def _next_event_s(self) -> float:
        return min(self._arrivals[0][0] if self._arrivals else math.inf, self._next_due_s)

    # ------------------------------------------------------------ the users

    def _send(self, due_s: float) -> None:
        prompt = self._lengths.draw()
        number = len(self._trace.exchanges)
        request = Request(number, prompt.input_tokens, prompt.output_tokens, prompt.shared_tokens)
        self._trace.exchanges.append(Exchange(request, due_s, due_s))
        self._open += due_s < self._closes_s
        self._api_free_s = max(self._api_free_s, due_s + 0.5 * self._client.latency_s) + self._client.ingest_s
        heapq.heappush(self._arrivals, (self._api_free_s, number))

    def _admit_arrivals(self, now_s: float) -> None:
        while self._next_due_s <= now_s:
            self._send(self._next_due_s)
            self._next_due_s = next(self._due, math.inf)
        while self._arrivals and self._arrivals[0][0] <= now_s:
            _, number = heapq.heappop(self._arrivals)
            self._scheduler.add(self._trace.exchanges[number].request)

    def _end(self, exchange: Exchange, ended_s: float) -> None:
        exchange.last_s = ended_s
        self._open -= exchange.due_s < self._closes_s
        if self._closed_loop:
            self._send(ended_s)

    def _deliver(self, batch: Batch, now_s: float) -> None:
        client = self._client
        ended = self._scheduler.finish(batch)
        # A batch's tokens leave one after another, in no order that matters: each counts as the middle one.
        seen_s = now_s + 0.5 * client.latency_s + 0.5 * batch.emitted * client.token_s
        trace = self._trace
        trace.ends_s.append(seen_s)
        trace.emitted.append(batch.emitted)
        trace.preempted.append(batch.preempted)
        trace.blocks_used.append(batch.blocks_used)
        for request in batch.completed:
            exchange = trace.exchanges[request.number]
            if exchange.first_s is None:
                exchange.first_s = seen_s
        for request in ended:
            self._end(trace.exchanges[request.number], seen_s)

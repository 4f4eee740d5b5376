"""One attempt: start the engine, wait for it, warm it up, measure, and say what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from tuner.protocol import (
    Assignment,
    Failed,
    Failure,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    Phase,
    Verdict,
)
from workers.engines.base import Engine, EngineDescription, EngineUnreadableError
from workers.gpu import Gpu
from workers.guard import guarded
from workers.inquiry import Inquiry
from workers.load.client import CompletionClient
from workers.load.prompts import PromptSource
from workers.load.records import Window
from workers.load.run import LoadRun
from workers.measure import Figures, measure
from workers.process import LeftoversError
from workers.server_metrics import ServerFigures

__all__ = ["Attempt", "Fact", "Patience"]

Fact = str | int | float | bool | list[str] | dict[str, str]
"""Value of one entry of a measurement's provenance."""

HTTP_OK = 200
READY_POLL_S = 0.25
WATCH_S = 1.0
"""Pause between two looks at the engine under load, and between two readings of its metrics."""

DYING_S = 10.0
"""An API server whose engine is dead ends by itself; so long it is waited for, to have its exit code."""

ERRORS_BEFORE_A_LOOK = 20
"""After so many failed requests in a row the log is read: the API server may outlive its engine."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an attempt waits for what.

    Attributes:
        stall_s: without any token, before the engine is given up.
        drain_s: for the window's requests after its end; ``None`` is twice the window, at least a minute.
    """

    stall_s: float = 120.0
    drain_s: float | None = None

    def drain(self, measure_s: float) -> float:
        """Seconds that the drain after a window may take."""
        return max(60.0, 2.0 * measure_s) if self.drain_s is None else self.drain_s


class NoMeasurementError(Exception):
    """The attempt ends without a measurement.

    Attributes:
        failure: why.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class _ServerSide:
    """The server's figures over the window."""

    readings: list[ServerFigures] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """Preemptions between the first and the last reading, and the highest use of the KV cache."""
        found = {}
        counts = [reading.preemptions for reading in self.readings if reading.preemptions is not None]
        usages = [reading.kv_cache_usage for reading in self.readings if reading.kv_cache_usage is not None]
        if len(counts) > 1:
            found["preemptions"] = counts[-1] - counts[0]
        if usages:
            found["kv_cache_usage_peak"] = max(usages)
        return found


class Attempt:
    """One attempt at one trial. Run it once; then stop it, whatever came of it.

    Attributes:
        phase: what it is doing.
        partial: figures seen so far, for people who watch.
        changed: is called at every change of phase.
    """

    def __init__(
        self,
        assignment: Assignment,
        engine: Engine,
        *,
        gpus: tuple[Gpu, ...],
        facts: Mapping[str, Fact],
        patience: Patience,
    ) -> None:
        self.phase = Phase.STARTING
        self.partial: dict[str, float] = {}
        self.changed: Callable[[], None] = lambda: None
        self._assignment = assignment
        self._engine = engine
        self._facts = facts
        self._patience = patience
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._inquiry = Inquiry(assignment, engine, gpus)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the attempt began."""
        return self._clock() - self._started

    async def run(self) -> Outcome:
        """Take the measurement. Cancel it to give the attempt up."""
        try:
            return Measured(measurement=await self._measurement())
        except NoMeasurementError as end:
            failure = end.failure
        return (
            Infeasible(failure=failure) if failure.verdict is Verdict.INFEASIBLE else Failed(failure=failure)
        )

    async def stop(self, *, at_once: bool = False) -> None:
        """End the engine and wait until none of its processes is left.

        Raises:
            LeftoversError: some are left.
        """
        self._enter(Phase.STOPPING)
        await self._engine.stop(at_once=at_once)

    # ------------------------------------------------------------ the course of events

    async def _measurement(self) -> Measurement:
        startup_s = await self._start()
        self._enter(Phase.READY)
        try:
            description = await guarded(self._engine.describe(), self._engine_ends())
        except EngineUnreadableError as error:
            raise NoMeasurementError(self._inquiry.unreadable(error)) from error
        self._object(self._inquiry.too_long(description.max_model_len))
        seed = secrets.randbits(63)
        figures, server = await self._under_load(description, content_seed=seed)
        return Measurement(
            metrics={**figures.metrics, **server.metrics(), "startup_s": startup_s},
            errors=figures.errors,
            requests=figures.requests,
            window_s=self._assignment.workload.measure_s,
            resolved_args=dict(description.resolved_args),
            provenance=self._provenance(description, figures, seed),
        )

    async def _start(self) -> float:
        """Start the engine; seconds until its first healthy answer."""
        begun = self._clock()
        await self._engine.start()
        limit_s = self._assignment.startup_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await guarded(self._healthy(), self._engine_ends())
        except TimeoutError as error:
            raise NoMeasurementError(self._inquiry.not_ready(limit_s)) from error
        return self._clock() - begun

    async def _healthy(self) -> None:
        while await self._engine.health() != HTTP_OK:  # noqa: ASYNC110  # another process, it sends no event
            await asyncio.sleep(READY_POLL_S)

    async def _under_load(
        self, description: EngineDescription, *, content_seed: int
    ) -> tuple[Figures, _ServerSide]:
        workload = self._assignment.workload
        prompts = PromptSource(
            workload.prompts, description.vocabulary, seed=workload.seed, content_seed=content_seed
        )
        self._enter(Phase.WARMING_UP)
        client = CompletionClient(self._engine.url, description.model, clock=self._clock)
        async with client, LoadRun(workload, prompts, client, clock=self._clock) as load:
            guards = (self._engine_ends(), self._watch(load), load.failed())
            window, server = await guarded(self._window(load), *guards)
        figures = measure(load.records, window)
        drain_s = self._patience.drain(workload.measure_s)
        self._object(self._inquiry.too_many_errors(figures, drain_s, load.last_error()))
        return figures, server

    async def _window(self, load: LoadRun) -> tuple[Window, _ServerSide]:
        workload = self._assignment.workload
        await asyncio.sleep(workload.warmup_s)
        opened = self._clock()
        window = Window(opened, opened + workload.measure_s)
        self._enter(Phase.MEASURING)
        server = _ServerSide()
        first_at = await self._read(server)
        while (left_s := window.closed - self._clock()) > 0:
            await asyncio.sleep(min(WATCH_S, left_s))
            self._show(server, await self._read(server) - first_at)
        await load.drain(window, self._patience.drain(workload.measure_s))
        return window, server

    async def _read(self, server: _ServerSide) -> float:
        """Add a reading of the server's metrics; when it was taken."""
        text = await self._engine.metrics()
        if text is not None:
            server.readings.append(ServerFigures.read(text))
        return self._clock()

    def _show(self, server: _ServerSide, seconds: float) -> None:
        made = [
            reading.generated_tokens for reading in server.readings if reading.generated_tokens is not None
        ]
        if len(made) > 1 and seconds > 0:
            self.partial = {"output_tokens_per_s": (made[-1] - made[0]) / seconds}

    def _enter(self, phase: Phase) -> None:
        self.phase = self._inquiry.phase = phase
        self.changed()

    # ------------------------------------------------------------ what can go wrong

    def _object(self, failure: Failure | None) -> None:
        if failure is not None:
            raise NoMeasurementError(failure)

    async def _engine_ends(self) -> NoReturn:
        """Guard: the engine's process ends."""
        code = await self._engine.wait()
        with contextlib.suppress(LeftoversError):  # stop() after the attempt raises it again
            await self._engine.stop(at_once=True)  # its last words are in the log when all is gone
        raise NoMeasurementError(self._inquiry.ended(code))

    async def _watch(self, load: LoadRun) -> NoReturn:
        """Guard: the engine is dead behind its API server, makes no more tokens, or fails every request."""
        while True:
            await asyncio.sleep(WATCH_S)
            if (stalled_s := load.silent_for_s()) > self._patience.stall_s:
                raise NoMeasurementError(self._inquiry.stalled(stalled_s))
            if await self._engine.health() not in (HTTP_OK, None):
                await asyncio.sleep(DYING_S)  # if the process ends meanwhile, its own guard is faster
                raise NoMeasurementError(self._inquiry.dead())
            if load.errors_in_a_row >= ERRORS_BEFORE_A_LOOK:
                self._object(self._inquiry.look())

    def _provenance(
        self, description: EngineDescription, figures: Figures, content_seed: int
    ) -> dict[str, Fact]:
        return {
            **self._facts,
            "vllm_version": description.version or "",
            "model": self._assignment.engine.model,
            "argv": list(self._engine.argv),
            "env": dict(self._engine.env),
            "workload_seed": self._assignment.workload.seed,
            "content_seed": content_seed,
            "attempt": self._assignment.attempt,
            "requests_due": figures.due,
            **{f"{latency}_samples": count for latency, count in figures.samples.items()},
        }

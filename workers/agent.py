"""The worker: claims attempts one after the other and carries each to its end, until it is told to drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import traceback
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tuner.errors import FieldError
from tuner.protocol import (
    Assignment,
    ClaimRequest,
    Failed,
    Failure,
    FailureKind,
    Outcome,
    Phase,
    Release,
    Report,
    Verdict,
    WorkerDescription,
)
from workers.client import (
    ControlPlaneClient,
    ControlPlaneError,
    RefusedError,
    StaleLeaseError,
    patiently,
)
from workers.engines.base import Engine
from workers.engines.vllm import Site, VllmEngine
from workers.gpu import Gpu, driver_version, memory_used_bytes, owned_gpus
from workers.home import WorkerHome
from workers.host import describe_host, nightshift_version, vllm_version
from workers.lease import Ending, HeldLease, Why
from workers.process import LeftoversError, sweep
from workers.settings import WorkerSettings
from workers.signals import drain_requests, raise_file_limit
from workers.trial import Attempt, Fact, Patience

__all__ = ["Agent", "run"]

log = logging.getLogger(__name__)

T = TypeVar("T")

REPORT_WITHIN_S = 900.0
"""A measurement cost minutes of a GPU: a control plane that is being mended gets a quarter of an hour."""

DRAINED_REPORT_WITHIN_S = 20.0
"""Supervisors kill a worker that takes more than a minute or so to drain."""

RELEASE_WITHIN_S = 5.0
"""A release only saves the wait for the lease's expiry."""

IDLE_PAUSE_S = 0.5
"""Pause after a claim that came back empty, should the server not hold it."""

REFUSED_PAUSE_S = 10.0
"""Pause after a claim that the server refused for a reason that may pass, such as a quarantine."""

SWEEP_AGAIN_S = 10.0
GPU_SETTLES_S = 30.0
GPU_SLACK_BYTES = 512 * 1024**2
"""Memory by which the GPU may be fuller after an engine than before it: the driver keeps caches."""

TRACEBACK_LINES = 40


class Agent:
    """One worker at one control plane.

    Attributes:
        drain: set it to let the worker stop its engine, give its lease back, and return.
    """

    def __init__(
        self, settings: WorkerSettings, client: ControlPlaneClient, home: WorkerHome, gpus: tuple[Gpu, ...]
    ) -> None:
        self.drain = asyncio.Event()
        self._settings = settings
        self._client = client
        self._home = home
        self._gpus = gpus
        self._worker = WorkerDescription(name=settings.name_for(tuple(gpu.index for gpu in gpus)))

    async def serve(self) -> None:
        """Claim and run attempts until drained, or until the attempts allowed are used.

        Raises:
            FieldError: the control plane does not accept the worker's token.
        """
        await self._until_drained(self._introduce())
        left = self._settings.max_attempts
        while not self.drain.is_set() and left != 0:
            await self._until_drained(self._clean())
            assignment = await self._until_drained(self._claim())
            if assignment is not None:
                await self._carry_out(assignment)
                left = None if left is None else left - 1
        log.info("drained")

    async def _until_drained(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``, or ``None`` if the worker has to drain before it has one."""
        task = asyncio.create_task(work)
        drained = asyncio.create_task(self.drain.wait())
        try:
            await asyncio.wait({task, drained}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            drained.cancel()
            await asyncio.gather(task, drained, return_exceptions=True)

    # ------------------------------------------------------------ between attempts

    async def _introduce(self) -> None:
        self._worker = self._worker.model_copy(
            update={
                "nightshift_version": nightshift_version(),
                "vllm_version": await vllm_version(self._settings.vllm_python),
                "host": describe_host()["host"],
                "pid": os.getpid(),
                "gpus": len(self._gpus),
                "gpu": self._gpus[0].name if self._gpus else None,
                "gpu_memory_bytes": min((gpu.memory_bytes for gpu in self._gpus), default=None),
            }
        )
        if self._worker.vllm_version is None:
            log.warning("%s has no vLLM: set NIGHTSHIFT_VLLM_PYTHON", self._settings.vllm_python)
        with self._accepted():
            await patiently(None)(self._client.register, self._worker)
        log.info(
            "worker %s at %s, vLLM %s", self._worker.name, self._settings.server, self._worker.vllm_version
        )

    async def _clean(self) -> None:
        """End what an earlier engine left behind; no attempt starts beside it."""
        while True:
            try:
                killed = await sweep(self._home.mark, self._home.recall())
            except LeftoversError as error:
                log.error("%s; trying again", error)  # noqa: TRY400  # the message says it all
                await asyncio.sleep(SWEEP_AGAIN_S)
                continue
            if killed:
                log.warning("killed %d processes of an earlier engine", killed)
            self._home.forget()
            return

    async def _claim(self) -> Assignment | None:
        """One long poll."""
        request = ClaimRequest(worker=self._worker, wait_s=self._settings.claim_wait_s)
        begun = asyncio.get_running_loop().time()
        try:
            with self._accepted():
                assignment: Assignment | None = await patiently(None)(self._client.claim, request)
        except (StaleLeaseError, RefusedError) as error:
            log.warning("no claim: %s", error)
            await asyncio.sleep(REFUSED_PAUSE_S)
            return None
        if assignment is None and asyncio.get_running_loop().time() - begun < IDLE_PAUSE_S:
            await asyncio.sleep(IDLE_PAUSE_S)
        return assignment

    @contextlib.contextmanager
    def _accepted(self) -> Iterator[None]:
        """Say which setting is wrong when the control plane does not know who asks."""
        try:
            yield
        except RefusedError as error:
            if not error.unauthorised:
                raise
            fix = "make one by `nightshift token create --scope worker` and set NIGHTSHIFT_TOKEN"
            raise FieldError("NIGHTSHIFT_TOKEN", "…", problem=str(error), fix=fix) from error

    # ------------------------------------------------------------ one attempt

    async def _carry_out(self, assignment: Assignment) -> None:
        """Run one attempt to its end; nothing that goes wrong in it ends the worker."""
        name = f"trial {assignment.trial_number} of {assignment.study}, attempt {assignment.attempt}"
        log.info("%s: %s %s", name, assignment.args, assignment.env or "")
        try:
            engine = self._engine(assignment)
            await self._hold(assignment, self._attempt(assignment, engine))
        except Exception as error:
            log.exception("%s failed by a fault of the worker", name)
            await self._report(assignment, _own_fault(error, Phase.STARTING))

    def _engine(self, assignment: Assignment) -> Engine:
        folder: Path = self._home.attempt_folder(assignment.lease_id, keep=self._settings.keep_attempts)
        site = Site(
            python=self._settings.vllm_python,
            mark=self._home.mark,
            gpus=[gpu.index for gpu in self._gpus[: assignment.gpus]],
            grace_s=self._settings.stop_grace_s,
            remember=self._home.remember,
        )
        return VllmEngine(assignment, site, folder)

    def _attempt(self, assignment: Assignment, engine: Engine) -> Attempt:
        facts: dict[str, Fact] = {
            **describe_host(),
            "worker": self._worker.name,
            "nightshift_version": nightshift_version(),
            "gpu": self._worker.gpu or "",
            "gpus": [gpu.index for gpu in self._gpus[: assignment.gpus]],
            "gpu_driver": driver_version() or "",
        }
        return Attempt(
            assignment,
            engine,
            gpus=self._gpus[: assignment.gpus],
            facts=facts,
            patience=Patience(stall_s=self._settings.stall_s),
        )

    async def _hold(self, assignment: Assignment, attempt: Attempt) -> None:
        """Run the attempt while its lease is kept; stop its engine; then report, or give the lease back."""
        lease = HeldLease(
            self._client, assignment, attempt, progress_interval_s=self._settings.progress_interval_s
        )
        beating = asyncio.create_task(lease.keep(), name="heartbeats")
        try:
            result = await self._outcome(assignment, attempt, lease)
            if isinstance(result, Ending):
                await self._release(assignment, result)
            else:
                await self._report(assignment, result)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _outcome(self, assignment: Assignment, attempt: Attempt, lease: HeldLease) -> Outcome | Ending:
        """What came of the attempt, or why it was given up. The engine is gone when this returns."""
        memory_before = memory_used_bytes(self._gpus)
        work = asyncio.create_task(attempt.run(), name="attempt")
        drained = asyncio.create_task(self.drain.wait())
        ending: Ending | None = None
        try:
            watched: set[asyncio.Future[Any]] = {work, drained, lease.ended}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                ending = lease.ended.result() if lease.ended.done() else Ending(Why.STOP, "the worker drains")
                log.info("trial %d is given up: %s", assignment.trial_number, ending.reason)
        finally:
            phase = attempt.phase
            drained.cancel()
            work.cancel()
            await asyncio.gather(work, drained, return_exceptions=True)
            await self._stop(attempt, at_once=ending is not None and ending.why is not Why.STOP)
        await self._gpu_settles(memory_before)
        if ending is not None:
            return ending
        error = work.exception()
        if error is None:
            return work.result()
        log.error("trial %d failed by a fault of the worker", assignment.trial_number, exc_info=error)
        return _own_fault(error, phase)

    async def _stop(self, attempt: Attempt, *, at_once: bool) -> None:
        try:
            await attempt.stop(at_once=at_once)
        except LeftoversError as error:
            log.error("%s; no attempt starts before they are gone", error)  # noqa: TRY400  # nothing to trace
        else:
            self._home.forget()

    async def _gpu_settles(self, before: int | None) -> None:
        """Wait until the engine's GPU memory is free again, which the driver does a moment after its end."""
        deadline = asyncio.get_running_loop().time() + GPU_SETTLES_S
        while before is not None and (now := memory_used_bytes(self._gpus)) is not None:
            if now <= before + GPU_SLACK_BYTES:
                return
            if asyncio.get_running_loop().time() > deadline:
                log.warning("the GPU holds %d MiB more than before the attempt", (now - before) >> 20)
                return
            await asyncio.sleep(IDLE_PAUSE_S)

    # ------------------------------------------------------------ its end, told to the control plane

    async def _report(self, assignment: Assignment, outcome: Outcome) -> None:
        log.info("trial %d: %s", assignment.trial_number, _in_words(outcome))
        try:
            try:
                await self._hand_in(assignment, outcome)
            except RefusedError as error:
                log.error("trial %d: the report is refused: %s", assignment.trial_number, error)  # noqa: TRY400
                await self._hand_in(assignment, _own_fault(error, Phase.STOPPING))
        except StaleLeaseError as error:
            log.warning("trial %d: the report came too late: %s", assignment.trial_number, error)
        except (ControlPlaneError, TimeoutError) as error:
            log.warning("trial %d: the report is given up: %s", assignment.trial_number, error)

    async def _hand_in(self, assignment: Assignment, outcome: Outcome) -> None:
        """Report with patience, but with little once the worker drains."""
        report = Report(token=assignment.token, outcome=outcome)
        sending: asyncio.Task[None] = asyncio.create_task(
            patiently(REPORT_WITHIN_S)(self._client.report, assignment.lease_id, report)
        )
        drained = asyncio.create_task(self.drain.wait())
        try:
            await asyncio.wait({sending, drained}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait_for(sending, DRAINED_REPORT_WITHIN_S)
        finally:
            drained.cancel()
            sending.cancel()
            await asyncio.gather(sending, drained, return_exceptions=True)

    async def _release(self, assignment: Assignment, ending: Ending) -> None:
        if ending.why is Why.STALE:
            return
        release = Release(token=assignment.token, reason=ending.reason[:500])
        try:
            await patiently(RELEASE_WITHIN_S)(self._client.release, assignment.lease_id, release)
        except ControlPlaneError as error:
            log.warning("trial %d: not released: %s", assignment.trial_number, error)


def _own_fault(error: BaseException, phase: Phase) -> Failed:
    """A fault of ours is an outcome like any other: seen, counted, and no reason to blame a configuration."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return Failed(
        failure=Failure(
            kind=FailureKind.OTHER,
            verdict=Verdict.FAILED,
            retryable=True,
            fatal=False,
            phase=phase,
            message=f"the worker failed: {type(error).__name__}: {error}"[:4000],
            advice="this is a fault of Nightshift, not of the configuration: report it with the excerpt",
            excerpt=tuple(lines[-TRACEBACK_LINES:]),
        )
    )


def _in_words(outcome: Outcome) -> str:
    match outcome.kind:
        case "measured":
            rate = outcome.measurement.metrics.get("output_tokens_per_s")
            return f"measured, {rate:.1f} output tokens/s" if rate is not None else "measured"
        case "pruned_early":
            return f"pruned early: {outcome.reason}"
        case _:
            return f"{outcome.kind}: {outcome.failure.kind.value}: {outcome.failure.message}"


async def run(settings: WorkerSettings) -> None:
    """Be a worker until drained by SIGTERM, SIGINT or the parent's end; a second signal ends it at once.

    Raises:
        FieldError: a setting is wrong: the token, the GPUs, the name, the folder.
    """
    gpus = owned_gpus(settings.gpus)
    home = WorkerHome(settings.home, settings.name_for(tuple(gpu.index for gpu in gpus)))
    raise_file_limit()
    with home.locked(wait_s=settings.name_wait_s):
        async with ControlPlaneClient(settings.server, settings.bearer()) as client:
            agent = Agent(settings, client, home, gpus)
            with drain_requests(agent.drain, exit_with_parent=settings.exit_with_parent):
                await agent.serve()

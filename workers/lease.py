"""Holding a lease: heartbeats, what the server answers, and the moment at which the engine must be gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from enum import StrEnum

from tuner.protocol import Action, Assignment, Heartbeat
from workers.client import ControlPlaneClient, ControlPlaneError, StaleLeaseError
from workers.trial import Attempt

__all__ = ["Ending", "HeldLease", "Why", "margin_s"]

log = logging.getLogger(__name__)

BEATS_PER_TTL = 3.0
RETRIES_PER_TTL = 12.0
"""An unanswered heartbeat is sent again soon: a restart of the control plane should cost no lease."""

MARGIN_SHARE = 0.25
"""Part of the time to live that is kept for killing the engine: 15 s of a minute, and the kernel takes one or
two to free a GPU's memory."""


def margin_s(ttl_s: float) -> float:
    """How long before the server's expiry the engine is stopped."""
    return MARGIN_SHARE * ttl_s


class Why(StrEnum):
    """Why a lease ends before its attempt does."""

    STOP = "stop"
    LOST = "lost"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Ending:
    """The lease ends. After ``stop`` it is released; ``lost`` and ``stale`` want the engine gone at once."""

    why: Why
    reason: str


class HeldLease:
    """One lease, kept alive from the call of :meth:`keep` until that is cancelled.

    Attributes:
        ended: set once, when the attempt must not go on.
    """

    def __init__(
        self,
        client: ControlPlaneClient,
        assignment: Assignment,
        attempt: Attempt,
        *,
        progress_interval_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self._client = client
        self._assignment = assignment
        self._attempt = attempt
        self._progress_interval_s = progress_interval_s
        self._clock = loop.time
        self._ttl_s = assignment.ttl_s
        self._deadline = loop.time() + assignment.ttl_s - margin_s(assignment.ttl_s)
        self._news = asyncio.Event()
        attempt.changed = self._news.set

    async def keep(self) -> None:
        """Beat for ever, or until the lease is lost; cancel it when the lease was reported or released.

        It goes on after ``stop`` was heard, so that the lease is still ours while the engine ends.
        """
        while True:
            try:
                pause_s = await self._beat()
            except StaleLeaseError as error:
                return self._end(Why.STALE, str(error))
            except ControlPlaneError as error:
                log.warning("heartbeat of trial %d: %s", self._assignment.trial_number, error)
                pause_s = self._ttl_s / RETRIES_PER_TTL
            except TimeoutError:
                pause_s = 0.0
            if self._clock() >= self._deadline:
                return self._end(Why.LOST, f"the control plane has not answered for {self._ttl_s:g} s")
            await self._pause(pause_s)

    async def _beat(self) -> float:
        """One heartbeat; the time until the next."""
        heartbeat = Heartbeat(
            token=self._assignment.token,
            phase=self._attempt.phase,
            elapsed_s=self._attempt.elapsed_s,
            partial=self._attempt.partial,
        )
        sent_at = self._clock()
        async with asyncio.timeout_at(self._deadline):
            answer = await self._client.heartbeat(self._assignment.lease_id, heartbeat)
        self._ttl_s = answer.ttl_s
        self._deadline = sent_at + answer.ttl_s - margin_s(answer.ttl_s)
        if answer.action is Action.STOP:
            self._end(Why.STOP, answer.reason or "the control plane says so")
        return min(answer.ttl_s / BEATS_PER_TTL, self._progress_interval_s)

    async def _pause(self, seconds: float) -> None:
        """Until the next heartbeat is due, the phase changes, or the deadline comes."""
        until = min(self._clock() + seconds, self._deadline)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        self._news.clear()

    def _end(self, why: Why, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(Ending(why, reason))

"""``/api/v1/leases``: the protocol that workers speak."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Depends, Request, Response, status
from fastapi.concurrency import run_in_threadpool

from app.api.auth import Plane, needs
from app.api.paging import Cursor, Limit, decode_newest_first, encode
from app.api.requests import CheckedRoute
from app.api.schemas import Lease, Page
from app.errors import StaleLeaseError
from app.services import leases
from app.services.plane import ControlPlane
from app.services.tokens import Scope
from tuner.protocol import Assignment, ClaimRequest, Heartbeat, HeartbeatAnswer, Release, Report

__all__ = ["router"]

router = APIRouter(prefix="/leases", tags=["leases"], route_class=CheckedRoute)
logger = logging.getLogger(__name__)

AsWorker = Depends(needs(Scope.WORKER))
RECHECK_S = 1.0
"""Another replica's work is not announced in this process: a waiting claim looks by itself this often."""


@router.post("/claim", dependencies=[AsWorker], responses={204: {"description": "nothing to do now"}})
async def claim(request: Request, body: ClaimRequest, response: Response) -> Assignment | None:
    """The next attempt for a worker. Waits up to ``wait_s`` for one, then answers 204."""
    plane: ControlPlane = request.app.state.plane
    assignment = await _claim_or_wait(request, plane, body)
    if assignment is None:
        response.status_code = status.HTTP_204_NO_CONTENT
        return None
    if await request.is_disconnected():
        await run_in_threadpool(_give_back, plane, assignment)
    return assignment


async def _claim_or_wait(request: Request, plane: ControlPlane, body: ClaimRequest) -> Assignment | None:
    loop = asyncio.get_running_loop()
    work = asyncio.Event()
    unsubscribe = plane.wakeups.subscribe(lambda: loop.call_soon_threadsafe(work.set))
    deadline = loop.time() + body.wait_s
    try:
        while True:
            work.clear()
            if await request.is_disconnected():
                return None
            assignment = await run_in_threadpool(leases.claim, plane, body)
            left = deadline - loop.time()
            if assignment is not None or left <= 0 or request.app.state.stopping.is_set():
                return assignment
            try:
                await asyncio.wait_for(work.wait(), min(left, RECHECK_S))
            except TimeoutError:
                continue
    finally:
        unsubscribe()


def _give_back(plane: ControlPlane, assignment: Assignment) -> None:
    """The worker went away before it heard of its lease."""
    gone = Release(token=assignment.token, reason="the worker hung up before the grant")
    try:
        leases.release(plane, assignment.lease_id, gone)
    except StaleLeaseError:
        logger.info("lease %s had ended before it could be given back", assignment.lease_id)


@router.post("/{lease_id}/heartbeat", dependencies=[AsWorker])
def heartbeat(plane: Plane, lease_id: str, body: Heartbeat) -> HeartbeatAnswer:
    """Keep a lease, and hear whether to go on."""
    return leases.beat(plane, lease_id, body)


@router.post("/{lease_id}/report", status_code=status.HTTP_204_NO_CONTENT, dependencies=[AsWorker])
def report(plane: Plane, lease_id: str, body: Report) -> None:
    """The outcome of an attempt; the same one may be sent again."""
    leases.report(plane, lease_id, body)


@router.post("/{lease_id}/release", status_code=status.HTTP_204_NO_CONTENT, dependencies=[AsWorker])
def release(plane: Plane, lease_id: str, body: Release) -> None:
    """Give an attempt back unfinished."""
    leases.release(plane, lease_id, body)


@router.get("", dependencies=[Depends(needs(Scope.VIEWER))])
def list_leases(
    plane: Plane, study: str | None = None, live: bool = False, limit: Limit = 100, cursor: Cursor = None
) -> Page[Lease]:
    """Leases, newest first; ``live`` leaves out those that have ended."""
    before = decode_newest_first(cursor)
    rows = leases.page(plane, study=study, live=live, before=before, limit=limit + 1)
    more = rows[limit - 1] if len(rows) > limit else None
    items = [Lease.of(row) for row in rows[:limit]]
    return Page(items=items, next=encode(more.created_at, more.id) if more else None)

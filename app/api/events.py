"""``/api/v1/events``: what happens, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from app.api.auth import needs
from app.api.requests import MAX_INTEGER, CheckedRoute
from app.api.schemas import Event
from app.services import events
from app.services.tokens import Scope

__all__ = ["router"]

router = APIRouter(prefix="/events", tags=["events"], route_class=CheckedRoute)

RECHECK_S = 1.0
KEEP_ALIVE_S = 15.0


@router.get(
    "",
    dependencies=[Depends(needs(Scope.VIEWER))],
    response_class=StreamingResponse,
    responses={200: {"description": "the events", "content": {"text/event-stream": {}}}},
)
async def listen(
    request: Request,
    study: Annotated[str | None, Query(max_length=100)] = None,
    after: Annotated[int, Query(ge=0, lt=MAX_INTEGER)] = 0,
    last_event_id: Annotated[int | None, Header(ge=0, lt=MAX_INTEGER)] = None,
) -> StreamingResponse:
    """Events behind ``after`` or ``Last-Event-ID``, then each new one as it happens."""
    start = after if last_event_id is None else last_event_id
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(request, study, start), media_type="text/event-stream", headers=headers)


async def _stream(request: Request, study: str | None, position: int) -> AsyncIterator[str]:
    state = request.app.state
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    unsubscribe = state.plane.wakeups.subscribe(lambda: loop.call_soon_threadsafe(news.set))
    quiet_since = loop.time()
    try:
        while not state.stopping.is_set() and not await request.is_disconnected():
            news.clear()
            for row in await run_in_threadpool(events.after, state.plane, position, study=study):
                position, quiet_since = row.id, loop.time()
                yield f"id: {row.id}\nevent: {row.kind}\ndata: {Event.of(row).model_dump_json()}\n\n"
            if loop.time() - quiet_since > KEEP_ALIVE_S:
                quiet_since = loop.time()
                yield ": still here\n\n"
            try:
                await asyncio.wait_for(news.wait(), RECHECK_S)
            except TimeoutError:
                continue
    finally:
        unsubscribe()

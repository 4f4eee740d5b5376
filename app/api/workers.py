"""``/api/v1/workers``."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.api.auth import Plane, needs
from app.api.paging import Cursor, Limit, decode, encode
from app.api.requests import CheckedRoute
from app.api.schemas import Page, Worker
from app.services import workers
from app.services.tokens import Scope
from tuner.protocol import WorkerDescription

__all__ = ["router"]

router = APIRouter(prefix="/workers", tags=["workers"], route_class=CheckedRoute)


@router.post("", dependencies=[Depends(needs(Scope.WORKER))])
def register(plane: Plane, body: WorkerDescription) -> Worker:
    """A worker introduces itself."""
    return Worker.of(workers.register(plane, body))


@router.get("", dependencies=[Depends(needs(Scope.VIEWER))])
def list_workers(plane: Plane, limit: Limit = 100, cursor: Cursor = None) -> Page[Worker]:
    """Workers by name."""
    after = decode(cursor, str)[0] if cursor else ""
    rows = workers.page(plane, after=after, limit=limit + 1)
    items = [Worker.of(row) for row in rows[:limit]]
    return Page(items=items, next=encode(items[-1].name) if len(rows) > limit else None)

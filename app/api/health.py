"""``/api/v1/healthz`` and ``/api/v1/readyz``; they need no token and tell nothing."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.auth import Plane
from app.api.requests import CheckedRoute

__all__ = ["router"]

router = APIRouter(tags=["health"], route_class=CheckedRoute)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(plane: Plane) -> dict[str, str]:
    """The database answers too; 503 when it does not."""
    plane.database.ping()
    return {"status": "ready"}

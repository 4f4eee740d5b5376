"""Events for whoever follows along."""

from __future__ import annotations

from app.db import events
from app.db.events import EventRow
from app.services.plane import ControlPlane

__all__ = ["EventRow", "after"]


def after(
    plane: ControlPlane, event_id: int, *, study: str | None = None, limit: int = 500
) -> list[EventRow]:
    """The events behind ``event_id``, oldest first."""
    with plane.database.read() as connection:
        return events.after(connection, event_id, study=study, limit=limit)

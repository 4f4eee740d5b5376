"""Events: what happened, written in the transaction in which it happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, or_, select, text

from app.db.clock import db_now
from app.db.tables import events, studies

__all__ = ["EventRow", "after", "record"]

SETTLED = "age(ns_events.xmin) > age(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid))"
"""On PostgreSQL: every transaction that began to write before this row's has ended."""
SETTLED_AFTER_S = 10.0
"""Older events are shown in any case: a long write of someone else's must not hold them up. None of our
own transactions lasts that long."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event.

    Attributes:
        id: grows with each event; where a listener went on from.
        study: name of the study; ``None`` for what belongs to none.
        kind: noun and verb, e.g. ``lease.granted``.
        data: what is worth knowing about it.
        at: Unix seconds.
    """

    id: int
    study: str | None
    kind: str
    data: Mapping[str, Any]
    at: float


def record(connection: Connection, kind: str, *, study_id: str | None = None, **data: object) -> None:
    """Write an event."""
    connection.execute(insert(events).values(study_id=study_id, kind=kind, data=data, at=db_now()))


def after(
    connection: Connection, event_id: int, *, study: str | None = None, limit: int = 500
) -> list[EventRow]:
    """The events behind ``event_id``, oldest first.

    An event waits for those with lower numbers that are not committed yet: a listener that goes on from the
    last number it saw would never see them.
    """
    query = (
        select(events.c.id, studies.c.name, events.c.kind, events.c.data, events.c.at)
        .select_from(events.outerjoin(studies, studies.c.id == events.c.study_id))
        .where(events.c.id > event_id)
        .order_by(events.c.id)
        .limit(limit)
    )
    if connection.dialect.name == "postgresql":  # SQLite's writers come one after another
        query = query.where(or_(text(SETTLED), events.c.at <= db_now() - SETTLED_AFTER_S))
    if study is not None:
        query = query.where(studies.c.name == study)
    return [EventRow(*row) for row in connection.execute(query)]

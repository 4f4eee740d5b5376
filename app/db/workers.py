"""Rows of ``ns_workers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.db import events
from app.db.clock import db_now
from app.db.tables import workers
from tuner.protocol import WorkerDescription

__all__ = ["ACTIVE", "QUARANTINED", "WorkerRow", "by_name", "page", "quarantine", "seen", "touch"]

ACTIVE, QUARANTINED = "active", "quarantined"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker; ``reason`` says why it is quarantined."""

    name: str
    state: str
    reason: str | None
    description: WorkerDescription
    registered_at: float
    seen_at: float


def _row(values: Any) -> WorkerRow:
    found = dict(values._mapping)
    return WorkerRow(**{**found, "description": WorkerDescription.model_validate(found["description"])})


def by_name(connection: Connection, name: str) -> WorkerRow | None:
    """One worker."""
    found = connection.execute(select(workers).where(workers.c.name == name)).one_or_none()
    return None if found is None else _row(found)


def page(connection: Connection, *, after: str, limit: int) -> list[WorkerRow]:
    """Workers with a name behind ``after``, in order."""
    query = select(workers).where(workers.c.name > after).order_by(workers.c.name).limit(limit)
    return [_row(found) for found in connection.execute(query)]


def seen(connection: Connection, description: WorkerDescription) -> WorkerRow:
    """Note that a worker is there; a new process of a quarantined worker starts with a clean record."""
    before = by_name(connection, description.name)
    if before is None and _add(connection, description):
        return _there(connection, description.name)
    before = before or _there(connection, description.name)
    values: dict[str, object] = {"description": description.model_dump(mode="json"), "seen_at": db_now()}
    if before.description.pid != description.pid:
        values |= {"state": ACTIVE, "reason": None}
    connection.execute(update(workers).where(workers.c.name == description.name).values(values))
    return _there(connection, description.name)


def _add(connection: Connection, description: WorkerDescription) -> bool:
    """Insert a worker; ``False`` when another process has done so just now."""
    values = {"name": description.name, "state": ACTIVE, "description": description.model_dump(mode="json")}
    try:
        with connection.begin_nested():
            connection.execute(insert(workers).values(**values, registered_at=db_now(), seen_at=db_now()))
    except IntegrityError:
        return False
    events.record(connection, "worker.registered", worker=description.name)
    return True


def _there(connection: Connection, name: str) -> WorkerRow:
    found = by_name(connection, name)
    if found is None:
        raise RuntimeError(f"worker {name} vanished in its own transaction")
    return found


def touch(connection: Connection, name: str) -> None:
    """A worker gave a sign of life."""
    connection.execute(update(workers).where(workers.c.name == name).values(seen_at=db_now()))


def quarantine(connection: Connection, name: str, reason: str) -> None:
    """Set a worker aside: it gets no trial until it is started anew."""
    connection.execute(update(workers).where(workers.c.name == name).values(state=QUARANTINED, reason=reason))
    events.record(connection, "worker.quarantined", worker=name, reason=reason)

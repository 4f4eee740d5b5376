"""Workers: who there is, and who was set aside."""

from __future__ import annotations

from app.db import workers
from app.db.workers import WorkerRow
from app.services.plane import ControlPlane
from tuner.errors import FieldError
from tuner.protocol import PROTOCOL_VERSION, WorkerDescription

__all__ = ["check_protocol", "page", "register"]


def check_protocol(worker: WorkerDescription) -> None:
    """Refuse a worker that speaks another version of the protocol.

    Raises:
        FieldError: it does.
    """
    if worker.protocol_version != PROTOCOL_VERSION:
        raise FieldError(
            "worker.protocol_version",
            worker.protocol_version,
            problem=f"this server speaks version {PROTOCOL_VERSION}",
            fix="install the same Nightshift version on both sides",
        )


def register(plane: ControlPlane, worker: WorkerDescription) -> WorkerRow:
    """Note that a worker is there.

    Raises:
        FieldError: it speaks another version of the protocol.
    """
    check_protocol(worker)
    with plane.database.write() as connection:
        return workers.seen(connection, worker)


def page(plane: ControlPlane, *, after: str = "", limit: int = 100) -> list[WorkerRow]:
    """Workers with a name behind ``after``, in order."""
    with plane.database.read() as connection:
        return workers.page(connection, after=after, limit=limit)

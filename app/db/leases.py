"""Rows of ``ns_leases``. Every write by a holder is fenced by its token's hash and the state it expects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, insert, or_, select, update

from app.db import events
from app.db.clock import db_now
from app.db.tables import leases
from app.errors import StaleLeaseError
from app.lifecycle.lease import LEASE, LeaseState
from tuner.protocol import Phase

__all__ = [
    "LeaseRow",
    "add",
    "beat",
    "by_id",
    "due",
    "grant",
    "hash_token",
    "held",
    "latest_by_trial",
    "move",
    "of_trial",
    "page",
    "reporting",
    "reserved",
]


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One lease; times are Unix seconds on the database's clock."""

    id: str
    study_id: str
    trial_number: int | None
    attempt: int
    worker: str
    state: LeaseState
    token_hash: str | None
    expires_at: float
    phase: str | None
    partial: Mapping[str, float] | None
    elapsed_s: float | None
    report_hash: str | None
    reason: str | None
    created_at: float
    ended_at: float | None


def hash_token(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _row(values: Any) -> LeaseRow:
    found = dict(values._mapping)
    return LeaseRow(**{**found, "state": LeaseState(found["state"])})


def add(connection: Connection, lease: Mapping[str, Any], *, ttl_s: float) -> None:
    """Insert a reserved lease: ``id``, ``study_id``, ``worker``, ``attempt``, perhaps ``trial_number``."""
    connection.execute(
        insert(leases).values(
            **lease, state=LeaseState.RESERVED.value, created_at=db_now(), expires_at=db_now() + ttl_s
        )
    )
    events.record(
        connection, "lease.reserved", study_id=lease["study_id"], lease=lease["id"], worker=lease["worker"]
    )


def grant(connection: Connection, lease_id: str, *, trial_number: int, token: str, ttl_s: float) -> None:
    """Hand a reserved lease to its worker.

    Raises:
        StaleLeaseError: the reservation has lapsed.
    """
    granted = connection.execute(
        update(leases)
        .where(leases.c.id == lease_id, leases.c.state == LeaseState.RESERVED.value)
        .values(
            state=LeaseState.HELD.value,
            trial_number=trial_number,
            token_hash=hash_token(token),
            phase=Phase.STARTING.value,
            expires_at=db_now() + ttl_s,
        )
    )
    if granted.rowcount == 0:
        raise StaleLeaseError(lease_id)
    lease = by_id(connection, lease_id)
    if lease is not None:
        events.record(
            connection,
            "lease.granted",
            study_id=lease.study_id,
            lease=lease_id,
            worker=lease.worker,
            number=trial_number,
            attempt=lease.attempt,
        )


def by_id(connection: Connection, lease_id: str) -> LeaseRow | None:
    """One lease."""
    found = connection.execute(select(leases).where(leases.c.id == lease_id)).one_or_none()
    return None if found is None else _row(found)


def reserved(connection: Connection, lease_id: str) -> LeaseRow | None:
    """The lease, locked, if it is still reserved."""
    query = (
        select(leases)
        .where(leases.c.id == lease_id, leases.c.state == LeaseState.RESERVED.value)
        .with_for_update()
    )
    found = connection.execute(query).one_or_none()
    return None if found is None else _row(found)


def held(connection: Connection, lease_id: str, token: str) -> LeaseRow:
    """The lease, locked, if ``token`` holds it.

    A lease past its time that nobody has taken back yet is still held: no one else can run the trial, so
    a late report loses nothing and harms no one.

    Raises:
        StaleLeaseError: it is not held, or by another token.
    """
    query = (
        select(leases)
        .where(
            leases.c.id == lease_id,
            leases.c.token_hash == hash_token(token),
            leases.c.state == LeaseState.HELD.value,
        )
        .with_for_update()
    )
    found = connection.execute(query).one_or_none()
    if found is None:
        raise StaleLeaseError(lease_id)
    return _row(found)


def beat(
    connection: Connection, lease_id: str, token: str, *, ttl_s: float, seen: Mapping[str, Any]
) -> LeaseRow:
    """Extend a lease that has not run out, and note its phase.

    Raises:
        StaleLeaseError: it is not held with this token, or its time is over.
    """
    extended = connection.execute(
        update(leases)
        .where(
            leases.c.id == lease_id,
            leases.c.token_hash == hash_token(token),
            leases.c.state == LeaseState.HELD.value,
            leases.c.expires_at > db_now(),
        )
        .values(expires_at=db_now() + ttl_s, **seen)
    )
    lease = by_id(connection, lease_id)
    if extended.rowcount == 0 or lease is None:
        raise StaleLeaseError(lease_id)
    return lease


def move(
    connection: Connection,
    lease: LeaseRow,
    target: LeaseState,
    *,
    reason: str | None = None,
    report_hash: str | None = None,
) -> bool:
    """Move a lease from the state in which the caller saw it; ``False`` when it has moved meanwhile."""
    LEASE.check(lease.state, target)
    values: dict[str, object] = {"state": target.value}
    if target in LEASE.final:
        values["ended_at"] = db_now()
    if reason is not None:
        values["reason"] = reason
    if report_hash is not None:
        values["report_hash"] = report_hash
    moved = connection.execute(
        update(leases).where(leases.c.id == lease.id, leases.c.state == lease.state.value).values(values)
    )
    if moved.rowcount == 0:
        return False
    events.record(
        connection,
        f"lease.{target.value}",
        study_id=lease.study_id,
        lease=lease.id,
        worker=lease.worker,
        number=lease.trial_number,
        reason=reason,
    )
    return True


def due(connection: Connection) -> list[LeaseRow]:
    """Reserved and held leases whose time is over, locked; rows held by others are passed over."""
    states = [LeaseState.RESERVED.value, LeaseState.HELD.value]
    query = (
        select(leases)
        .where(leases.c.state.in_(states), leases.c.expires_at <= db_now())
        .order_by(leases.c.expires_at)
        .with_for_update(skip_locked=True)
    )
    return [_row(found) for found in connection.execute(query)]


def reporting(connection: Connection, study_id: str, number: int) -> LeaseRow | None:
    """The lease whose report is being told to Optuna."""
    query = select(leases).where(
        leases.c.study_id == study_id,
        leases.c.trial_number == number,
        leases.c.state == LeaseState.REPORTING.value,
    )
    found = connection.execute(query).one_or_none()
    return None if found is None else _row(found)


def of_trial(connection: Connection, study_id: str, number: int) -> list[LeaseRow]:
    """All leases of a trial, oldest first."""
    query = (
        select(leases)
        .where(leases.c.study_id == study_id, leases.c.trial_number == number)
        .order_by(leases.c.created_at, leases.c.id)
    )
    return [_row(found) for found in connection.execute(query)]


def latest_by_trial(connection: Connection, study_id: str) -> dict[int, LeaseRow]:
    """The newest lease of each trial."""
    newest = (
        select(leases.c.trial_number, func.max(leases.c.created_at).label("created_at"))
        .where(leases.c.study_id == study_id, leases.c.trial_number.is_not(None))
        .group_by(leases.c.trial_number)
        .subquery()
    )
    query = (
        select(leases)
        .join(
            newest,
            (leases.c.trial_number == newest.c.trial_number) & (leases.c.created_at == newest.c.created_at),
        )
        .where(leases.c.study_id == study_id)
    )
    return {
        row.trial_number: row for row in map(_row, connection.execute(query)) if row.trial_number is not None
    }


def page(
    connection: Connection,
    *,
    study_id: str | None,
    live: bool,
    before: tuple[float, str] | None = None,
    limit: int,
) -> list[LeaseRow]:
    """Leases, newest first, from behind ``before`` (created_at, id); ``live`` leaves out the ended ones."""
    query = select(leases).order_by(leases.c.created_at.desc(), leases.c.id.desc()).limit(limit)
    if before is not None:
        at, lease_id = before
        older = or_(leases.c.created_at < at, and_(leases.c.created_at == at, leases.c.id < lease_id))
        query = query.where(older)
    if study_id is not None:
        query = query.where(leases.c.study_id == study_id)
    if live:
        query = query.where(leases.c.ended_at.is_(None))
    return [_row(found) for found in connection.execute(query)]

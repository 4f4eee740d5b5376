"""Rows of ``ns_studies``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from app.db import events
from app.db.clock import db_now
from app.db.tables import leases, studies, trials
from app.errors import ConflictError, StateError
from app.lifecycle.lease import LeaseState
from app.lifecycle.machine import IllegalMoveError
from app.lifecycle.study import STUDY, StudyState
from tuner.spec import StudySpec

__all__ = [
    "StudyRow",
    "Tally",
    "add",
    "by_id",
    "by_idempotency_key",
    "by_name",
    "ended_with_waiting_trials",
    "in_states",
    "lock",
    "move",
    "page",
    "save_recommendation",
    "tally",
    "trial_counts",
]


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One study; times are Unix seconds."""

    id: str
    name: str
    state: StudyState
    reason: str | None
    spec: StudySpec
    recommendation: Mapping[str, Any] | None
    created_at: float
    started_at: float | None
    deadline_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Tally:
    """What a study has used of its budget.

    Attributes:
        trials: trials that exist.
        unfinished: those that wait or run.
        waiting: those that wait.
        reserved: leases for which a configuration is being chosen.
        live: leases that are reserved, held or being reported.
        overdue: whether the study's hours are over.
    """

    trials: int
    unfinished: int
    waiting: int
    reserved: int
    live: int
    overdue: bool


_COLUMNS = (
    studies.c.id, studies.c.name, studies.c.state, studies.c.reason, studies.c.spec, studies.c.recommendation,
    studies.c.created_at, studies.c.started_at, studies.c.deadline_at, studies.c.ended_at,
)  # fmt: skip


def _row(values: Any) -> StudyRow:
    found = dict(values._mapping)
    return StudyRow(
        **{**found, "state": StudyState(found["state"]), "spec": StudySpec.model_validate(found["spec"])}
    )


def add(connection: Connection, study_id: str, spec: StudySpec, idempotency_key: str | None) -> None:
    """Insert a draft.

    Raises:
        ConflictError: a study has that name or that key.
    """
    values = {
        "id": study_id,
        "name": spec.name,
        "state": StudyState.DRAFT.value,
        "spec": spec.model_dump(mode="json"),
        "idempotency_key": idempotency_key,
    }
    try:
        connection.execute(insert(studies).values(**values, created_at=db_now()))
    except IntegrityError as error:
        raise ConflictError(
            f"a study named {spec.name} exists", field="name", value=spec.name, fix="choose another name"
        ) from error
    events.record(connection, "study.created", study_id=study_id, state=StudyState.DRAFT.value)


def by_id(connection: Connection, study_id: str) -> StudyRow:
    """The study with that id, which must exist."""
    return _row(connection.execute(select(*_COLUMNS).where(studies.c.id == study_id)).one())


def by_name(connection: Connection, name: str) -> StudyRow | None:
    """The study of that name."""
    found = connection.execute(select(*_COLUMNS).where(studies.c.name == name)).one_or_none()
    return None if found is None else _row(found)


def by_idempotency_key(connection: Connection, key: str) -> StudyRow | None:
    """The study that a request with that key has made."""
    found = connection.execute(select(*_COLUMNS).where(studies.c.idempotency_key == key)).one_or_none()
    return None if found is None else _row(found)


def in_states(connection: Connection, states: Collection[StudyState]) -> list[StudyRow]:
    """All studies in these states, oldest first."""
    query = (
        select(*_COLUMNS)
        .where(studies.c.state.in_([state.value for state in states]))
        .order_by(studies.c.created_at, studies.c.id)
    )
    return [_row(found) for found in connection.execute(query)]


def ended_with_waiting_trials(connection: Connection) -> list[StudyRow]:
    """Studies that have ended while trials of theirs still wait."""
    waiting = select(trials.c.study_id).where(trials.c.state == "waiting")
    query = select(*_COLUMNS).where(studies.c.ended_at.is_not(None), studies.c.id.in_(waiting))
    return [_row(found) for found in connection.execute(query)]


def page(
    connection: Connection, *, state: StudyState | None, before: tuple[float, str] | None, limit: int
) -> list[StudyRow]:
    """Studies, newest first, from behind ``before`` (created_at, id)."""
    query = select(*_COLUMNS).order_by(studies.c.created_at.desc(), studies.c.id.desc()).limit(limit)
    if state is not None:
        query = query.where(studies.c.state == state.value)
    if before is not None:
        at, study_id = before
        older = or_(studies.c.created_at < at, and_(studies.c.created_at == at, studies.c.id < study_id))
        query = query.where(older)
    return [_row(found) for found in connection.execute(query)]


def lock(connection: Connection, study_id: str) -> StudyRow:
    """The study, which nobody else changes until this transaction ends.

    Rows that point to it may still be written (``FOR NO KEY UPDATE``): every event does, and whoever waited
    here with a lease locked would deadlock with the claim that waits for that lease.
    """
    query = select(*_COLUMNS).where(studies.c.id == study_id).with_for_update(key_share=True)
    return _row(connection.execute(query).one())


def move(connection: Connection, study: StudyRow, target: StudyState, reason: str | None = None) -> None:
    """Move a study, guarded by its life cycle and by the state that the caller saw.

    Raises:
        StateError: the life cycle has no such move, or the study has moved meanwhile.
    """
    try:
        STUDY.check(study.state, target)
    except IllegalMoveError as error:
        raise _state_error(study, target) from error
    values: dict[str, object] = {"state": target.value, "reason": reason}
    if study.state is StudyState.DRAFT and target is StudyState.RUNNING:
        values["started_at"] = db_now()
        if study.spec.budget.hours is not None:
            values["deadline_at"] = db_now() + study.spec.budget.hours * 3600.0
    if target in STUDY.final:
        values["ended_at"] = db_now()
    moved = connection.execute(
        update(studies).where(studies.c.id == study.id, studies.c.state == study.state.value).values(values)
    )
    if moved.rowcount == 0:
        raise _state_error(study, target)
    events.record(
        connection,
        f"study.{target.value}",
        study_id=study.id,
        source=study.state.value,
        state=target.value,
        reason=reason,
    )


def _state_error(study: StudyRow, target: StudyState) -> StateError:
    possible = (
        ", ".join(sorted(state.value for state in STUDY.moves[study.state])) or "nothing: that is final"
    )
    return StateError(
        f"study {study.name} is {study.state.value} and cannot become {target.value}",
        field="state",
        value=study.state.value,
        fix=f"from {study.state.value} it can become {possible}",
    )


def save_recommendation(connection: Connection, study_id: str, recommendation: Mapping[str, Any]) -> None:
    """Store the answer of a study."""
    connection.execute(
        update(studies).where(studies.c.id == study_id).values(recommendation=dict(recommendation))
    )


def tally(connection: Connection, study_id: str) -> Tally:
    """What the study has used of its budget, in this transaction."""
    by_state = trial_counts(connection, study_id)
    waiting, running = by_state.get("waiting", 0), by_state.get("running", 0)
    live_states = [LeaseState.RESERVED.value, LeaseState.HELD.value, LeaseState.REPORTING.value]
    of_study = leases.c.study_id == study_id
    live = connection.scalar(select(func.count()).where(of_study, leases.c.state.in_(live_states)))
    reserved = connection.scalar(
        select(func.count()).where(
            of_study, leases.c.state == LeaseState.RESERVED.value, leases.c.trial_number.is_(None)
        )
    )
    overdue = connection.scalar(select(studies.c.deadline_at <= db_now()).where(studies.c.id == study_id))
    return Tally(sum(by_state.values()), waiting + running, waiting, reserved or 0, live or 0, bool(overdue))


def trial_counts(connection: Connection, study_id: str) -> dict[str, int]:
    """Number of trials by state."""
    query = (
        select(trials.c.state, func.count().label("trials"))
        .where(trials.c.study_id == study_id)
        .group_by(trials.c.state)
    )
    return {row.state: row.trials for row in connection.execute(query)}

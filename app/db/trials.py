"""Rows of ``ns_trials``: the queue, and how each trial ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, insert, select, update

from app.db import events
from app.db.clock import db_now
from app.db.tables import measurements, trials
from app.lifecycle.trial import TRIAL, TrialState
from tuner.protocol import ArgValue, Measurement, Outcome

__all__ = [
    "TrialRow",
    "add",
    "by_number",
    "end",
    "first_waiting",
    "give_back",
    "mark_told",
    "page",
    "run",
    "save_measurement",
    "untold",
    "waiting",
]

_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial.

    Attributes:
        attempts_used: attempts that ended without an outcome and were the trial's own loss.
        outcome: how it ended; ``None`` before.
        told: whether Optuna knows how it ended.
    """

    study_id: str
    number: int
    state: TrialState
    origin: str
    args: Mapping[str, ArgValue]
    env: Mapping[str, str]
    knobs: tuple[str, ...]
    attempts_used: int
    outcome: Outcome | None
    told: bool
    created_at: float
    started_at: float | None
    ended_at: float | None


def _row(values: Any) -> TrialRow:
    found = dict(values._mapping)
    outcome = found["outcome"]
    return TrialRow(
        **{
            **found,
            "state": TrialState(found["state"]),
            "knobs": tuple(found["knobs"]),
            "outcome": None if outcome is None else _OUTCOME.validate_python(outcome),
        }
    )


def add(
    connection: Connection, study_id: str, number: int, facts: Mapping[str, Any], *, state: TrialState
) -> bool:
    """Insert the row of a trial that Optuna's record has; ``False`` when it is there already.

    Args:
        study_id: the study.
        number: the trial's number in Optuna's record.
        facts: ``origin``, ``args``, ``env`` and ``knobs``.
        state: ``running`` for a trial that a lease is granted for at once, else ``waiting``.
    """
    if by_number(connection, study_id, number) is not None:
        return False
    started = db_now() if state is TrialState.RUNNING else None
    connection.execute(
        insert(trials).values(
            study_id=study_id,
            number=number,
            state=state.value,
            created_at=db_now(),
            started_at=started,
            **facts,
        )
    )
    events.record(connection, "trial.created", study_id=study_id, number=number, origin=facts["origin"])
    return True


def by_number(connection: Connection, study_id: str, number: int) -> TrialRow | None:
    """One trial."""
    query = select(trials).where(trials.c.study_id == study_id, trials.c.number == number)
    found = connection.execute(query).one_or_none()
    return None if found is None else _row(found)


def first_waiting(connection: Connection, study_id: str) -> TrialRow | None:
    """The trial that waits with the lowest number; rows that another transaction holds are passed over."""
    query = (
        select(trials)
        .where(trials.c.study_id == study_id, trials.c.state == TrialState.WAITING.value)
        .order_by(trials.c.number)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    found = connection.execute(query).one_or_none()
    return None if found is None else _row(found)


def page(connection: Connection, study_id: str, *, after: int, limit: int) -> list[TrialRow]:
    """Trials with a number above ``after``, in order."""
    query = (
        select(trials)
        .where(trials.c.study_id == study_id, trials.c.number > after)
        .order_by(trials.c.number)
        .limit(limit)
    )
    return [_row(found) for found in connection.execute(query)]


def waiting(connection: Connection, study_id: str) -> list[TrialRow]:
    """Trials that wait, locked; rows that another transaction holds are passed over."""
    query = (
        select(trials)
        .where(trials.c.study_id == study_id, trials.c.state == TrialState.WAITING.value)
        .order_by(trials.c.number)
        .with_for_update(skip_locked=True)
    )
    return [_row(found) for found in connection.execute(query)]


def untold(connection: Connection, *, for_s: float = 0.0) -> list[TrialRow]:
    """Trials that ended at least ``for_s`` ago and that Optuna has not been told about."""
    ended = trials.c.ended_at <= db_now() - for_s
    query = select(trials).where(ended, trials.c.told.is_(False)).order_by(trials.c.ended_at)
    return [_row(found) for found in connection.execute(query)]


def run(connection: Connection, trial: TrialRow) -> None:
    """A waiting trial runs."""
    started = func.coalesce(trials.c.started_at, db_now())
    _move(connection, trial, TrialState.RUNNING, {"started_at": started})


def give_back(connection: Connection, trial: TrialRow, *, attempt_lost: bool) -> None:
    """A running trial waits again, with one attempt used up or not."""
    used = trial.attempts_used + (1 if attempt_lost else 0)
    _move(connection, trial, TrialState.WAITING, {"attempts_used": used})


def end(connection: Connection, trial: TrialRow, outcome: Outcome) -> None:
    """A trial ends."""
    state = TrialState.COMPLETED if outcome.kind == "measured" else TrialState(outcome.kind)
    values = {"outcome": outcome.model_dump(mode="json"), "ended_at": db_now()}
    _move(connection, trial, state, values)


def _move(connection: Connection, trial: TrialRow, target: TrialState, values: Mapping[str, object]) -> None:
    TRIAL.check(trial.state, target)
    moved = connection.execute(
        update(trials)
        .where(
            trials.c.study_id == trial.study_id,
            trials.c.number == trial.number,
            trials.c.state == trial.state.value,
        )
        .values(state=target.value, **values)
    )
    if moved.rowcount != 1:
        raise RuntimeError(f"trial {trial.number} was not {trial.state.value} in its own transaction")
    events.record(connection, f"trial.{target.value}", study_id=trial.study_id, number=trial.number)


def mark_told(connection: Connection, study_id: str, number: int) -> None:
    """Optuna knows how the trial ended."""
    connection.execute(
        update(trials).where(trials.c.study_id == study_id, trials.c.number == number).values(told=True)
    )


def save_measurement(
    connection: Connection, lease_id: str, trial: TrialRow, measurement: Measurement
) -> None:
    """Keep what one attempt observed."""
    connection.execute(
        insert(measurements).values(
            lease_id=lease_id,
            study_id=trial.study_id,
            trial_number=trial.number,
            measurement=measurement.model_dump(mode="json"),
            created_at=db_now(),
        )
    )

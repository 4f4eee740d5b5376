"""Trials as people see them: the queue row, the newest lease, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.db import leases, studies, trials
from app.db.leases import LeaseRow
from app.db.trials import TrialRow
from app.errors import NotFoundError
from app.lifecycle.trial import TrialState
from app.services.plane import ControlPlane
from tuner.protocol import ArgValue, Failed, Failure, Infeasible, Measured, Measurement, PrunedEarly

__all__ = ["TrialView", "get", "page"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialView:
    """One trial; times are Unix seconds.

    Attributes:
        attempt: number of the newest attempt, 0 before the first.
        phase: what the newest attempt is doing, while one runs.
        partial: metrics that its heartbeats brought so far.
        measurement: what was measured, of a completed or early pruned trial.
        failure: why it did not end in a measurement.
        reason: why it was pruned early.
    """

    study: str
    number: int
    state: TrialState
    origin: str
    args: Mapping[str, ArgValue]
    env: Mapping[str, str]
    knobs: tuple[str, ...]
    attempt: int
    worker: str | None
    phase: str | None
    elapsed_s: float | None
    partial: Mapping[str, float]
    measurement: Measurement | None
    failure: Failure | None
    reason: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures measured; empty where nothing was."""
        return self.measurement.metrics if self.measurement else {}


def page(plane: ControlPlane, study: str, *, after: int = -1, limit: int = 100) -> list[TrialView]:
    """Trials with a number above ``after``, in order.

    Raises:
        NotFoundError: there is no such study.
    """
    with plane.database.read() as connection:
        row = studies.by_name(connection, study)
        if row is None:
            raise _no_study(study)
        found = trials.page(connection, row.id, after=after, limit=limit)
        newest = leases.latest_by_trial(connection, row.id)
    return [_view(study, trial, newest.get(trial.number)) for trial in found]


def get(plane: ControlPlane, study: str, number: int) -> TrialView:
    """One trial.

    Raises:
        NotFoundError: there is no such study or trial.
    """
    with plane.database.read() as connection:
        row = studies.by_name(connection, study)
        if row is None:
            raise _no_study(study)
        trial = trials.by_number(connection, row.id, number)
        tries = leases.of_trial(connection, row.id, number)
    if trial is None:
        raise NotFoundError(
            f"study {study} has no trial {number}", field="number", value=number, fix="list its trials first"
        )
    return _view(study, trial, tries[-1] if tries else None)


def _no_study(name: str) -> NotFoundError:
    return NotFoundError(
        f"no study is named {name}", field="name", value=name, fix="`nightshift study list` names them"
    )


def _view(study: str, trial: TrialRow, lease: LeaseRow | None) -> TrialView:
    running = lease if lease is not None and trial.state is TrialState.RUNNING else None
    outcome = trial.outcome
    measurement = outcome.measurement if isinstance(outcome, Measured) else None
    return TrialView(
        study=study,
        number=trial.number,
        state=trial.state,
        origin=trial.origin,
        args=trial.args,
        env=trial.env,
        knobs=trial.knobs,
        attempt=lease.attempt if lease else 0,
        worker=lease.worker if lease else None,
        phase=running.phase if running else None,
        elapsed_s=running.elapsed_s if running else None,
        partial=(running.partial or {}) if running else {},
        measurement=outcome.partial if isinstance(outcome, PrunedEarly) else measurement,
        failure=outcome.failure if isinstance(outcome, Infeasible | Failed) else None,
        reason=outcome.reason if isinstance(outcome, PrunedEarly) else None,
        created_at=trial.created_at,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
    )

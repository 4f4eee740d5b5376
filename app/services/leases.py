"""The lease protocol: claim, heartbeat, report, release, expire.

Each step is one or more short transactions; choosing a configuration and telling Optuna happen between
them. What a crash leaves between two of them, the reconciler finishes (docs/architecture.md).
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass

from app.db import leases, studies, trials, workers
from app.db.engine import Transaction
from app.db.leases import LeaseRow
from app.db.studies import StudyRow
from app.db.trials import TrialRow
from app.errors import StaleLeaseError
from app.lifecycle.lease import LeaseState
from app.lifecycle.study import STUDY, StudyState
from app.lifecycle.trial import TrialState
from app.services import outcomes, suggestions
from app.services.plane import ControlPlane
from app.services.studies import close_trials, fail, finish_if_done
from app.services.workers import check_protocol
from tuner.protocol import (
    Action,
    Assignment,
    ClaimRequest,
    Hardware,
    Heartbeat,
    HeartbeatAnswer,
    Outcome,
    Release,
    Report,
    WorkerDescription,
)
from tuner.suggestion import SpaceExhaustedError

__all__ = ["beat", "claim", "expire_due", "fits", "page", "release", "report"]

CLAIMABLE = (StudyState.RUNNING, StudyState.DRAINING)


# ---------------------------------------------------------------- claim


@dataclass(frozen=True, slots=True)
class Reservation:
    """A lease whose configuration has yet to be chosen."""

    study: StudyRow
    lease_id: str


def claim(plane: ControlPlane, request: ClaimRequest) -> Assignment | None:
    """Grant the next attempt to a worker; ``None`` when there is nothing for it now. Does not wait.

    Raises:
        FieldError: the worker speaks another version of the protocol.
    """
    check_protocol(request.worker)
    with plane.database.write() as connection:
        worker = workers.seen(connection, request.worker)
    if worker.state == workers.QUARANTINED:
        return None
    with plane.database.read() as connection:
        candidates = studies.in_states(connection, CLAIMABLE)
    for study in candidates:
        if fits(study.spec.hardware, request.worker):
            assignment = _claim_of(plane, study, request.worker)
            if assignment is not None:
                return assignment
    return None


def fits(needs: Hardware, worker: WorkerDescription) -> bool:
    """Whether a worker owns what a study needs."""
    if needs.gpus is not None and (worker.gpus < needs.gpus or (needs.gpus == 0) != (worker.gpus == 0)):
        return False
    return needs.gpu is None or needs.gpu.lower() in (worker.gpu or "").lower()


def _claim_of(plane: ControlPlane, study: StudyRow, worker: WorkerDescription) -> Assignment | None:
    with plane.study_lock(study.id):
        taken = _take_waiting_or_reserve(plane, study, worker)
        if not isinstance(taken, Reservation):
            return taken
        try:
            created = suggestions.create_trial(plane, taken.study, taken.lease_id)
        except SpaceExhaustedError:
            _drain(plane, taken)
            return None
        return _grant(plane, taken, created, worker)


def _take_waiting_or_reserve(
    plane: ControlPlane, study: StudyRow, worker: WorkerDescription
) -> Assignment | Reservation | None:
    """A trial that waits goes first; else a part of the budget is reserved."""
    lease_id = uuid.uuid4().hex
    lease = {"id": lease_id, "study_id": study.id, "worker": worker.name}
    with plane.database.write() as connection:
        study = studies.lock(connection, study.id)
        if study.state not in CLAIMABLE:
            return None
        waiting = trials.first_waiting(connection, study.id)
        if waiting is not None:
            trials.run(connection, waiting)
            attempt = waiting.attempts_used + 1
            facts = {**lease, "attempt": attempt, "trial_number": waiting.number}
            leases.add(connection, facts, ttl_s=plane.settings.reserve_ttl_s)
            return _granted(connection, plane, study, waiting, Grantee(lease_id, attempt, worker))
        tally = studies.tally(connection, study.id)
        if study.state is StudyState.DRAINING:
            return None
        if tally.overdue or tally.trials >= study.spec.budget.trials:
            studies.move(
                connection, study, StudyState.DRAINING, "the hours are over" if tally.overdue else None
            )
            return None
        if tally.trials + tally.reserved >= study.spec.budget.trials:
            return None
        leases.add(connection, {**lease, "attempt": 1}, ttl_s=plane.settings.reserve_ttl_s)
    return Reservation(study, lease_id)


def _drain(plane: ControlPlane, reservation: Reservation) -> None:
    """Nothing is left to suggest: the study ends when what runs has ended."""
    with plane.database.write() as connection:
        study = studies.lock(connection, reservation.study.id)
        lease = leases.reserved(connection, reservation.lease_id)
        if lease is not None:
            leases.move(connection, lease, LeaseState.RELEASED, reason="the space is exhausted")
        if study.state is StudyState.RUNNING:
            studies.move(
                connection, study, StudyState.DRAINING, "every configuration of the space has been tried"
            )
    finish_if_done(plane, reservation.study.id)


def _grant(
    plane: ControlPlane, reservation: Reservation, created: suggestions.NewTrial, worker: WorkerDescription
) -> Assignment | None:
    """Put the new trial into the queue as running, and hand its lease over."""
    with plane.database.write() as connection:
        study = studies.lock(connection, reservation.study.id)
        lease = leases.reserved(connection, reservation.lease_id)
        if lease is None:
            return None  # choosing took longer than the reservation: the reconciler adopts the trial
        runs = study.state in CLAIMABLE
        state = TrialState.RUNNING if runs else TrialState.WAITING
        trials.add(connection, study.id, created.number, created.facts, state=state)
        if not runs:
            leases.move(connection, lease, LeaseState.RELEASED, reason=f"the study is {study.state.value}")
            return None
        trial = trials.by_number(connection, study.id, created.number)
        if trial is None:
            raise RuntimeError(f"trial {created.number} vanished in its own transaction")
        return _granted(connection, plane, study, trial, Grantee(lease.id, lease.attempt, worker))


@dataclass(frozen=True, slots=True)
class Grantee:
    """Who gets a lease."""

    lease_id: str
    attempt: int
    worker: WorkerDescription


def _granted(
    connection: Transaction, plane: ControlPlane, study: StudyRow, trial: TrialRow, to: Grantee
) -> Assignment:
    token = secrets.token_urlsafe(32)
    ttl_s = plane.settings.lease_ttl_s
    leases.grant(connection, to.lease_id, trial_number=trial.number, token=token, ttl_s=ttl_s)
    return Assignment(
        lease_id=to.lease_id,
        token=token,
        ttl_s=ttl_s,
        study=study.name,
        trial_number=trial.number,
        attempt=to.attempt,
        engine=study.spec.engine,
        args=dict(trial.args),
        env=dict(trial.env),
        knobs=trial.knobs,
        workload=study.spec.workload,
        gpus=to.worker.gpus if study.spec.hardware.gpus is None else study.spec.hardware.gpus,
        startup_timeout_s=study.spec.startup_timeout_s,
    )


# ---------------------------------------------------------------- while it runs


def beat(plane: ControlPlane, lease_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
    """Extend a lease, and say whether the worker should go on.

    Raises:
        StaleLeaseError: the lease is not held with this token, or its time is over.
    """
    seen = {"phase": heartbeat.phase.value, "elapsed_s": heartbeat.elapsed_s, "partial": heartbeat.partial}
    with plane.database.write() as connection:
        lease = leases.beat(
            connection, lease_id, heartbeat.token, ttl_s=plane.settings.lease_ttl_s, seen=seen
        )
        workers.touch(connection, lease.worker)
        study = studies.by_id(connection, lease.study_id)
    if study.state in STUDY.final:
        reason = f"study {study.name} is {study.state.value}"
        return HeartbeatAnswer(action=Action.STOP, reason=reason, ttl_s=plane.settings.lease_ttl_s)
    return HeartbeatAnswer(action=Action.CONTINUE, ttl_s=plane.settings.lease_ttl_s)


# ---------------------------------------------------------------- the end of an attempt


def report(plane: ControlPlane, lease_id: str, given: Report) -> None:
    """Take the outcome of an attempt. The same report again changes nothing and is accepted.

    Raises:
        StaleLeaseError: the lease is not held with this token; nothing was changed.
    """
    digest = hashlib.sha256(given.outcome.model_dump_json().encode()).hexdigest()
    with plane.database.write() as connection:
        try:
            lease = leases.held(connection, lease_id, given.token)
        except StaleLeaseError:
            # Looked up only now: the first of two equal reports may have been under way until this one
            # got the lock.
            if _is_repeated(leases.by_id(connection, lease_id), given.token, digest):
                return
            raise
        study, trial, decision = _apply(connection, lease, given.outcome, digest)
    _finish(plane, study, trial, decision)


def _is_repeated(lease: LeaseRow | None, token: str, digest: str) -> bool:
    if lease is None:
        return False
    return lease.report_hash == digest and lease.token_hash == leases.hash_token(token)


def _apply(
    connection: Transaction, lease: LeaseRow, outcome: Outcome, digest: str
) -> tuple[StudyRow, int, outcomes.Decision]:
    """Store an outcome and everything that follows from it, in the caller's transaction."""
    study = studies.by_id(connection, lease.study_id)
    trial = _trial_of(connection, lease)
    decision = outcomes.decide(study, trial, outcome)
    leases.move(connection, lease, LeaseState.REPORTING, report_hash=digest, reason=outcome.kind)
    if decision.measurement is not None:
        trials.save_measurement(connection, lease.id, trial, decision.measurement)
    if decision.quarantine is not None:
        workers.quarantine(connection, lease.worker, decision.quarantine)
    if decision.end is not None:
        trials.end(connection, trial, decision.end)
    else:
        trials.give_back(connection, trial, attempt_lost=decision.attempt_lost)
        reporting = leases.by_id(connection, lease.id)
        if reporting is not None:  # Optuna has nothing to be told: the trial goes on
            leases.move(connection, reporting, LeaseState.REPORTED)
    return study, trial.number, decision


def _trial_of(connection: Transaction, lease: LeaseRow) -> TrialRow:
    trial = (
        None
        if lease.trial_number is None
        else trials.by_number(connection, lease.study_id, lease.trial_number)
    )
    if trial is None:
        raise RuntimeError(f"lease {lease.id} is held without a trial")
    return trial


def _finish(plane: ControlPlane, study: StudyRow, number: int, decision: outcomes.Decision) -> None:
    """What follows a stored outcome: tell Optuna, end the study if it is over, wake who waits."""
    if decision.end is not None:
        with plane.database.read() as connection:
            trial = trials.by_number(connection, study.id, number)
        if trial is not None:
            suggestions.tell(plane, study, trial)
    if decision.fail_study is not None:
        fail(plane, study.id, decision.fail_study)
    else:
        finish_if_done(plane, study.id)
    plane.wakeups.notify()


def release(plane: ControlPlane, lease_id: str, given: Release) -> None:
    """Take an attempt back unfinished; it costs the trial nothing.

    Raises:
        StaleLeaseError: the lease is not held with this token.
    """
    with plane.database.write() as connection:
        lease = leases.held(connection, lease_id, given.token)
        leases.move(connection, lease, LeaseState.RELEASED, reason=given.reason)
        trials.give_back(connection, _trial_of(connection, lease), attempt_lost=False)
        study = studies.by_id(connection, lease.study_id)
    _after_loss(plane, study)


def expire_due(plane: ControlPlane) -> int:
    """Take back every lease whose time is over; returns how many."""
    with plane.database.read() as connection:
        if not leases.due(connection):
            return 0
    touched: dict[str, StudyRow] = {}
    with plane.database.write() as connection:
        overdue = leases.due(connection)
        for lease in overdue:
            study = touched.setdefault(lease.study_id, studies.by_id(connection, lease.study_id))
            leases.move(connection, lease, LeaseState.EXPIRED, reason="the worker was not heard of")
            if lease.state is LeaseState.HELD:
                _lose_attempt(connection, lease, study)
    for study in touched.values():
        _after_loss(plane, study)
    return len(overdue)


def _lose_attempt(connection: Transaction, lease: LeaseRow, study: StudyRow) -> None:
    trial = _trial_of(connection, lease)
    if trial.attempts_used + 1 < study.spec.budget.attempts:
        trials.give_back(connection, trial, attempt_lost=True)
    else:
        trials.end(connection, trial, outcomes.lost_worker(lease.worker, lease.phase))


def _after_loss(plane: ControlPlane, study: StudyRow) -> None:
    with plane.database.read() as connection:
        study = studies.by_id(connection, study.id)
        ended = [trial for trial in trials.untold(connection) if trial.study_id == study.id]
    for trial in ended:
        suggestions.tell(plane, study, trial)
    if study.state in STUDY.final:
        close_trials(plane, study)
    else:
        finish_if_done(plane, study.id)
    plane.wakeups.notify()


def page(
    plane: ControlPlane,
    *,
    study: str | None = None,
    live: bool = False,
    before: tuple[float, str] | None = None,
    limit: int = 100,
) -> list[LeaseRow]:
    """Leases, newest first, from behind ``before`` (created_at, id); ``live`` leaves out the ended ones."""
    with plane.database.read() as connection:
        row = studies.by_name(connection, study) if study else None
        if study and row is None:
            return []
        study_id = row.id if row else None
        return leases.page(connection, study_id=study_id, live=live, before=before, limit=limit)

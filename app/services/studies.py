"""Studies: creating them, moving them through their life, ending them."""

from __future__ import annotations

import uuid

from app.db import studies, trials
from app.db.studies import StudyRow
from app.errors import ConflictError, NotFoundError
from app.lifecycle.study import STUDY, StudyState
from app.services import suggestions
from app.services.plane import ControlPlane
from tuner.history import create_study
from tuner.protocol import Failed, Failure, FailureKind, Phase, Verdict
from tuner.recommend import Recommendation
from tuner.space import build_space
from tuner.spec import StudySpec

__all__ = [
    "cancel",
    "close_trials",
    "counts",
    "create",
    "fail",
    "finish_if_done",
    "get",
    "page",
    "pause",
    "recommendation",
    "reconcile",
    "resume",
    "start",
]

ALL_FAILED = 5
"""Trials after which a study of which every trial failed is given up: the environment is at fault."""

LIVE = (StudyState.RUNNING, StudyState.PAUSED, StudyState.DRAINING)


def create(
    plane: ControlPlane, spec: StudySpec, *, start: bool = False, idempotency_key: str | None = None
) -> StudyRow:
    """Create a study, as a draft or running at once.

    The same request with the same key gives the same study again.

    Raises:
        FieldError: the spec's space is wrong.
        ConflictError: the name is taken, or the key was used for another spec.
    """
    space = build_space(spec)
    with plane.database.read() as connection:
        taken = studies.by_name(connection, spec.name)
    # after the name: the same request, sent at the same time, makes both at once
    made = _made_with(plane, idempotency_key)
    if made is not None:
        return _same_request(made, spec)
    if taken is not None:
        raise ConflictError(
            f"a study named {spec.name} exists", field="name", value=spec.name, fix="choose another name"
        )
    create_study(plane.storage, spec, space)
    study_id = uuid.uuid4().hex
    try:
        with plane.database.write() as connection:
            studies.add(connection, study_id, spec, idempotency_key)
            if start:
                studies.move(connection, studies.by_id(connection, study_id), StudyState.RUNNING)
            study = studies.by_id(connection, study_id)
    except ConflictError:
        made = _made_with(plane, idempotency_key)  # by the same request, sent twice at once
        if made is None:
            raise
        return _same_request(made, spec)
    plane.wakeups.notify()
    return study


def _made_with(plane: ControlPlane, idempotency_key: str | None) -> StudyRow | None:
    if not idempotency_key:
        return None
    with plane.database.read() as connection:
        return studies.by_idempotency_key(connection, idempotency_key)


def _same_request(made: StudyRow, spec: StudySpec) -> StudyRow:
    if made.spec != spec:
        raise ConflictError(
            "this idempotency key was used for another study",
            field="Idempotency-Key",
            value=made.name,
            fix="use a new key",
        )
    return made


def get(plane: ControlPlane, name: str) -> StudyRow:
    """The study of that name.

    Raises:
        NotFoundError: there is none.
    """
    with plane.database.read() as connection:
        study = studies.by_name(connection, name)
    if study is None:
        raise NotFoundError(
            f"no study is named {name}", field="name", value=name, fix="`nightshift study list` names them"
        )
    return study


def page(
    plane: ControlPlane,
    *,
    state: StudyState | None = None,
    before: tuple[float, str] | None = None,
    limit: int = 50,
) -> list[StudyRow]:
    """Studies, newest first, from behind ``before`` (created_at, id)."""
    with plane.database.read() as connection:
        return studies.page(connection, state=state, before=before, limit=limit)


def counts(plane: ControlPlane, study: StudyRow) -> dict[str, int]:
    """Number of trials by state."""
    with plane.database.read() as connection:
        return studies.trial_counts(connection, study.id)


def start(plane: ControlPlane, name: str) -> StudyRow:
    """Let workers claim trials; a draft or a paused study runs."""
    return _move(plane, name, StudyState.RUNNING)


def resume(plane: ControlPlane, name: str) -> StudyRow:
    """A paused study runs again."""
    return _move(plane, name, StudyState.RUNNING)


def pause(plane: ControlPlane, name: str) -> StudyRow:
    """No new trial is claimed; those that run go on."""
    return _move(plane, name, StudyState.PAUSED)


def cancel(plane: ControlPlane, name: str) -> StudyRow:
    """End the study; workers stop at their next heartbeat."""
    study = _move(plane, name, StudyState.CANCELLED, "cancelled by request")
    close_trials(plane, study)
    return study


def _move(plane: ControlPlane, name: str, target: StudyState, reason: str | None = None) -> StudyRow:
    """Move a study; asking for the state that it is in already changes nothing.

    Raises:
        NotFoundError: there is none.
        StateError: its state does not allow that.
    """
    study = get(plane, name)
    with plane.database.write() as connection:
        study = studies.lock(connection, study.id)
        if study.state is not target:
            studies.move(connection, study, target, reason)
        study = studies.by_id(connection, study.id)
    plane.wakeups.notify()
    return study


def fail(plane: ControlPlane, study_id: str, reason: str) -> None:
    """End a study of which no trial can pass; does nothing to one that has ended."""
    with plane.database.write() as connection:
        study = studies.lock(connection, study_id)
        if study.state not in STUDY.final:
            studies.move(connection, study, StudyState.FAILED, reason)
    close_trials(plane, study)


def close_trials(plane: ControlPlane, study: StudyRow) -> None:
    """End the trials of an ended study that wait; those that run end when their worker stops or expires."""
    suggestions.adopt_orphans(plane, study)
    closed = Failed(
        failure=Failure(
            kind=FailureKind.OTHER,
            verdict=Verdict.FAILED,
            retryable=False,
            fatal=False,
            phase=Phase.STARTING,
            message="the study ended before this trial did",
        )
    )
    with plane.database.write() as connection:
        for trial in trials.waiting(connection, study.id):
            trials.end(connection, trial, closed)
    with plane.database.read() as connection:
        ended = [trial for trial in trials.untold(connection) if trial.study_id == study.id]
    for trial in ended:
        suggestions.tell(plane, study, trial)


def finish_if_done(plane: ControlPlane, study_id: str) -> bool:
    """Complete a study whose budget is used and of which nothing is open; whether it did."""
    with plane.database.read() as connection:
        study = studies.by_id(connection, study_id)
    if study.state not in LIVE:
        return False
    suggestions.adopt_orphans(plane, study)
    if _give_up_if_all_failed(plane, study) or not _is_done(plane, study):
        return False
    answer = suggestions.recommendation(plane, study)
    with plane.database.write() as connection:
        study = studies.lock(connection, study_id)
        if study.state not in (StudyState.RUNNING, StudyState.DRAINING):
            return False
        if not _nothing_open(studies.tally(connection, study_id)):
            return False
        studies.save_recommendation(connection, study_id, answer.model_dump(mode="json"))
        studies.move(connection, study, StudyState.COMPLETED, answer.reason or None)
    plane.wakeups.notify()
    return True


def _nothing_open(tally: studies.Tally) -> bool:
    return tally.unfinished == 0 and tally.live == 0


def _is_done(plane: ControlPlane, study: StudyRow) -> bool:
    with plane.database.read() as connection:
        tally = studies.tally(connection, study.id)
        untold = any(trial.study_id == study.id for trial in trials.untold(connection))
    used_up = study.state is StudyState.DRAINING or tally.overdue or tally.trials >= study.spec.budget.trials
    return used_up and _nothing_open(tally) and not untold and study.state is not StudyState.PAUSED


def _give_up_if_all_failed(plane: ControlPlane, study: StudyRow) -> bool:
    with plane.database.read() as connection:
        by_state = studies.trial_counts(connection, study.id)
        failed = by_state.get("failed", 0)
        ended = sum(by_state.get(state, 0) for state in ("completed", "infeasible", "pruned_early", "failed"))
        last = [
            trial for trial in trials.page(connection, study.id, after=-1, limit=ALL_FAILED) if trial.outcome
        ]
    if failed < ALL_FAILED or failed < ended:
        return False
    message = next((t.outcome.failure.message for t in reversed(last) if isinstance(t.outcome, Failed)), "")
    fail(
        plane, study.id, f"all of the first {failed} trials failed for reasons outside the search: {message}"
    )
    return True


def recommendation(plane: ControlPlane, name: str) -> Recommendation:
    """The stored answer of a completed study, else what its trials so far recommend."""
    study = get(plane, name)
    if study.recommendation is not None:
        return Recommendation.model_validate(study.recommendation)
    return suggestions.recommendation(plane, study)


def reconcile(plane: ControlPlane) -> int:
    """Finish what a crash left between two steps, in every study; returns how much there was to do."""
    with plane.database.read() as connection:
        untold = trials.untold(connection, for_s=plane.settings.tell_grace_s)
        by_id = {trial.study_id: studies.by_id(connection, trial.study_id) for trial in untold}
        live = studies.in_states(connection, LIVE)
    for trial in untold:
        suggestions.tell(plane, by_id[trial.study_id], trial)
    done = len(untold)
    for study in live:
        adopted = suggestions.adopt_orphans(plane, study)
        done += adopted + finish_if_done(plane, study.id)
        if adopted:
            plane.wakeups.notify()
    return done + _close_ended(plane)


def _close_ended(plane: ControlPlane) -> int:
    """End the trials that a crash left waiting in studies that have ended."""
    with plane.database.read() as connection:
        ended = studies.ended_with_waiting_trials(connection)
    for study in ended:
        close_trials(plane, study)
    return len(ended)

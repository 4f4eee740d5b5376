"""Between the search core and Optuna's record: the next trial, trials to adopt, how a trial ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from app.db import leases, trials
from app.db.studies import StudyRow
from app.db.trials import TrialRow
from app.lifecycle import trial as queue
from app.lifecycle.lease import LeaseState
from app.services.plane import ControlPlane
from tuner.history import conclude, create_study
from tuner.recommend import Recommendation, recommend
from tuner.space import build_space
from tuner.suggestion import LEASE_ATTR, ORIGIN_ATTR, suggest

__all__ = ["NewTrial", "adopt_orphans", "create_trial", "recommendation", "tell"]


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A trial that Optuna's record has and ours has not yet; ``facts`` are for ``app.db.trials.add``."""

    number: int
    facts: dict[str, Any]


def create_trial(plane: ControlPlane, study: StudyRow, lease_id: str) -> NewTrial:
    """Choose the next configuration and create its Optuna trial, by one write.

    Raises:
        SpaceExhaustedError: nothing admissible is left.
    """
    space = build_space(study.spec)
    create_study(plane.storage, study.spec, space)
    optuna_id = plane.storage.get_study_id_from_name(study.name)
    history = plane.storage.get_all_trials(optuna_id, deepcopy=False)
    suggestion = suggest(study.spec, space, history)
    trial_id = plane.storage.create_new_trial(optuna_id, template_trial=suggestion.template(lease_id))
    number = plane.storage.get_trial_number_from_id(trial_id)
    facts = {
        "origin": suggestion.origin,
        "args": dict(suggestion.args),
        "env": dict(suggestion.env),
        "knobs": list(suggestion.knobs),
    }
    return NewTrial(number, facts)


def adopt_orphans(plane: ControlPlane, study: StudyRow) -> int:
    """Put into the queue what was created for a lease that never came; returns how many.

    Between the creation of an Optuna trial and the grant of its lease the process may die. The trial is
    whole, so it waits for the next claim.
    """
    try:
        optuna_id = plane.storage.get_study_id_from_name(study.name)
    except KeyError:
        return 0
    running = plane.storage.get_all_trials(optuna_id, deepcopy=False, states=(TrialState.RUNNING,))
    knobs = list(build_space(study.spec).names)
    adopted = 0
    for orphan in running:
        if (
            LEASE_ATTR in orphan.user_attrs
        ):  # anyone may create trials of their own with Optuna: not ours to run
            adopted += _adopt(plane, study, orphan, knobs)
    return adopted


def _adopt(plane: ControlPlane, study: StudyRow, orphan: FrozenTrial, knobs: list[str]) -> bool:
    attributes = orphan.user_attrs
    facts = {
        "origin": attributes[ORIGIN_ATTR],
        "args": attributes["args"],
        "env": attributes["env"],
        "knobs": knobs,
    }
    with plane.database.write() as connection:
        if trials.by_number(connection, study.id, orphan.number) is not None:
            return False
        lease = leases.by_id(connection, attributes[LEASE_ATTR])
        if lease is not None and lease.state is LeaseState.RESERVED:
            return False
        return trials.add(connection, study.id, orphan.number, facts, state=queue.TrialState.WAITING)


def tell(plane: ControlPlane, study: StudyRow, trial: TrialRow) -> None:
    """Tell Optuna how a trial ended, and note that it knows; may be repeated at any time."""
    if trial.outcome is None:
        raise ValueError(f"trial {trial.number} has not ended")
    with plane.database.read() as connection:
        tries = leases.of_trial(connection, study.id, trial.number)
    facts = {"attempts": len(tries), **({"worker": tries[-1].worker} if tries else {})}
    conclude(plane.storage, study.spec, build_space(study.spec), trial.number, trial.outcome, facts=facts)
    with plane.database.write() as connection:
        trials.mark_told(connection, study.id, trial.number)
        lease = leases.reporting(connection, study.id, trial.number)
        if lease is not None:
            leases.move(connection, lease, LeaseState.REPORTED)


def recommendation(plane: ControlPlane, study: StudyRow) -> Recommendation:
    """What the study's trials so far recommend."""
    try:
        optuna_id = plane.storage.get_study_id_from_name(study.name)
    except KeyError:
        return recommend(study.spec, [])
    return recommend(study.spec, plane.storage.get_all_trials(optuna_id, deepcopy=False))

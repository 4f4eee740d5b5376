"""Optuna's record of a study: creating it, and telling it how a trial ended.

Optuna's storage is the record that people, notebooks and the dashboard read, so it gets everything that
belongs to a trial. Each function may be repeated after a crash at any write.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from tuner.errors import FieldError
from tuner.objectives import objective_values, slo_constraints
from tuner.protocol import (
    ArgValue,
    Failed,
    Failure,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    PrunedEarly,
)
from tuner.space import Space
from tuner.spec import StudySpec

__all__ = ["FEASIBLE", "FINGERPRINT_ATTR", "conclude", "create_study", "open_study"]

FEASIBLE = "feasible"
"""Constraint that an infeasible configuration violates; -1 on one that ran."""
FINGERPRINT_ATTR = "nightshift:space"


def create_study(storage: BaseStorage, spec: StudySpec, space: Space) -> optuna.Study:
    """Create the Optuna study of ``spec``, or open it when it is there already.

    Raises:
        FieldError: a study of this name exists with another space or other objectives.
    """
    study = optuna.create_study(
        storage=storage,
        study_name=spec.name,
        directions=[objective.resolved_direction.value for objective in spec.objectives],
        sampler=RandomSampler(seed=0),
        load_if_exists=True,
    )
    _check_is_ours(study, spec, space)
    if study.metric_names is None:
        with warnings.catch_warnings():
            # The dashboard needs the objectives' names; Optuna calls the setter experimental.
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([objective.metric for objective in spec.objectives])
    facts = {
        "model": spec.engine.model,
        "knobs": list(space.names),
        "slos": [slo.model_dump(exclude_none=True) for slo in spec.slos],
        FINGERPRINT_ATTR: space.fingerprint,
    }
    for name, value in facts.items():
        if study.user_attrs.get(name) != value:
            study.set_user_attr(name, value)
    return study


def _check_is_ours(study: optuna.Study, spec: StudySpec, space: Space) -> None:
    """A study that was there before must mean the same by its numbers."""
    stored, theirs = study.user_attrs.get(FINGERPRINT_ATTR), study.metric_names
    metrics = [objective.metric for objective in spec.objectives]
    directions = [objective.resolved_direction.value for objective in spec.objectives]
    if stored not in (None, space.fingerprint):
        problem = "an Optuna study of this name exists with another space"
    elif theirs not in (None, metrics) or [d.name.lower() for d in study.directions] != directions:
        problem = "an Optuna study of this name exists with other objectives"
    elif stored is None and study.get_trials(deepcopy=False):
        problem = "an Optuna study of this name exists that is not ours"
    else:
        return
    raise FieldError("name", spec.name, problem=problem, fix="choose another name, or delete the old study")


def open_study(storage: BaseStorage, name: str) -> optuna.Study:
    """The Optuna study of that name, with a sampler that does nothing.

    Raises:
        KeyError: there is none.
    """
    return optuna.load_study(study_name=name, storage=storage, sampler=RandomSampler(seed=0))


def conclude(
    storage: BaseStorage,
    spec: StudySpec,
    space: Space,
    number: int,
    outcome: Outcome,
    *,
    facts: Mapping[str, Any],
) -> None:
    """Tell Optuna how a trial ended; nothing happens when it knows, or hears it from another meanwhile.

    Args:
        storage: where the study lives.
        spec: the study.
        space: built from ``spec``.
        number: the trial's number.
        outcome: ``measured`` is told as COMPLETE with its values and constraints, ``infeasible`` and
            ``pruned_early`` as PRUNED, ``failed`` as FAIL.
        facts: user attributes to add, e.g. worker and attempts.

    Raises:
        MissingMetricError: a measured outcome lacks a metric of an objective or SLO; nothing was told.
    """
    study_id = storage.get_study_id_from_name(spec.name)
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    if storage.get_trial(trial_id).state.is_finished():
        return
    try:
        _tell(storage, spec, space, trial_id, {**facts, **_attributes(outcome)}, outcome)
    except UpdateFinishedTrialError:
        # Whoever finished it first has written all of the same before that.
        return


def _tell(
    storage: BaseStorage,
    spec: StudySpec,
    space: Space,
    trial_id: int,
    facts: Mapping[str, Any],
    outcome: Outcome,
) -> None:
    study, frozen = open_study(storage, spec.name), storage.get_trial(trial_id)
    values, constraints = _judged(spec, outcome)
    if isinstance(outcome, Measured):
        _fill_params(storage, space, trial_id, frozen, outcome.measurement.resolved_args)
    for name, value in facts.items():
        if frozen.user_attrs.get(name) != value:
            storage.set_trial_user_attr(trial_id, name, value)
    live = Trial(study, trial_id)
    for name, value in constraints.items():
        if name not in frozen.constraints:
            live.set_constraint(name, value)
    study.tell(frozen.number, values, state=_STATES[outcome.kind], skip_if_finished=True)


_STATES = {
    "measured": TrialState.COMPLETE,
    "infeasible": TrialState.PRUNED,
    "pruned_early": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


def _judged(spec: StudySpec, outcome: Outcome) -> tuple[list[float] | None, dict[str, float]]:
    """Objective values and constraints of an outcome."""
    match outcome:
        case Measured(measurement=measurement):
            values = objective_values(spec, measurement.metrics)
            return values, {FEASIBLE: -1.0, **slo_constraints(spec, measurement.metrics)}
        case Infeasible(failure=failure):
            return None, {FEASIBLE: _excess(failure)}
        case PrunedEarly(partial=Measurement(metrics=metrics)):
            bounded = [slo for slo in spec.slos if math.isfinite(metrics.get(slo.metric, math.nan))]
            return None, slo_constraints(spec.model_copy(update={"slos": tuple(bounded)}), metrics)
        case PrunedEarly() | Failed():
            return None, {}


_DEMANDS = (
    ("needed_bytes", "available_bytes"),
    ("asked_bytes", "free_bytes"),
    ("required_bytes", "limit_bytes"),
)
"""What was asked for and what there was, by the names that the workers' verdicts give the log's numbers."""
MAX_EXCESS = 10.0


def _excess(failure: Failure) -> float:
    """How far a configuration is from feasible, above 0: graded where the failure's numbers tell, else 1.

    A graded constraint leads a sampler out of an infeasible region; a flat one only marks it.
    """
    for needed_by_name, available_by_name in _DEMANDS:
        needed = failure.numbers.get(needed_by_name)
        available = failure.numbers.get(available_by_name)
        if needed is not None and available is not None and needed > available > 0:
            return min(MAX_EXCESS, needed / available - 1.0)
    return 1.0


def _attributes(outcome: Outcome) -> dict[str, Any]:
    """User attributes for whoever reads the record without our tables."""
    match outcome:
        case Measured(measurement=measurement):
            return {"verdict": "measured", **_measured_attributes(measurement)}
        case Infeasible(failure=failure) | Failed(failure=failure):
            return {
                "verdict": outcome.kind,
                "failure": failure.kind.value,
                "message": failure.message,
                "advice": failure.advice,
                "log_excerpt": list(failure.excerpt),
            }
        case PrunedEarly(reason=reason, partial=partial):
            return {
                "verdict": outcome.kind,
                "message": reason,
                **(_measured_attributes(partial) if partial else {}),
            }


def _measured_attributes(measurement: Measurement) -> dict[str, Any]:
    version = measurement.provenance.get("vllm_version")
    return {
        "metrics": dict(measurement.metrics),
        "requests": measurement.requests,
        "errors": dict(measurement.errors),
        **({"vllm_version": version} if version is not None else {}),
    }


def _fill_params(
    storage: BaseStorage,
    space: Space,
    trial_id: int,
    frozen: FrozenTrial,
    resolved: Mapping[str, ArgValue],
) -> None:
    """Give the baseline the parameters that vLLM chose, where the engine told them and the space holds them.

    Only a whole point teaches the sampler anything, so it is all or nothing.
    """
    if set(frozen.params) == set(space.names):
        return
    point = {name: resolved[name] for name in space.names if name in resolved}
    if not space.contains(point):
        return
    for domain in space.domains:
        if domain.name not in frozen.params:
            internal = domain.distribution.to_internal_repr(point[domain.name])
            storage.set_trial_param(trial_id, domain.name, internal, domain.distribution)

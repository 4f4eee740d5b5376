"""What an attempt's outcome means for its trial, its worker and its study; a pure decision."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.studies import StudyRow
from app.db.trials import TrialRow
from tuner.errors import MissingMetricError
from tuner.objectives import objective_values, slo_constraints
from tuner.protocol import (
    Failed,
    Failure,
    FailureKind,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    Phase,
    PrunedEarly,
    Verdict,
)
from tuner.spec import StudySpec

__all__ = ["Decision", "decide", "lost_worker"]

WORKER_FAULTS = frozenset({FailureKind.BROKEN_INSTALLATION, FailureKind.DEVICE_UNAVAILABLE})
"""A fatal one of these holds on this worker only: others may pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What follows from an outcome.

    Attributes:
        end: how the trial ends; ``None`` when it waits for another attempt.
        attempt_lost: whether this attempt counts against the trial, where it waits again.
        quarantine: why the worker is set aside.
        fail_study: why no trial of the study can pass.
        measurement: what is to be kept.
    """

    end: Outcome | None = None
    attempt_lost: bool = False
    quarantine: str | None = None
    fail_study: str | None = None
    measurement: Measurement | None = None


def decide(study: StudyRow, trial: TrialRow, outcome: Outcome) -> Decision:
    """What an outcome means. A fault of the environment costs an attempt, not the trial."""
    match outcome:
        case Measured(measurement=measurement):
            missing = _missing_metric(study.spec, measurement)
            if missing is not None:
                return _retry_or_end(study, trial, Failed(failure=missing))
            return Decision(end=outcome, measurement=measurement)
        case PrunedEarly(partial=partial):
            return Decision(end=outcome, measurement=partial)
        case Infeasible(failure=failure):
            return Decision(end=outcome, fail_study=_sentence(failure) if failure.fatal else None)
        case Failed(failure=failure) if failure.fatal and failure.kind in WORKER_FAULTS:
            return Decision(quarantine=_sentence(failure))
        case Failed(failure=failure) if failure.fatal:
            return Decision(end=outcome, fail_study=_sentence(failure))
        case Failed():
            return _retry_or_end(study, trial, outcome)


def _retry_or_end(study: StudyRow, trial: TrialRow, failed: Failed) -> Decision:
    attempts_left = study.spec.budget.attempts - trial.attempts_used - 1
    if failed.failure.retryable and attempts_left > 0:
        return Decision(attempt_lost=True)
    return Decision(end=failed)


def lost_worker(worker: str, phase: str | None) -> Failed:
    """The outcome of a trial whose last allowed attempt ended with its worker."""
    return Failed(
        failure=Failure(
            kind=FailureKind.OTHER,
            verdict=Verdict.FAILED,
            retryable=True,
            fatal=False,
            phase=Phase(phase or Phase.STARTING),
            message=f"worker {worker} was not heard of any more while the attempt was {phase or 'starting'}",
            advice="see the worker's log; the host may have run out of memory",
        )
    )


def _missing_metric(spec: StudySpec, measurement: Measurement) -> Failure | None:
    """A failure in place of a measurement that the study cannot use."""
    try:
        objective_values(spec, measurement.metrics)
        slo_constraints(spec, measurement.metrics)
    except MissingMetricError as error:
        return Failure(
            kind=FailureKind.OTHER,
            verdict=Verdict.FAILED,
            retryable=True,
            fatal=False,
            phase=Phase.MEASURING,
            message=f"{error} ({measurement.requests} requests in {measurement.window_s:g} s)",
            advice="lengthen measure_s or raise the load, so that enough requests end inside the window",
        )
    return None


def _sentence(failure: Failure) -> str:
    return f"{failure.message}; {failure.advice}" if failure.advice else failure.message

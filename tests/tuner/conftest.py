"""Studies and trials for the tests of the search core."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import settings
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from tuner.protocol import ArgValue, Failure, FailureKind, Infeasible, Measured, Measurement, Phase, Verdict
from tuner.space import Space
from tuner.spec import StudySpec, parse_study
from tuner.suggestion import suggest

optuna.logging.set_verbosity(optuna.logging.WARNING)
# How long an example takes says how busy the machine is, and nothing about our code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

KNOBS = {
    "max_num_batched_tokens": {"low": 256, "high": 16384, "step": "pow2"},
    "max_num_seqs": {"low": 8, "high": 512, "step": "pow2"},
    "gpu_memory_utilization": {"low": 0.85, "high": 0.95, "step": 0.01},
    "enforce_eager": [False, True],
}


def document(**more: Any) -> dict[str, Any]:
    """A study file's content."""
    return {
        "name": "study",
        "engine": {"model": "a-model"},
        "workload": {
            "prompts": {"input_tokens": 512, "output_tokens": 128},
            "arrivals": {"kind": "closed", "concurrency": 64},
        },
        "space": {"preset": "none", "knobs": KNOBS},
        **more,
    }


def spec_with(knobs: dict[str, Any] | None = None, **more: Any) -> StudySpec:
    """A study, perhaps of other knobs."""
    space = {"preset": "none", "knobs": KNOBS if knobs is None else knobs}
    return parse_study(document(**{"space": space, **more}))


def measured(metrics: dict[str, float] | None = None, **more: Any) -> Measured:
    """A measurement of the default objectives."""
    figures = {"output_tokens_per_s": 100.0, "e2e_p95_s": 1.0} if metrics is None else metrics
    return Measured(measurement=Measurement(metrics=figures, requests=50, window_s=5.0, **more))


def oom(**numbers: float) -> Infeasible:
    """A configuration that runs out of device memory."""
    return Infeasible(
        failure=Failure(
            kind=FailureKind.OOM_DEVICE,
            verdict=Verdict.INFEASIBLE,
            retryable=False,
            fatal=False,
            phase=Phase.STARTING,
            message="CUDA out of memory",
            advice="lower max_num_batched_tokens",
            numbers=numbers,
        )
    )


def ended(
    trial: FrozenTrial,
    values: list[float] | None,
    constraints: dict[str, float] | None = None,
    state: TrialState | None = None,
) -> FrozenTrial:
    """A suggested trial as it stands in the record once it has ended."""
    trial.state = state or (TrialState.COMPLETE if values is not None else TrialState.PRUNED)
    trial.values = values
    trial.datetime_complete = datetime.datetime.now()  # noqa: DTZ005 - Optuna's own convention
    for name, value in (constraints or {}).items():
        trial.set_constraint(name, value)
    return trial


Judge = Callable[[dict[str, ArgValue]], tuple[list[float] | None, dict[str, float]]]


def search(spec: StudySpec, space: Space, trials: int, judge: Judge) -> list[FrozenTrial]:
    """A whole study: suggest, judge, remember."""
    history: list[FrozenTrial] = []
    for number in range(trials):
        trial = suggest(spec, space, history).template(f"lease-{number}")
        trial.number = number
        history.append(ended(trial, *judge(dict(trial.params))))
    return history


@pytest.fixture
def storage(tmp_path: Path) -> BaseStorage:
    """Optuna's own storage, on SQLite."""
    opened = RDBStorage(f"sqlite:///{tmp_path / 'optuna.db'}")
    return optuna.storages.get_storage(opened)

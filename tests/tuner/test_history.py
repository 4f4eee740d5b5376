"""Telling Optuna how a trial ended: what is told, and that it may stop at any write."""

from __future__ import annotations

from typing import Any, ClassVar

import optuna
import pytest
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from tests.tuner.conftest import measured, oom, spec_with
from tuner.errors import FieldError, MissingMetricError
from tuner.history import FEASIBLE, conclude, create_study
from tuner.protocol import Failed, Failure, FailureKind, Measurement, Outcome, Phase, PrunedEarly, Verdict
from tuner.space import Space, build_space
from tuner.spec import StudySpec
from tuner.suggestion import suggest

SPEC = spec_with(slos=[{"metric": "ttft_p95_s", "max": 2.0}])
SPACE = build_space(SPEC)
FIGURES = {"output_tokens_per_s": 250.0, "e2e_p95_s": 3.0, "ttft_p95_s": 1.0}


def start(storage: BaseStorage, spec: StudySpec = SPEC, space: Space = SPACE, history: int = 0) -> int:
    """A running trial; returns its number."""
    create_study(storage, spec, space)
    study_id = storage.get_study_id_from_name(spec.name)
    for _ in range(history + 1):
        template = suggest(spec, space, storage.get_all_trials(study_id)).template("lease")
        trial_id = storage.create_new_trial(study_id, template_trial=template)
    return storage.get_trial_number_from_id(trial_id)


def told(storage: BaseStorage, number: int, name: str = "study") -> FrozenTrial:
    return storage.get_all_trials(storage.get_study_id_from_name(name))[number]


def tell(storage: BaseStorage, number: int, outcome: Outcome) -> FrozenTrial:
    conclude(storage, SPEC, SPACE, number, outcome, facts={"worker": "w", "attempts": 1})
    return told(storage, number)


def failed() -> Failed:
    return Failed(
        failure=Failure(
            kind=FailureKind.OTHER,
            verdict=Verdict.FAILED,
            retryable=True,
            fatal=False,
            phase=Phase.STARTING,
            message="broke",
        )
    )


class TestStudy:
    def test_directions_and_metric_names_are_optunas(self, storage: BaseStorage) -> None:
        create_study(storage, SPEC, SPACE)
        study = optuna.load_study(study_name="study", storage=storage)
        assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
        assert study.metric_names == ["output_tokens_per_s", "e2e_p95_s"]

    def test_creating_it_again_changes_nothing(self, storage: BaseStorage) -> None:
        first, second = (create_study(storage, SPEC, SPACE) for _ in range(2))
        assert first.user_attrs == second.user_attrs

    def test_same_name_with_another_space_is_refused(self, storage: BaseStorage) -> None:
        create_study(storage, SPEC, SPACE)
        other = spec_with({"max_num_seqs": [1, 2]})
        with pytest.raises(FieldError, match="another space"):
            create_study(storage, other, build_space(other))


class TestOutcomes:
    def test_measured(self, storage: BaseStorage) -> None:
        trial = tell(storage, start(storage), measured(FIGURES, provenance={"vllm_version": "0.32.0"}))
        assert (trial.state, trial.values) == (TrialState.COMPLETE, [250.0, 3.0])
        assert trial.constraints == {FEASIBLE: -1.0, "slo:ttft_p95_s": -0.5}
        assert trial.user_attrs["metrics"] == FIGURES
        assert trial.user_attrs["vllm_version"] == "0.32.0"
        assert trial.user_attrs["worker"] == "w"

    def test_infeasible(self, storage: BaseStorage) -> None:
        trial = tell(storage, start(storage, history=1), oom())
        assert (trial.state, trial.values, trial.constraints) == (TrialState.PRUNED, None, {FEASIBLE: 1.0})
        assert trial.user_attrs["advice"] == "lower max_num_batched_tokens"

    def test_infeasibility_is_graded_where_the_numbers_tell(self, storage: BaseStorage) -> None:
        trial = tell(storage, start(storage, history=1), oom(asked_bytes=3.0, free_bytes=2.0))
        assert trial.constraints == {FEASIBLE: 0.5}

    def test_failed_teaches_nothing(self, storage: BaseStorage) -> None:
        trial = tell(storage, start(storage), failed())
        assert (trial.state, trial.constraints) == (TrialState.FAIL, {})

    def test_pruned_early_keeps_its_evidence(self, storage: BaseStorage) -> None:
        partial = Measurement(metrics={"ttft_p95_s": 4.0}, requests=3, window_s=1.0)
        trial = tell(storage, start(storage), PrunedEarly(reason="TTFT is twice the SLO", partial=partial))
        assert (trial.state, trial.constraints) == (TrialState.PRUNED, {"slo:ttft_p95_s": 1.0})

    @pytest.mark.parametrize("missing", ["e2e_p95_s", "ttft_p95_s"])
    def test_missing_metric_is_an_error_and_nothing_is_told(self, storage: BaseStorage, missing: str) -> None:
        number = start(storage)
        figures = {name: value for name, value in FIGURES.items() if name != missing}
        with pytest.raises(MissingMetricError, match=missing):
            tell(storage, number, measured(figures))
        assert told(storage, number).state is TrialState.RUNNING

    def test_what_was_told_first_stays(self, storage: BaseStorage) -> None:
        number = start(storage)
        tell(storage, number, measured(FIGURES))
        assert tell(storage, number, failed()).state is TrialState.COMPLETE


class TestBaselineParameters:
    CHOSEN: ClassVar[dict[str, Any]] = {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": False,
    }

    def test_are_what_the_engine_chose_where_that_is_a_point_of_the_space(self, storage: BaseStorage) -> None:
        trial = tell(
            storage, start(storage), measured(FIGURES, resolved_args={**self.CHOSEN, "dtype": "bfloat16"})
        )
        assert trial.params == self.CHOSEN

    @pytest.mark.parametrize("change", [{"max_num_seqs": 1024}, {"max_num_seqs": 100}])
    def test_stay_empty_where_it_is_not(self, storage: BaseStorage, change: dict[str, Any]) -> None:
        trial = tell(storage, start(storage), measured(FIGURES, resolved_args={**self.CHOSEN, **change}))
        assert trial.params == {}

    def test_stay_empty_where_the_engine_told_only_some(self, storage: BaseStorage) -> None:
        trial = tell(storage, start(storage), measured(FIGURES, resolved_args={"max_num_seqs": 256}))
        assert trial.params == {}


class Killed(BaseException):
    """The process died here."""


class Mortal:
    """A storage whose process dies before its n-th write."""

    def __init__(self, storage: BaseStorage, writes: int) -> None:
        self._storage = storage
        self._left = writes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if not name.startswith("set_"):
            return method

        def write(*args: Any, **options: Any) -> Any:
            if self._left == 0:
                raise Killed
            self._left -= 1
            return method(*args, **options)

        return write


@pytest.mark.parametrize(
    "outcome", [measured(FIGURES, resolved_args=TestBaselineParameters.CHOSEN), oom(), failed()]
)
def test_telling_may_stop_before_any_write_and_go_on_later(storage: BaseStorage, outcome: Outcome) -> None:
    """Any warning is an error here, so a constraint that is set twice would show."""
    whole = tell(storage, start(storage), outcome)
    deaths = 0
    for writes in range(60):
        number = start(storage)
        mortal: Any = Mortal(storage, writes)
        try:
            conclude(mortal, SPEC, SPACE, number, outcome, facts={"worker": "w", "attempts": 1})
        except Killed:
            deaths += 1
        trial = tell(storage, number, outcome)
        assert (trial.state, trial.values, trial.constraints) == (
            whole.state,
            whole.values,
            whole.constraints,
        )
        missing = whole.user_attrs.keys() - trial.user_attrs.keys()
        assert missing == set()
        if deaths <= writes:
            break
    assert deaths >= 5

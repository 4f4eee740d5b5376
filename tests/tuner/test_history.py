"""Telling Optuna how a trial ended: what is told, and that it may stop at any write."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import optuna
import pytest
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from tests.tuner.conftest import measured, oom, spec_with
from tuner.errors import FieldError, MissingMetricError
from tuner.history import FEASIBLE, conclude, create_study
from tuner.protocol import (
    Failed,
    Failure,
    FailureKind,
    Infeasible,
    Measurement,
    Outcome,
    Phase,
    PrunedEarly,
    Verdict,
)
from tuner.space import Space, build_space
from tuner.spec import StudySpec
from tuner.suggestion import suggest
from workers.failures import Evidence, classify

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

    def test_same_name_with_other_objectives_is_refused(self, storage: BaseStorage) -> None:
        create_study(storage, SPEC, SPACE)
        for metric in ({"metric": "requests_per_s"}, {"metric": "itl_p95_s"}):
            with pytest.raises(FieldError, match="other objectives"):
                create_study(storage, spec_with(objectives=[metric, {"metric": "e2e_p95_s"}]), SPACE)

    def test_study_of_somebody_else_is_left_alone(self, storage: BaseStorage) -> None:
        foreign = optuna.create_study(
            storage=storage, study_name="study", directions=["maximize", "minimize"]
        )
        foreign.add_trial(create_trial(values=[1.0, 1.0]))
        with pytest.raises(FieldError, match="not ours"):
            create_study(storage, SPEC, SPACE)
        assert foreign.user_attrs == {}


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

    @pytest.mark.parametrize(
        ("numbers", "excess"),
        [
            ({}, 1.0),
            ({"needed_bytes": 3.0, "available_bytes": 2.0}, 0.5),
            ({"required_bytes": 4.0, "limit_bytes": 1.0}, 3.0),
            ({"asked_bytes": 1e12, "free_bytes": 1.0}, 10.0),
            ({"asked_bytes": 1.0, "free_bytes": 2.0}, 1.0),
            ({"asked_bytes": 1.0, "free_bytes": 0.0}, 1.0),
            ({"asked_bytes": 1.0}, 1.0),
        ],
    )
    def test_grade_is_above_zero_and_bounded(
        self, storage: BaseStorage, numbers: dict[str, float], excess: float
    ) -> None:
        assert tell(storage, start(storage), oom(**numbers)).constraints == {FEASIBLE: excess}

    def test_grade_reads_the_numbers_of_a_real_verdict(self, storage: BaseStorage) -> None:
        log = (
            "ValueError: Free memory on device cuda:0 (138.0/139.8 GiB) on startup is less than desired GPU"
            " memory utilization (0.995, 139.1 GiB). Decrease GPU memory utilization."
        )
        failure = classify(Evidence(phase=Phase.STARTING, exit_code=1, log_lines=(log,)))
        assert failure is not None
        trial = tell(storage, start(storage), Infeasible(failure=failure))
        assert trial.constraints[FEASIBLE] == pytest.approx(139.1 / 138.0 - 1.0, rel=1e-3)

    def test_early_end_on_a_figure_that_is_no_number_has_no_constraint(self, storage: BaseStorage) -> None:
        partial = Measurement(metrics={"ttft_p95_s": math.nan}, requests=3, window_s=1.0)
        assert tell(storage, start(storage), PrunedEarly(reason="slow", partial=partial)).constraints == {}

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


OUTCOMES = {
    "measured": measured(FIGURES, resolved_args=TestBaselineParameters.CHOSEN),
    "infeasible": oom(),
    "failed": failed(),
    "pruned-early": PrunedEarly(
        reason="slow", partial=Measurement(metrics={"ttft_p95_s": 4.0}, requests=3, window_s=1.0)
    ),
}


def record(trial: FrozenTrial) -> tuple[object, ...]:
    """All that is told about a trial."""
    return trial.state, trial.values, trial.constraints, trial.params, trial.user_attrs


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_telling_may_stop_before_any_write_and_go_on_later(storage: BaseStorage, outcome: Outcome) -> None:
    """Each trial is a baseline, so its parameters are written too; a constraint set twice would warn."""
    create_study(storage, SPEC, SPACE)
    study_id = storage.get_study_id_from_name(SPEC.name)
    template = suggest(SPEC, SPACE, []).template("lease")
    whole = tell(storage, another(storage, study_id, template), outcome)
    for writes in range(60):
        number = another(storage, study_id, template)
        mortal: Any = Mortal(storage, writes)
        try:
            conclude(mortal, SPEC, SPACE, number, outcome, facts={"worker": "w", "attempts": 1})
        except Killed:
            assert told(storage, number).state is TrialState.RUNNING
        else:
            break
        assert record(tell(storage, number, outcome)) == record(whole)
    assert writes >= 5
    assert record(told(storage, number)) == record(whole)


def another(storage: BaseStorage, study_id: int, template: FrozenTrial) -> int:
    return storage.get_trial_number_from_id(storage.create_new_trial(study_id, template_trial=template))


def test_creating_the_study_may_stop_before_any_write_and_go_on_later(storage: BaseStorage) -> None:
    for writes in range(20):
        spec = spec_with(name=f"study-{writes}")
        mortal: Any = Mortal(storage, writes)
        try:
            create_study(mortal, spec, SPACE)
        except Killed:
            study = create_study(storage, spec, SPACE)
            assert study.metric_names == ["output_tokens_per_s", "e2e_p95_s"]
            assert study.user_attrs["nightshift:space"] == SPACE.fingerprint
        else:
            break
    assert writes >= 3


class Overtaken:
    """A storage on which another process finishes the trial just before our n-th write."""

    def __init__(self, storage: BaseStorage, writes: int, finish: Callable[[], object]) -> None:
        self._storage = storage
        self._left = writes
        self._finish = finish

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if not name.startswith("set_"):
            return method

        def write(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self._finish()
            return method(*args, **options)

        return write


@pytest.mark.parametrize("writes", range(8))
def test_another_may_finish_the_same_trial_meanwhile(storage: BaseStorage, writes: int) -> None:
    number = start(storage)
    overtaken: Any = Overtaken(storage, writes, lambda: tell(storage, number, OUTCOMES["infeasible"]))
    conclude(overtaken, SPEC, SPACE, number, oom(), facts={"worker": "w", "attempts": 1})
    trial = told(storage, number)
    assert (trial.state, trial.constraints) == (TrialState.PRUNED, {FEASIBLE: 1.0})
    assert trial.user_attrs["failure"] == "oom_device"


def test_record_that_was_read_back_gives_the_same_suggestion(storage: BaseStorage) -> None:
    """Values, parameters and constraints come out of the database as they went in."""
    history: list[FrozenTrial] = []
    for number in range(12):
        start(storage)
        outcome = oom(asked_bytes=3.0, free_bytes=2.0) if number % 3 == 1 else measured(FIGURES)
        history.append(tell(storage, number, outcome))
    reread = RDBStorage(storage_url(storage)).get_all_trials(storage.get_study_id_from_name("study"))
    ours, theirs = suggest(SPEC, SPACE, history), suggest(SPEC, SPACE, reread)
    assert (ours.params, ours.origin) == (theirs.params, "sampler")


def storage_url(storage: BaseStorage) -> str:
    """The database behind Optuna's cache."""
    backend: Any = getattr(storage, "_backend", storage)
    return str(backend.url)

"""The lease protocol, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from optuna.trial import TrialState
from sqlalchemy import update

from app.db.tables import leases as lease_table
from app.db.tables import studies as study_table
from app.errors import StaleLeaseError, StateError
from app.services import leases, studies, trials, workers
from app.services.plane import ControlPlane, open_control_plane
from app.settings import Settings
from tests.contracts.conftest import CPU_WORKER, Hands, failed, failure, measured, oom, study_spec
from tuner.protocol import (
    Action,
    Assignment,
    ClaimRequest,
    FailureKind,
    Hardware,
    Heartbeat,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    Phase,
    Release,
    Report,
    Verdict,
    WorkerDescription,
)


def let_leases_run_out(plane: ControlPlane) -> None:
    """Put every lease's end into the past."""
    with plane.database.write() as connection:
        connection.execute(update(lease_table).values(expires_at=0.0))


def beat(plane: ControlPlane, assignment: Assignment, phase: Phase = Phase.MEASURING) -> Action:
    heartbeat = Heartbeat(
        token=assignment.token, phase=phase, elapsed_s=3.0, partial={"output_tokens_per_s": 7.0}
    )
    return leases.beat(plane, assignment.lease_id, heartbeat).action


def state_of(plane: ControlPlane, number: int) -> str:
    return trials.get(plane, "study", number).state.value


class TestClaim:
    def test_the_first_trial_is_vllm_as_it_is(self, hands: Hands) -> None:
        assignment = hands.claim()
        assert (assignment.trial_number, assignment.attempt, assignment.args) == (0, 1, {})
        assert trials.get(hands.plane, "study", 0).origin == "baseline"

    def test_later_trials_set_every_knob(self, hands: Hands) -> None:
        hands.claim()
        assert hands.claim().args.keys() == {"max_num_seqs", "max_num_batched_tokens"}

    def test_no_more_trials_than_the_budget_allows(self, hands: Hands) -> None:
        assert [hands.claim().trial_number for _ in range(4)] == [0, 1, 2, 3]
        assert hands.claim_or_none() is None

    def test_nothing_to_claim_without_a_running_study(self, plane: ControlPlane) -> None:
        studies.create(plane, study_spec())
        assert Hands(plane).claim_or_none() is None

    def test_oldest_study_goes_first(self, plane: ControlPlane) -> None:
        for name in ("first", "second"):
            studies.create(plane, study_spec(name, trials=1), start=True)
        assert [Hands(plane).claim().study for _ in range(2)] == ["first", "second"]

    @pytest.mark.parametrize(
        ("needs", "gpus", "gpu", "fits"),
        [
            ({}, 0, None, True),
            ({"gpus": 0}, 0, None, True),
            ({"gpus": 0}, 1, "NVIDIA H200", False),
            ({"gpus": 2}, 1, "NVIDIA H200", False),
            ({"gpus": 1, "gpu": "h200"}, 1, "NVIDIA H200", True),
            ({"gpus": 1, "gpu": "H100"}, 1, "NVIDIA H200", False),
        ],
    )
    def test_a_worker_gets_only_what_its_hardware_fits(
        self, needs: dict[str, object], gpus: int, gpu: str | None, fits: bool
    ) -> None:
        worker = WorkerDescription(name="w", gpus=gpus, gpu=gpu)
        assert leases.fits(Hardware.model_validate(needs), worker) is fits

    def test_two_claimers_never_hold_the_same_trial(self, plane: ControlPlane, settings: Settings) -> None:
        studies.create(plane, study_spec(trials=24), start=True)
        other = open_control_plane(settings)
        barrier = threading.Barrier(4)

        def claim_all(index: int) -> list[int]:
            mine = Hands(plane if index % 2 else other, WorkerDescription(name=f"worker-{index}"))
            barrier.wait()
            numbers = []
            while (assignment := mine.claim_or_none()) is not None:
                numbers.append(assignment.trial_number)
            return numbers

        with ThreadPoolExecutor(4) as pool:
            held = Counter(number for numbers in pool.map(claim_all, range(4)) for number in numbers)
        other.close()
        assert held == Counter(range(24))

    def test_two_claimers_never_hold_the_same_waiting_trial(
        self, plane: ControlPlane, settings: Settings
    ) -> None:
        studies.create(plane, study_spec(trials=6), start=True)
        first = Hands(plane)
        for assignment in [first.claim() for _ in range(6)]:
            leases.release(plane, assignment.lease_id, Release(token=assignment.token, reason="drains"))
        other = open_control_plane(settings)
        barrier = threading.Barrier(2)

        def claim_all(mine: Hands) -> list[int]:
            barrier.wait()
            numbers = []
            while (assignment := mine.claim_or_none()) is not None:
                numbers.append(assignment.trial_number)
            return numbers

        with ThreadPoolExecutor(2) as pool:
            claimed = list(pool.map(claim_all, [Hands(plane), Hands(other)]))
        other.close()
        assert sorted(claimed[0] + claimed[1]) == list(range(6))


class TestHeartbeat:
    def test_carries_phase_and_partial_figures(self, hands: Hands) -> None:
        assignment = hands.claim()
        assert beat(hands.plane, assignment) is Action.CONTINUE
        view = trials.get(hands.plane, "study", 0)
        assert (view.phase, view.partial, view.elapsed_s) == ("measuring", {"output_tokens_per_s": 7.0}, 3.0)

    def test_keeps_the_lease(self, hands: Hands) -> None:
        assignment = hands.claim()
        beat(hands.plane, assignment)
        assert leases.expire_due(hands.plane) == 0

    def test_tells_the_worker_of_a_cancelled_study_to_stop(self, hands: Hands) -> None:
        assignment = hands.claim()
        studies.cancel(hands.plane, "study")
        assert beat(hands.plane, assignment) is Action.STOP

    def test_goes_on_while_the_study_is_paused(self, hands: Hands) -> None:
        assignment = hands.claim()
        studies.pause(hands.plane, "study")
        assert beat(hands.plane, assignment) is Action.CONTINUE

    def test_is_refused_after_the_lease_ran_out(self, hands: Hands) -> None:
        assignment = hands.claim()
        let_leases_run_out(hands.plane)
        with pytest.raises(StaleLeaseError):
            beat(hands.plane, assignment)


class TestFencing:
    """A write with a token that does not hold the lease changes nothing."""

    def writes(self, plane: ControlPlane, lease_id: str, token: str) -> None:
        heartbeat = Heartbeat(token=token, phase=Phase.READY, elapsed_s=1.0)
        for write in (
            lambda: leases.beat(plane, lease_id, heartbeat),
            lambda: leases.report(plane, lease_id, Report(token=token, outcome=measured())),
            lambda: leases.release(plane, lease_id, Release(token=token, reason="mine")),
        ):
            with pytest.raises(StaleLeaseError):
                write()

    def test_foreign_token(self, hands: Hands) -> None:
        assignment = hands.claim()
        self.writes(hands.plane, assignment.lease_id, "a-guess")
        assert state_of(hands.plane, 0) == "running"

    def test_unknown_lease(self, hands: Hands) -> None:
        self.writes(hands.plane, "0" * 32, "a-guess")

    def test_expired_lease_whose_trial_someone_else_runs(self, hands: Hands) -> None:
        lost = hands.claim()
        let_leases_run_out(hands.plane)
        assert leases.expire_due(hands.plane) == 1
        again = hands.claim()
        assert (again.trial_number, again.attempt) == (0, 2)
        self.writes(hands.plane, lost.lease_id, lost.token)
        hands.report(again, measured(123.0))
        assert trials.get(hands.plane, "study", 0).metrics["output_tokens_per_s"] == 123.0

    def test_another_report_after_the_first(self, hands: Hands) -> None:
        assignment = hands.claim()
        hands.report(assignment, measured(1.0))
        with pytest.raises(StaleLeaseError):
            hands.report(assignment, measured(2.0))
        assert trials.get(hands.plane, "study", 0).metrics["output_tokens_per_s"] == 1.0

    def test_same_report_again_is_accepted_and_counted_once(self, hands: Hands) -> None:
        assignment = hands.claim()
        for _ in range(3):
            hands.report(assignment, measured(5.0))
        assert studies.counts(hands.plane, studies.get(hands.plane, "study")) == {"completed": 1}

    def test_late_report_of_a_lease_that_nobody_took_back_loses_nothing(self, hands: Hands) -> None:
        assignment = hands.claim()
        let_leases_run_out(hands.plane)
        hands.report(assignment, measured(9.0))
        assert state_of(hands.plane, 0) == "completed"


class TestOutcomes:
    def optuna_states(self, plane: ControlPlane) -> list[TrialState]:
        study_id = plane.storage.get_study_id_from_name("study")
        return [trial.state for trial in plane.storage.get_all_trials(study_id)]

    def test_measured_is_complete_with_values(self, hands: Hands) -> None:
        hands.report(hands.claim(), measured(50.0))
        study_id = hands.plane.storage.get_study_id_from_name("study")
        trial = hands.plane.storage.get_all_trials(study_id)[0]
        assert (trial.state, trial.values) == (TrialState.COMPLETE, [50.0, 1.0])

    def test_infeasible_is_pruned_with_a_violated_constraint(self, hands: Hands) -> None:
        hands.claim()
        hands.report(hands.claim(), oom())
        study_id = hands.plane.storage.get_study_id_from_name("study")
        trial = hands.plane.storage.get_all_trials(study_id)[1]
        assert trial.state is TrialState.PRUNED
        assert trial.constraints["feasible"] > 0
        assert trial.user_attrs["failure"] == "oom_device"

    def test_failed_is_tried_again_and_then_given_up(self, hands: Hands) -> None:
        hands.report(hands.claim(), failed())
        assert state_of(hands.plane, 0) == "waiting"
        again = hands.claim()
        assert (again.trial_number, again.attempt) == (0, 2)
        hands.report(again, failed())
        assert state_of(hands.plane, 0) == "failed"
        assert self.optuna_states(hands.plane) == [TrialState.FAIL]

    def test_failed_that_no_attempt_can_mend_is_not_tried_again(self, hands: Hands) -> None:
        hands.report(hands.claim(), failed(retryable=False))
        assert state_of(hands.plane, 0) == "failed"

    def test_expiry_costs_an_attempt_and_the_last_one_ends_the_trial(self, hands: Hands) -> None:
        for _ in range(2):
            assert hands.claim().trial_number == 0
            let_leases_run_out(hands.plane)
            leases.expire_due(hands.plane)
        assert state_of(hands.plane, 0) == "failed"
        assert "not heard of" in str(trials.get(hands.plane, "study", 0).failure)

    def test_release_costs_no_attempt(self, hands: Hands) -> None:
        for _ in range(3):
            assignment = hands.claim()
            assert (assignment.trial_number, assignment.attempt) == (0, 1)
            leases.release(hands.plane, assignment.lease_id, Release(token=assignment.token, reason="drains"))

    def test_missing_objective_is_a_failed_attempt_and_no_number(self, hands: Hands) -> None:
        lacking = Measurement(metrics={"output_tokens_per_s": 5.0}, requests=3, window_s=1.0)
        for _ in range(2):
            hands.report(hands.claim(), Measured(measurement=lacking))
        view = trials.get(hands.plane, "study", 0)
        assert view.state.value == "failed"
        assert view.failure is not None
        assert "e2e_p95_s" in view.failure.message

    def test_slo_violation_is_told_as_a_constraint(self, plane: ControlPlane) -> None:
        studies.create(plane, study_spec(slos=[{"metric": "e2e_p95_s", "max": 0.5}]), start=True)
        hands = Hands(plane)
        hands.report(hands.claim(), measured())
        trial = plane.storage.get_all_trials(plane.storage.get_study_id_from_name("study"))[0]
        assert trial.constraints["slo:e2e_p95_s"] == pytest.approx(1.0)

    def test_fixed_argument_that_can_never_pass_fails_the_study(self, hands: Hands) -> None:
        bystander = hands.claim()
        never = failure(
            FailureKind.INVALID_CONFIG,
            verdict=Verdict.INFEASIBLE,
            retryable=False,
            fatal=True,
            message="max_model_len (4096) is greater than 2048",
            advice="lower engine.args.max_model_len",
        )
        hands.report(hands.claim(), Infeasible(failure=never))
        study = studies.get(hands.plane, "study")
        assert study.state.value == "failed"
        assert "lower engine.args.max_model_len" in (study.reason or "")
        assert beat(hands.plane, bystander) is Action.STOP

    def test_broken_host_is_set_aside_and_the_trial_goes_to_another(self, hands: Hands) -> None:
        broken = failed(kind=FailureKind.BROKEN_INSTALLATION, retryable=False, fatal=True)
        hands.report(hands.claim(), broken)
        assert hands.claim_or_none() is None
        [row] = workers.page(hands.plane)
        assert (row.state, row.reason) == ("quarantined", "broke")
        other = Hands(hands.plane, WorkerDescription(name="another")).claim()
        assert (other.trial_number, other.attempt) == (0, 1)

    def test_mended_worker_starts_with_a_clean_record(self, hands: Hands) -> None:
        broken = failed(kind=FailureKind.BROKEN_INSTALLATION, retryable=False, fatal=True)
        hands.report(hands.claim(), broken)
        restarted = Hands(hands.plane, CPU_WORKER.model_copy(update={"pid": 2}))
        assert restarted.claim().trial_number == 0


class TestEnd:
    def test_study_completes_with_a_recommendation(self, hands: Hands) -> None:
        def faster(assignment: Assignment) -> Outcome:
            return measured(100.0 + assignment.trial_number)

        assert len(hands.work_off(faster)) == 4
        study = studies.get(hands.plane, "study")
        assert study.state.value == "completed"
        answer = studies.recommendation(hands.plane, "study")
        assert answer.trial_number == 3
        assert answer.figures["output_tokens_per_s"].ratio == pytest.approx(1.03)

    def test_study_waits_for_the_last_lease(self, hands: Hands) -> None:
        last = [hands.claim() for _ in range(4)]
        for assignment in last[:3]:
            hands.report(assignment, measured())
        assert studies.get(hands.plane, "study").state.value == "running"
        hands.report(last[3], measured())
        assert studies.get(hands.plane, "study").state.value == "completed"

    def test_exhausted_space_completes_the_study(self, plane: ControlPlane) -> None:
        knobs = {"preset": "none", "knobs": {"max_num_seqs": [1, 2]}}
        studies.create(plane, study_spec(trials=50, space=knobs), start=True)
        numbers = [assignment.trial_number for assignment in Hands(plane).work_off()]
        assert numbers == [0, 1, 2]
        assert studies.get(plane, "study").state.value == "completed"

    def test_hours_end_a_study_and_keep_what_it_has(self, plane: ControlPlane) -> None:
        studies.create(plane, study_spec(budget={"trials": 50, "hours": 1.0}), start=True)
        hands = Hands(plane)
        running = hands.claim()
        with plane.database.write() as connection:
            connection.execute(update(study_table).values(deadline_at=0.0))
        assert hands.claim_or_none() is None
        hands.report(running, measured())
        assert studies.get(plane, "study").state.value == "completed"
        assert studies.recommendation(plane, "study").trial_number == 0

    def test_study_without_any_success_says_why(self, hands: Hands) -> None:
        hands.work_off(lambda _: oom())
        answer = studies.recommendation(hands.plane, "study")
        assert answer.trial_number is None
        assert "oom_device" in answer.reason

    def test_study_of_which_every_trial_fails_is_given_up(self, plane: ControlPlane) -> None:
        studies.create(plane, study_spec(trials=40), start=True)
        hands = Hands(plane)
        assert len(hands.work_off(lambda _: failed(retryable=False, message="no disk"))) == 5
        study = studies.get(plane, "study")
        assert study.state.value == "failed"
        assert "no disk" in (study.reason or "")

    def test_paused_study_gives_no_trial_and_goes_on_after(self, hands: Hands) -> None:
        studies.pause(hands.plane, "study")
        assert hands.claim_or_none() is None
        studies.resume(hands.plane, "study")
        assert hands.claim().trial_number == 0

    def test_cancelled_study_ends_its_waiting_trials_in_both_records(self, hands: Hands) -> None:
        running, waiting = hands.claim(), hands.claim()
        leases.release(hands.plane, waiting.lease_id, Release(token=waiting.token, reason="drains"))
        studies.cancel(hands.plane, "study")
        leases.release(hands.plane, running.lease_id, Release(token=running.token, reason="told to stop"))
        assert {state_of(hands.plane, number) for number in (0, 1)} == {"failed"}
        study_id = hands.plane.storage.get_study_id_from_name("study")
        states = {trial.state for trial in hands.plane.storage.get_all_trials(study_id)}
        assert states == {TrialState.FAIL}

    def test_final_states_are_final(self, hands: Hands) -> None:
        studies.cancel(hands.plane, "study")
        for move in (studies.start, studies.pause, studies.resume):
            with pytest.raises(StateError, match="that is final"):
                move(hands.plane, "study")


def test_worker_of_another_protocol_version_is_refused(plane: ControlPlane) -> None:
    foreign = WorkerDescription(name="old", protocol_version=99)
    with pytest.raises(Exception, match="speaks version 1"):
        leases.claim(plane, ClaimRequest(worker=foreign))

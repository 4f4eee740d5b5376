"""The control plane dies before any one of its writes; the rest is put right, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from optuna.trial import TrialState
from sqlalchemy import update

from app.background.reaper import reap
from app.background.reconciler import reconcile
from app.db.tables import leases as lease_table
from app.services import leases, studies, trials
from app.services.plane import ControlPlane
from tests.contracts.conftest import Died, Hands, dying_after, failed, measured, oom, study_spec
from tuner.protocol import Assignment, Outcome, Release, Report

MORE_WRITES_THAN_ANY_STEP_HAS = 40


def until_it_lives(
    plane: ControlPlane, step: Callable[[ControlPlane], object], check: Callable[[int], None]
) -> int:
    """Run ``step`` on processes that die ever later, ``check`` after each; returns how many died."""
    for writes in range(MORE_WRITES_THAN_ANY_STEP_HAS):
        with dying_after(plane, writes) as mortal:
            try:
                step(mortal)
            except Died:
                check(writes)
            else:
                return writes
    raise AssertionError("it never lived")


def new_process_tidies_up(plane: ControlPlane) -> None:
    """What the background loops of the next process do, once the dead one's leases have run out."""
    with plane.database.write() as connection:
        connection.execute(update(lease_table).where(lease_table.c.ended_at.is_(None)).values(expires_at=0.0))
    reap(plane)
    reconcile(plane)


def assert_records_agree(plane: ControlPlane, name: str = "study") -> None:
    """Each trial stands once in either record, and both say the same of it."""
    study_id = plane.storage.get_study_id_from_name(name)
    theirs = {trial.number: trial.state for trial in plane.storage.get_all_trials(study_id)}
    ours = {view.number: view.state.value for view in trials.page(plane, name, limit=1000)}
    expected = {
        "waiting": TrialState.RUNNING,
        "running": TrialState.RUNNING,
        "completed": TrialState.COMPLETE,
        "infeasible": TrialState.PRUNED,
        "pruned_early": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }
    assert {number: expected[state] for number, state in ours.items()} == theirs


def test_claim(plane: ControlPlane) -> None:
    deaths = 0

    def claim(mortal: ControlPlane) -> None:
        assert Hands(mortal).claim_or_none() is not None

    def check(_: int) -> None:
        new_process_tidies_up(plane)
        assert_records_agree(plane)

    studies.create(plane, study_spec(trials=30), start=True)
    deaths = until_it_lives(plane, claim, check)
    assert deaths >= 4
    new_process_tidies_up(plane)
    numbers = [assignment.trial_number for assignment in Hands(plane).work_off()]
    assert numbers == sorted(set(numbers))
    assert_records_agree(plane)
    origins = [view.origin for view in trials.page(plane, "study", limit=1000)]
    assert origins.count("baseline") == 1
    assert len(origins) == 30


@pytest.mark.parametrize(
    "outcome",
    [measured(), oom(), failed(), failed(retryable=False)],
    ids=["measured", "infeasible", "retried", "failed"],
)
def test_report(plane: ControlPlane, outcome: Outcome) -> None:
    """The worker sends its report again until it is taken; the outcome counts once."""
    studies.create(plane, study_spec(trials=40), start=True)
    first = Hands(plane)
    first.report(first.claim(), measured())
    held: list[Assignment] = []

    def report(mortal: ControlPlane) -> None:
        held.append(Hands(plane).claim())
        Hands(mortal).report(held[-1], outcome)

    def check(_: int) -> None:
        reconcile(plane)
        leases.report(plane, held[-1].lease_id, Report(token=held[-1].token, outcome=outcome))
        reconcile(plane)
        assert_records_agree(plane)

    deaths = until_it_lives(plane, report, check)
    assert deaths >= 1
    ended = [view for view in trials.page(plane, "study", limit=100) if view.ended_at is not None]
    if outcome.kind != "failed":
        assert [view.number for view in ended] == [
            0,
            *sorted({assignment.trial_number for assignment in held}),
        ]


def test_last_report_and_the_end_of_the_study(plane: ControlPlane) -> None:
    for writes in range(MORE_WRITES_THAN_ANY_STEP_HAS):
        name = f"study-{writes}"
        studies.create(plane, study_spec(name, trials=1), start=True)
        assignment = Hands(plane).claim()
        with dying_after(plane, writes) as mortal:
            try:
                Hands(mortal).report(assignment, measured())
                lived = True
            except Died:
                lived = False
        if not lived:
            Hands(plane).report(assignment, measured())  # the worker tries again
        reconcile(plane)
        study = studies.get(plane, name)
        assert study.state.value == "completed"
        assert study.recommendation is not None
        assert_records_agree(plane, name)
        if lived:
            return
    raise AssertionError("it never lived")


def test_expiry(plane: ControlPlane) -> None:
    studies.create(plane, study_spec(trials=30), start=True)

    def expire(mortal: ControlPlane) -> None:
        Hands(plane).claim()
        with plane.database.write() as connection:
            connection.execute(
                update(lease_table).where(lease_table.c.state == "held").values(expires_at=0.0)
            )
        leases.expire_due(mortal)

    def check(_: int) -> None:
        new_process_tidies_up(plane)
        assert_records_agree(plane)

    assert until_it_lives(plane, expire, check) >= 1


def test_cancel(plane: ControlPlane) -> None:
    for writes in range(MORE_WRITES_THAN_ANY_STEP_HAS):
        name = f"study-{writes}"
        studies.create(plane, study_spec(name), start=True)
        waiting = Hands(plane).claim()
        leases.release(plane, waiting.lease_id, Release(token=waiting.token, reason="drains"))
        with dying_after(plane, writes) as mortal:
            try:
                studies.cancel(mortal, name)
                lived = True
            except Died:
                lived = False
                if studies.get(plane, name).state.value != "cancelled":
                    studies.cancel(plane, name)
        reconcile(plane)
        assert_records_agree(plane, name)
        assert trials.get(plane, name, 0).state.value == "failed"
        if lived:
            return
    raise AssertionError("it never lived")


def test_creation_with_an_idempotency_key(plane: ControlPlane) -> None:
    def create(mortal: ControlPlane) -> None:
        studies.create(mortal, study_spec(), start=True, idempotency_key="once")

    until_it_lives(plane, create, lambda _: None)
    assert studies.create(plane, study_spec(), start=True, idempotency_key="once").state.value == "running"
    assert len(studies.page(plane)) == 1

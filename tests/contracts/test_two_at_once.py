"""Two processes do the same, or neighbouring, things at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import update

from app.background.reaper import reap
from app.background.reconciler import reconcile
from app.db import events as event_rows
from app.db import leases as lease_rows
from app.db import studies as study_rows
from app.db.tables import leases as lease_table
from app.db.tables import workers as worker_table
from app.services import events, leases, studies, trials, workers
from app.services.plane import ControlPlane, open_control_plane
from app.settings import Settings
from tests.contracts.conftest import Hands, measured, study_spec
from tuner.protocol import Heartbeat, Phase, Release, WorkerDescription

ROUNDS = 8


@pytest.fixture
def other(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A second process on the same database."""
    opened = open_control_plane(plane.settings)
    yield opened
    opened.close()


def at_once(*steps: Callable[[], object]) -> None:
    """Start all steps at the same moment; raises what any of them raised."""
    barrier = threading.Barrier(len(steps))

    def run(step: Callable[[], object]) -> None:
        barrier.wait()
        step()

    with ThreadPoolExecutor(len(steps)) as pool:
        for future in [pool.submit(run, step) for step in steps]:
            future.result(timeout=60)


def test_same_report_sent_twice_is_accepted_twice_and_counted_once(
    plane: ControlPlane, other: ControlPlane
) -> None:
    studies.create(plane, study_spec(trials=ROUNDS), start=True)
    for _ in range(ROUNDS):
        assignment = Hands(plane).claim()
        at_once(*(partial(Hands(each).report, assignment, measured()) for each in (plane, other)))
    assert studies.counts(plane, studies.get(plane, "study")) == {"completed": ROUNDS}


def test_ended_study_closed_by_two_closes_each_waiting_trial_once(
    plane: ControlPlane, other: ControlPlane
) -> None:
    for turn in range(ROUNDS):
        name = f"study-{turn}"
        studies.create(plane, study_spec(name, trials=6), start=True)
        hands = Hands(plane)
        for held in [hands.claim() for _ in range(6)]:
            leases.release(plane, held.lease_id, Release(token=held.token, reason="drains"))
        at_once(*(partial(studies.cancel, each, name) for each in (plane, other)))
        assert {view.state.value for view in trials.page(plane, name)} == {"failed"}


def test_worker_that_registers_twice_is_one_worker(plane: ControlPlane, other: ControlPlane) -> None:
    for turn in range(ROUNDS):
        worker = WorkerDescription(name=f"worker-{turn}", pid=1)
        at_once(*(partial(workers.register, each, worker) for each in (plane, other)))
    assert len(workers.page(plane)) == ROUNDS


def test_reservation_that_lapses_while_the_configuration_is_chosen_loses_no_trial(
    plane: ControlPlane, other: ControlPlane
) -> None:
    class SlowStorage:
        """Optuna's storage, beside which the reaper of another process finds the reservation too old."""

        def __getattr__(self, name: str) -> Any:
            if name == "create_new_trial":
                with other.database.write() as connection:
                    connection.execute(update(lease_table).values(expires_at=0.0))
                assert reap(other) == 1
            return getattr(other.storage, name)

    studies.create(plane, study_spec(trials=1), start=True)
    slow: Any = SlowStorage()
    assert Hands(ControlPlane(plane.settings, plane.database, slow)).claim_or_none() is None
    reconcile(plane)
    assert [held.trial_number for held in Hands(plane).work_off()] == [0]
    assert studies.get(plane, "study").state.value == "completed"


def test_heartbeat_is_a_sign_of_life_of_the_worker(hands: Hands) -> None:
    assignment = hands.claim()
    with hands.plane.database.write() as connection:
        connection.execute(update(worker_table).values(seen_at=0.0))
    heartbeat = Heartbeat(token=assignment.token, phase=Phase.MEASURING, elapsed_s=1.0)
    leases.beat(hands.plane, assignment.lease_id, heartbeat)
    [worker] = workers.page(hands.plane)
    assert worker.seen_at > 0.0


def test_no_event_is_passed_over_that_commits_after_a_later_one(postgres_url: str, tmp_path: Path) -> None:
    """Numbers are drawn in one order and committed in another: who follows along must get both."""
    plane = open_control_plane(Settings(database_url=SecretStr(postgres_url), home=tmp_path))
    seen: list[str] = []
    with plane.database.write() as slow:
        event_rows.record(slow, "drawn.first")
        with plane.database.write() as fast:
            event_rows.record(fast, "drawn.second")
        seen += [row.kind for row in events.after(plane, 0)]
        assert seen == []
    seen += [row.kind for row in events.after(plane, 0)]
    plane.close()
    assert seen == ["drawn.first", "drawn.second"]


def test_reaper_does_not_wait_for_a_claim_of_the_same_study(postgres_url: str, tmp_path: Path) -> None:
    """It did, while the claim waited for a lease that the reaper had locked: a deadlock."""
    plane = open_control_plane(Settings(database_url=SecretStr(postgres_url), home=tmp_path))
    study = studies.create(plane, study_spec(), start=True)
    lease = {"id": "0" * 32, "study_id": study.id, "worker": "w", "attempt": 1}
    with plane.database.write() as connection:
        lease_rows.add(connection, lease, ttl_s=60.0)
        connection.execute(update(lease_table).values(expires_at=0.0))
    with ThreadPoolExecutor(1) as pool, plane.database.write() as claiming:
        study_rows.lock(claiming, study.id)
        assert pool.submit(reap, plane).result(timeout=20) == 1
    plane.close()

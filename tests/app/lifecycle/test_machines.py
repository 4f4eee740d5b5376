"""Every pair of states: what the tables allow, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from app.lifecycle.lease import LEASE, LeaseState
from app.lifecycle.machine import IllegalMoveError, Machine
from app.lifecycle.study import STUDY, StudyState
from app.lifecycle.trial import TRIAL, TrialState

MACHINES = [(STUDY, StudyState), (LEASE, LeaseState), (TRIAL, TrialState)]
PAIRS = [(machine, a, b) for machine, states in MACHINES for a, b in itertools.product(states, repeat=2)]


@pytest.mark.parametrize(
    ("machine", "source", "target"), PAIRS, ids=lambda part: str(getattr(part, "name", part))
)
def test_only_the_tables_moves_pass(
    machine: Machine[StudyState], source: StudyState, target: StudyState
) -> None:
    if target in machine.moves[source]:
        machine.check(source, target)
    else:
        with pytest.raises(IllegalMoveError, match=f"from {source.value} to {target.value}"):
            machine.check(source, target)


@pytest.mark.parametrize(("machine", "states"), MACHINES, ids=["study", "lease", "trial"])
def test_every_state_has_a_row_and_can_end(machine: Machine[StudyState], states: type[StudyState]) -> None:
    assert set(machine.moves) == set(states)
    for state in states:
        reached, frontier = {state}, {state}
        while frontier:
            frontier = {target for source in frontier for target in machine.moves[source]} - reached
            reached |= frontier
        assert reached & machine.final


def test_nothing_leaves_a_final_state() -> None:
    assert STUDY.final == {StudyState.COMPLETED, StudyState.CANCELLED, StudyState.FAILED}
    assert LEASE.final == {LeaseState.REPORTED, LeaseState.EXPIRED, LeaseState.RELEASED}


def test_sources_are_the_inverse_of_the_moves() -> None:
    assert LEASE.sources_of(LeaseState.REPORTING) == {LeaseState.HELD}

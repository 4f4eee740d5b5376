"""A study, a worker and what it reports, for the contract tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from optuna.storages import BaseStorage
from sqlalchemy import Connection

from app.services import leases, studies
from app.services.plane import ControlPlane
from tuner.protocol import (
    Assignment,
    ClaimRequest,
    Failed,
    Failure,
    FailureKind,
    Infeasible,
    Measured,
    Measurement,
    Outcome,
    Phase,
    Report,
    Verdict,
    WorkerDescription,
)
from tuner.spec import StudySpec, parse_study

CPU_WORKER = WorkerDescription(name="host-cpu", pid=1)


def study_spec(name: str = "study", *, trials: int = 4, **more: Any) -> StudySpec:
    """A small study of two knobs."""
    return parse_study(
        {
            "name": name,
            "engine": {"model": "a-model"},
            "workload": {
                "prompts": {"input_tokens": 16, "output_tokens": 8},
                "arrivals": {"kind": "closed", "concurrency": 4},
            },
            "space": {
                "preset": "none",
                "knobs": {
                    "max_num_seqs": {"low": 1, "high": 64, "step": "pow2"},
                    "max_num_batched_tokens": {"low": 64, "high": 4096, "step": "pow2"},
                },
            },
            "budget": {"trials": trials, "attempts": 2},
            **more,
        }
    )


def measured(value: float = 100.0) -> Measured:
    """A measurement with the default objectives."""
    metrics = {"output_tokens_per_s": value, "e2e_p95_s": 1.0}
    return Measured(measurement=Measurement(metrics=metrics, requests=50, window_s=5.0))


def failure(kind: FailureKind = FailureKind.OTHER, **more: Any) -> Failure:
    """A failure of the environment that another attempt may not meet."""
    facts = {
        "verdict": Verdict.FAILED,
        "retryable": True,
        "fatal": False,
        "phase": Phase.STARTING,
        "message": "broke",
    }
    return Failure(kind=kind, **{**facts, **more})


def oom() -> Infeasible:
    """A configuration that does not fit."""
    facts = {"verdict": Verdict.INFEASIBLE, "retryable": False, "message": "CUDA out of memory"}
    return Infeasible(failure=failure(FailureKind.OOM_DEVICE, **facts))


def failed(**more: Any) -> Failed:
    """An attempt that the environment broke."""
    return Failed(failure=failure(**more))


@dataclass(slots=True)
class Hands:
    """Plays a worker against the services."""

    plane: ControlPlane
    worker: WorkerDescription = field(default=CPU_WORKER)

    def claim(self) -> Assignment:
        """Claim, which must succeed."""
        assignment = self.claim_or_none()
        assert assignment is not None
        return assignment

    def claim_or_none(self) -> Assignment | None:
        """Claim."""
        return leases.claim(self.plane, ClaimRequest(worker=self.worker))

    def report(self, assignment: Assignment, outcome: Outcome) -> None:
        """Report an outcome."""
        leases.report(self.plane, assignment.lease_id, Report(token=assignment.token, outcome=outcome))

    def work_off(self, outcome: Callable[[Assignment], Outcome] = lambda _: measured()) -> list[Assignment]:
        """Claim and report until there is nothing left."""
        done = []
        while (assignment := self.claim_or_none()) is not None:
            self.report(assignment, outcome(assignment))
            done.append(assignment)
        return done


@pytest.fixture
def hands(plane: ControlPlane) -> Hands:
    """A worker on a control plane with one running study."""
    studies.create(plane, study_spec(), start=True)
    return Hands(plane)


# ---------------------------------------------------------------- dying at any write


class Died(BaseException):
    """The process was killed here. Not an Exception: nothing may catch it."""


@dataclass(slots=True)
class Lifetime:
    """How many more writes the process lives to see."""

    writes_left: int

    def spend(self) -> None:
        """One write; dies before it when none is left."""
        if self.writes_left == 0:
            raise Died
        self.writes_left -= 1


class MortalStorage:
    """Optuna's storage of a process that dies before its n-th write."""

    WRITES = ("create_new_trial", "create_new_study", "delete_study")

    def __init__(self, storage: BaseStorage, lifetime: Lifetime) -> None:
        self._storage = storage
        self._lifetime = lifetime

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if name not in self.WRITES and not name.startswith("set_"):
            return method

        def mortal(*args: Any, **options: Any) -> Any:
            self._lifetime.spend()
            return method(*args, **options)

        return mortal


@contextmanager
def dying_after(plane: ControlPlane, writes: int) -> Iterator[ControlPlane]:
    """A control plane on the same database that dies before write number ``writes`` + 1."""
    lifetime = Lifetime(writes)
    database = plane.database
    mortal = type(database)(database.engine, database.url)

    @contextmanager
    def write() -> Iterator[Connection]:
        lifetime.spend()
        with database.write() as connection:
            yield connection

    mortal.write = write  # type: ignore[method-assign]  # the seam is the transaction itself
    storage: Any = MortalStorage(plane.storage, lifetime)
    yield ControlPlane(plane.settings, mortal, storage)

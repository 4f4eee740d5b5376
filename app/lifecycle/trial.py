"""States of a trial: its place in the queue, then how it ended."""

from __future__ import annotations

from enum import StrEnum

from app.lifecycle.machine import Machine

__all__ = ["TRIAL", "TrialState"]


class TrialState(StrEnum):
    """Where a trial stands."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    INFEASIBLE = "infeasible"
    PRUNED_EARLY = "pruned_early"
    FAILED = "failed"


T = TrialState

_ENDS = frozenset({T.COMPLETED, T.INFEASIBLE, T.PRUNED_EARLY, T.FAILED})

TRIAL: Machine[TrialState] = Machine(
    "trial",
    {
        T.WAITING: frozenset({T.RUNNING, T.FAILED}),
        T.RUNNING: frozenset({T.WAITING, *_ENDS}),
        **{end: frozenset() for end in _ENDS},
    },
)

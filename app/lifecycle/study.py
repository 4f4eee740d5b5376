"""States of a study."""

from __future__ import annotations

from enum import StrEnum

from app.lifecycle.machine import Machine

__all__ = ["STUDY", "StudyState"]


class StudyState(StrEnum):
    """Where a study stands."""

    DRAFT = "draft"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


S = StudyState

STUDY: Machine[StudyState] = Machine(
    "study",
    {
        S.DRAFT: frozenset({S.RUNNING, S.CANCELLED, S.FAILED}),
        S.RUNNING: frozenset({S.PAUSED, S.DRAINING, S.COMPLETED, S.CANCELLED, S.FAILED}),
        S.PAUSED: frozenset({S.RUNNING, S.DRAINING, S.CANCELLED, S.FAILED}),
        S.DRAINING: frozenset({S.COMPLETED, S.CANCELLED, S.FAILED}),
        S.COMPLETED: frozenset(),
        S.CANCELLED: frozenset(),
        S.FAILED: frozenset(),
    },
)

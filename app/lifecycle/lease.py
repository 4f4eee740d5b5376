"""States of a lease: the right of one worker to run one attempt."""

from __future__ import annotations

from enum import StrEnum

from app.lifecycle.machine import Machine

__all__ = ["LEASE", "LeaseState"]


class LeaseState(StrEnum):
    """Where a lease stands."""

    RESERVED = "reserved"
    HELD = "held"
    REPORTING = "reporting"
    REPORTED = "reported"
    EXPIRED = "expired"
    RELEASED = "released"


L = LeaseState

LEASE: Machine[LeaseState] = Machine(
    "lease",
    {
        L.RESERVED: frozenset({L.HELD, L.EXPIRED, L.RELEASED}),
        L.HELD: frozenset({L.REPORTING, L.EXPIRED, L.RELEASED}),
        L.REPORTING: frozenset({L.REPORTED}),
        L.REPORTED: frozenset(),
        L.EXPIRED: frozenset(),
        L.RELEASED: frozenset(),
    },
)

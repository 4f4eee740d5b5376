"""Takes back the leases of workers that are not heard of."""

from __future__ import annotations

from app.services import leases
from app.services.plane import ControlPlane

__all__ = ["reap"]


def reap(plane: ControlPlane) -> int:
    """One pass; returns how many leases were taken back."""
    return leases.expire_due(plane)

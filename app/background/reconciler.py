"""Finishes what stopped between two steps of a claim or a report."""

from __future__ import annotations

from app.services import studies
from app.services.plane import ControlPlane

__all__ = ["reconcile"]


def reconcile(plane: ControlPlane) -> int:
    """One pass: tell Optuna what it has not been told, adopt its orphans, end studies that are over.

    Returns:
        How much there was to do.
    """
    return studies.reconcile(plane)

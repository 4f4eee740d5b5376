"""From a measurement's metrics to what the search compares: objective values and constraint values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.errors import MissingMetricError
from tuner.spec import Slo, StudySpec

__all__ = ["objective_values", "slo_bound", "slo_constraints", "slo_violation"]


def objective_values(spec: StudySpec, metrics: Mapping[str, float]) -> list[float]:
    """One value per objective, in the study's order.

    Raises:
        MissingMetricError: the measurement lacks one.
    """
    return [_figure(objective.metric, metrics) for objective in spec.objectives]


def slo_constraints(spec: StudySpec, metrics: Mapping[str, float]) -> dict[str, float]:
    """Violation of each SLO by the name ``slo:<metric>``; above 0 is violated.

    Raises:
        MissingMetricError: the measurement lacks a metric that an SLO bounds.
    """
    constraints: dict[str, float] = {}
    for slo in spec.slos:
        name = f"slo:{slo.metric}"
        violation = slo_violation(slo, _figure(slo.metric, metrics))
        constraints[name] = max(violation, constraints.get(name, violation))
    return constraints


def slo_violation(slo: Slo, value: float) -> float:
    """How far ``value`` lies beyond the bound, as a share of the bound (absolute for a bound of 0)."""
    beyond, bound = (
        (value - slo.max, slo.max) if slo.max is not None else ((slo.min or 0.0) - value, slo.min or 0.0)
    )
    return beyond / abs(bound) if bound else beyond


def slo_bound(slo: Slo) -> str:
    """The bound for people, e.g. ``<= 2``."""
    return f"<= {slo.max:g}" if slo.max is not None else f">= {slo.min:g}"


def _figure(metric: str, metrics: Mapping[str, float]) -> float:
    if not math.isfinite(metrics.get(metric, math.nan)):  # what is no number was not measured
        raise MissingMetricError(metric, list(metrics))
    return metrics[metric]

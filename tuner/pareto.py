"""The Pareto front: configurations that no other one beats in every objective."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.metrics import Direction

__all__ = ["dominates", "pareto_front"]


def dominates(a: Sequence[float], b: Sequence[float], directions: Sequence[Direction]) -> bool:
    """Whether ``a`` is at least as good as ``b`` in every objective and better in one."""
    signs = [1.0 if direction is Direction.MAXIMIZE else -1.0 for direction in directions]
    gains = [sign * (x - y) for sign, x, y in zip(signs, a, b, strict=True)]
    return all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)


def pareto_front(values: Sequence[Sequence[float]], directions: Sequence[Direction]) -> list[int]:
    """Positions in ``values`` of the points that no other point dominates, in order."""
    return [
        i
        for i, point in enumerate(values)
        if not any(dominates(other, point, directions) for other in values)
    ]

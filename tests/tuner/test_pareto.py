"""The Pareto front, by its defining properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuner.metrics import Direction
from tuner.pareto import dominates, pareto_front

BOTH = [Direction.MAXIMIZE, Direction.MINIMIZE]
POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30)


def test_front_by_hand() -> None:
    points = [(10.0, 5.0), (8.0, 2.0), (8.0, 3.0), (11.0, 9.0), (1.0, 2.0)]
    assert pareto_front(points, BOTH) == [0, 1, 3]


def test_equal_points_do_not_beat_each_other() -> None:
    assert pareto_front([(1.0, 1.0), (1.0, 1.0)], BOTH) == [0, 1]


@given(POINTS)
def test_front_is_not_empty_and_nothing_beats_it(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points, BOTH)
    assert front
    assert not any(dominates(other, points[position], BOTH) for position in front for other in points)


@given(POINTS)
def test_everything_else_is_beaten_by_the_front(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points, BOTH)
    for position in set(range(len(points))) - set(front):
        assert any(dominates(points[best], points[position], BOTH) for best in front)

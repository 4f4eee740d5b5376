"""From metrics to objective and constraint values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.conftest import spec_with
from tuner.errors import MissingMetricError
from tuner.objectives import objective_values, slo_bound, slo_constraints, slo_violation
from tuner.spec import Slo

FIGURES = {"output_tokens_per_s": 250.0, "e2e_p95_s": 3.0, "ttft_p95_s": 1.0}
BOUNDS = st.floats(-1e6, 1e6)


def test_values_are_in_the_studys_order_and_as_they_were_measured() -> None:
    spec = spec_with(objectives=[{"metric": "e2e_p95_s"}, {"metric": "output_tokens_per_s"}])
    assert objective_values(spec, FIGURES) == [3.0, 250.0]


@pytest.mark.parametrize("figure", [None, math.nan, math.inf])
def test_what_was_not_measured_is_no_number(figure: float | None) -> None:
    figures = {"output_tokens_per_s": 250.0} | ({} if figure is None else {"e2e_p95_s": figure})
    with pytest.raises(MissingMetricError) as caught:
        objective_values(spec_with(), figures)
    assert caught.value.metric == "e2e_p95_s"
    assert "output_tokens_per_s" in str(caught.value)


def test_slo_without_its_metric_is_not_met_by_silence() -> None:
    with pytest.raises(MissingMetricError):
        slo_constraints(spec_with(slos=[{"metric": "itl_p99_s", "max": 1.0}]), FIGURES)


@pytest.mark.parametrize(
    ("slo", "value", "violation"),
    [
        ({"max": 2.0}, 3.0, 0.5),
        ({"max": 2.0}, 2.0, 0.0),
        ({"max": 2.0}, 1.0, -0.5),
        ({"min": 100.0}, 75.0, 0.25),
        ({"min": 100.0}, 150.0, -0.5),
        ({"max": 0.0}, 0.02, 0.02),
        ({"min": 0.0}, 1.0, -1.0),
    ],
)
def test_violation_is_the_share_of_the_bound(slo: dict[str, float], value: float, violation: float) -> None:
    assert slo_violation(Slo(metric="error_rate", **slo), value) == violation


@given(bound=BOUNDS, value=BOUNDS)
def test_violation_is_above_zero_exactly_beyond_the_bound(bound: float, value: float) -> None:
    assert (slo_violation(Slo(metric="startup_s", max=bound), value) > 0) == (value > bound)
    assert (slo_violation(Slo(metric="startup_s", min=bound), value) > 0) == (value < bound)


def test_two_bounds_on_one_metric_are_one_constraint_of_the_worse() -> None:
    spec = spec_with(slos=[{"metric": "ttft_p95_s", "max": 2.0}, {"metric": "ttft_p95_s", "min": 4.0}])
    assert slo_constraints(spec, FIGURES) == {"slo:ttft_p95_s": 0.75}


def test_bound_in_words() -> None:
    assert slo_bound(Slo(metric="ttft_p95_s", max=0.25)) == "<= 0.25"
    assert slo_bound(Slo(metric="requests_per_s", min=10)) == ">= 10"

"""Statistics against hand-computed values and against what an interval promises."""

import math

import numpy as np
import pytest

from tuner.statistics import (
    block_bootstrap_mean,
    block_length,
    min_samples,
    mser5,
    paired_ratio,
    percentile,
    percentile_interval,
)


@pytest.mark.parametrize(("q", "n"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_sample_sizes_are_those_of_wilks(q: float, n: int) -> None:
    assert min_samples(q) == n


def test_percentile_is_missing_when_the_samples_cannot_support_it() -> None:
    assert percentile([1.0] * 58, 0.95) is None
    assert percentile([1.0] * 59, 0.95) == 1.0


def test_percentile_interpolates_between_ranks() -> None:
    assert percentile(range(1, 102), 0.95) == 96.0
    assert percentile([1.0, 2.0, 3.0, 4.0, 10.0, 10.0], 0.5) == 3.5


def test_interval_of_the_median_of_ten_uses_the_second_and_ninth_value() -> None:
    # Tables of the sign test: ranks 2 and 9 of ten cover the median with 97.9 %.
    interval = percentile_interval(list(range(1, 11)), 0.5)
    assert interval is not None
    assert (interval.low, interval.point, interval.high) == (2.0, 5.5, 9.0)


def test_interval_of_a_percentile_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    truth = -math.log(0.05)
    intervals = [percentile_interval(rng.exponential(size=400), 0.95) for _ in range(400)]
    covered = sum(1 for i in intervals if i is not None and i.low <= truth <= i.high)
    assert covered >= 0.93 * 400


def test_no_interval_where_the_upper_rank_would_lie_beyond_the_sample() -> None:
    assert percentile([float(i) for i in range(60)], 0.95) is not None
    assert percentile_interval([float(i) for i in range(60)], 0.95) is None


def test_warm_up_is_cut_where_it_ends() -> None:
    series = [0.0] * 20 + [10.0, 10.2, 9.9, 10.1, 9.8] * 20
    assert mser5(series) == 20


def test_a_series_that_still_climbs_has_no_steady_state() -> None:
    assert mser5([float(i) ** 2 for i in range(60)]) is None


def test_a_short_series_has_no_steady_state() -> None:
    assert mser5([1.0] * 19) is None


def test_blocks_grow_with_the_cube_root() -> None:
    assert [block_length(n) for n in (1, 8, 27, 28, 1000)] == [1, 2, 3, 4, 10]


def test_block_bootstrap_is_wider_for_a_series_that_drifts() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=2000)
    drifting = np.convolve(noise, np.ones(20) / math.sqrt(20), mode="valid")
    shuffled = rng.permutation(drifting)
    widths = [
        interval.high - interval.low
        for series in (drifting, shuffled)
        if (interval := block_bootstrap_mean(series + 100, np.random.default_rng(0))) is not None
    ]
    assert widths[0] > 2 * widths[1]


def test_block_bootstrap_repeats_itself_for_the_same_generator() -> None:
    series = np.random.default_rng(5).normal(size=50)
    first, second = (block_bootstrap_mean(series, np.random.default_rng(7)) for _ in range(2))
    assert first == second


def test_block_bootstrap_needs_eight_samples() -> None:
    assert block_bootstrap_mean([1.0] * 7, np.random.default_rng(0)) is None


def test_paired_ratio_of_two_pairs_by_hand() -> None:
    # Log ratios ln 1.1 and ln 1.3; t(0.975, 1) = 12.7062.
    interval = paired_ratio([110.0, 260.0], [100.0, 200.0])
    assert interval is not None
    assert interval.point == pytest.approx(math.sqrt(1.1 * 1.3))
    assert interval.high == pytest.approx(math.sqrt(1.43) * math.exp(12.7062 * 0.083527), rel=1e-3)


def test_paired_ratio_cancels_what_both_of_a_pair_share() -> None:
    interval = paired_ratio([2.2, 4.4, 8.8], [2.0, 4.0, 8.0])
    assert interval is not None
    assert interval.relative_half_width < 1e-6


def test_one_pair_says_nothing() -> None:
    assert paired_ratio([2.0], [1.0]) is None


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([0.0, 1.0], [1.0, 1.0])])
def test_pairs_must_match_and_be_positive(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"against|above zero"):
        paired_ratio(a, b)

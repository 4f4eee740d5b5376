"""Statistics of measurements: how sure a figure is.

Notation: ``n`` is the number of samples, ``q`` a quantile in (0, 1), ``confidence`` in (0, 1). All functions
are deterministic; those that resample take a generator. None of them invents a figure: what the samples
cannot support is ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = [
    "Interval",
    "block_bootstrap_mean",
    "block_length",
    "min_samples",
    "mser5",
    "paired_ratio",
    "percentile",
    "percentile_interval",
]

Samples = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its two-sided confidence interval, in the unit of the samples.

    Attributes:
        point: the estimate.
        low: lower end, at most ``point``.
        high: upper end, at least ``point``.
        confidence: share of repetitions in which such an interval covers the truth.
        n: samples behind it.
    """

    point: float
    low: float
    high: float
    confidence: float
    n: int

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width over the estimate; infinite for an estimate of zero."""
        half = (self.high - self.low) / 2
        return half / abs(self.point) if self.point else math.inf


def min_samples(q: float, confidence: float = 0.95) -> int:
    """Fewest samples for which the largest one bounds the ``q`` quantile from above with ``confidence``.

    The smallest ``n`` with ``1 - q**n >= confidence`` (S. S. Wilks, "Determination of sample sizes for
    setting tolerance limits", 1941): 59 for p95 and 299 for p99 at 95 %.
    """
    return math.ceil(math.log(1 - confidence) / math.log(q))


def percentile(samples: Samples, q: float, *, confidence: float = 0.95) -> float | None:
    """The ``q`` quantile (linear interpolation), or ``None`` below :func:`min_samples`.

    With fewer samples the quantile lies above the largest one too often for any figure to be honest.
    """
    if len(samples) < min_samples(q, confidence):
        return None
    return float(np.quantile(np.asarray(samples, dtype=float), q))


def percentile_interval(samples: Samples, q: float, *, confidence: float = 0.95) -> Interval | None:
    """Distribution-free interval of the ``q`` quantile from order statistics, or ``None`` if none exists.

    The ranks are the binomial quantiles (W. J. Conover, "Practical Nonparametric Statistics", 3rd ed.,
    section 3.2), so the coverage is at least ``confidence`` for independent samples of any distribution.
    """
    n = len(samples)
    point = percentile(samples, q, confidence=confidence)
    if point is None:
        return None
    tail = (1 - confidence) / 2
    low_rank = int(stats.binom.ppf(tail, n, q))
    high_rank = int(stats.binom.ppf(1 - tail, n, q)) + 1
    if low_rank < 1 or high_rank > n:
        return None
    ordered = np.sort(np.asarray(samples, dtype=float))
    low, high = float(ordered[low_rank - 1]), float(ordered[high_rank - 1])
    return Interval(point, min(low, point), max(high, point), confidence, n)


def mser5(series: Samples) -> int | None:
    """Samples to cut from the start of a series so that the rest is in steady state, or ``None``.

    MSER-5 (K. P. White, "An effective truncation heuristic for bias reduction in simulation output", 1997):
    batches of five, the cut that minimises the standard error of what remains. A cut in the second half
    of the series means that steady state was not reached, as does a series of fewer than four batches.
    """
    batches = len(series) // 5
    if batches < 4:
        return None
    means = np.asarray(series, dtype=float)[: batches * 5].reshape(batches, 5).mean(axis=1)
    scores = [float(np.var(means[cut:])) / (batches - cut) for cut in range(batches - 1)]
    cut = int(np.argmin(scores))
    return cut * 5 if cut <= batches // 2 else None


def block_length(n: int) -> int:
    """Length of a block for ``n`` autocorrelated samples: the cube root of ``n``, rounded up, at least 1.

    The optimal order for the variance of a mean (P. Hall, J. L. Horowitz, B.-Y. Jing, 1995).
    """
    return max(1, math.ceil(math.cbrt(n) - 1e-9))


def block_bootstrap_mean(
    series: Samples,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> Interval | None:
    """Interval of an autocorrelated series' mean by the moving-block bootstrap; ``None`` below 8 samples.

    Blocks keep the short-range dependence (H. R. Künsch, 1989); resampling single values would make the
    interval too narrow.
    """
    values = np.asarray(series, dtype=float)
    n = len(values)
    if n < 8:
        return None
    length = block_length(n)
    starts = rng.integers(0, n - length + 1, size=(resamples, math.ceil(n / length)))
    picks = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :n]
    means = values[picks].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = (float(edge) for edge in np.quantile(means, [tail, 1 - tail]))
    point = float(values.mean())
    return Interval(point, min(low, point), max(high, point), confidence, n)


def paired_ratio(candidate: Samples, reference: Samples, *, confidence: float = 0.95) -> Interval | None:
    """Ratio candidate / reference from interleaved pairs, with Student's interval on the log ratios.

    Args:
        candidate: figures above zero, one for each pair.
        reference: figures above zero of the same pairs, in the same order.

    Returns:
        The geometric mean of the ratios with its interval, or ``None`` for fewer than two pairs.

    Raises:
        ValueError: the lengths differ, or a figure is not above zero.
    """
    if len(candidate) != len(reference):
        raise ValueError(f"{len(candidate)} candidate figures against {len(reference)} reference figures")
    a, b = np.asarray(candidate, dtype=float), np.asarray(reference, dtype=float)
    if (a <= 0).any() or (b <= 0).any():
        raise ValueError("a ratio needs figures above zero")
    n = len(a)
    if n < 2:
        return None
    logs = np.log(a) - np.log(b)
    centre, error = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(n)
    reach = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Interval(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach), confidence, n)

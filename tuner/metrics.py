"""Every metric that a measurement can hold, with its unit, its natural direction and its meaning.

Definitions (times of one request; see docs/measurement.md):

    due    when the arrival process said that the request should be sent
    sent   when its first byte was handed to the socket
    first  when the first output token arrived;  last: when the last one arrived
    n_out  exact number of output tokens, from the server's ``usage``

    TTFT = first - sent          ITL  = gap between consecutive streamed chunks that carry tokens
    E2E  = last - due            TPOT = (last - first) / (n_out - 1), defined for n_out >= 2
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

__all__ = ["LATENCIES", "METRICS", "STATISTICS", "Direction", "Metric", "latency_metric"]


class Direction(StrEnum):
    """Which way is better; the words are Optuna's."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a measurement.

    Attributes:
        name: key in ``Measurement.metrics``; ends in its unit.
        unit: unit as shown to people.
        better: natural direction.
        meaning: one sentence.
    """

    name: str
    unit: str
    better: Direction
    meaning: str


LATENCIES = MappingProxyType(
    {
        "ttft": "time from sending a request to its first token",
        "tpot": "time per output token after the first, per request",
        "itl": "gap between consecutive chunks of tokens",
        "e2e": "time from a request's due time to its last token",
    }
)
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def latency_metric(latency: str, statistic: str) -> str:
    """Name of the metric for one statistic of one latency, e.g. ``ttft_p95_s``."""
    return f"{latency}_{statistic}_s"


def _statistic_in_words(statistic: str) -> str:
    return "mean" if statistic == "mean" else f"{statistic.removeprefix('p')}th percentile"


_LATENCY_METRICS = tuple(
    Metric(
        latency_metric(latency, statistic),
        "s",
        Direction.MINIMIZE,
        f"{_statistic_in_words(statistic)} of the {meaning}",
    )
    for latency, meaning in LATENCIES.items()
    for statistic in STATISTICS
)

_OTHERS = (
    Metric(
        "output_tokens_per_s",
        "tokens/s",
        Direction.MAXIMIZE,
        "output tokens delivered inside the measured window, per second",
    ),
    Metric(
        "input_tokens_per_s",
        "tokens/s",
        Direction.MAXIMIZE,
        "prompt tokens of the requests that got their first token inside the window, per second",
    ),
    Metric("total_tokens_per_s", "tokens/s", Direction.MAXIMIZE, "input plus output tokens per second"),
    Metric(
        "requests_per_s",
        "requests/s",
        Direction.MAXIMIZE,
        "requests completed without error inside the measured window, per second",
    ),
    Metric(
        "error_rate", "ratio", Direction.MINIMIZE, "share of the window's requests that ended in an error"
    ),
    Metric(
        "preemptions",
        "count",
        Direction.MINIMIZE,
        "requests preempted by the scheduler during the window, from the server's counters",
    ),
    Metric(
        "kv_cache_usage_peak",
        "ratio",
        Direction.MINIMIZE,
        "highest share of the KV cache in use seen during the window, from the server's gauge",
    ),
    Metric("startup_s", "s", Direction.MINIMIZE, "time from starting the engine to its first healthy answer"),
)

METRICS = MappingProxyType({metric.name: metric for metric in (*_LATENCY_METRICS, *_OTHERS)})

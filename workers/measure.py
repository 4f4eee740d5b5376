"""From the records of one run to the figures of a measurement (docs/measurement.md). Pure.

Tokens inside the window. A request's exact number of output tokens comes from ``usage`` when it ends; how
many of them one chunk carried is not told. They are spread evenly over its chunks: N tokens in k chunks count
N/k each. So every request's shares add up to N, and only a request that straddles an edge of the window can
be off, by what its chunks deviate from their mean. A request without ``usage`` (it failed) counts nothing.

Percentiles are nearest-rank: the smallest value that at least p % of the samples do not exceed; every figure
is a latency that some request really had. A request that timed out has a latency above all others, of unknown
size: a percentile that falls on it is absent, and so is the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tuner.metrics import LATENCIES, STATISTICS, latency_metric
from workers.load.records import TIMEOUT, Record, Window

__all__ = ["Figures", "Samples", "measure", "statistic"]


@dataclass(slots=True)
class Samples:
    """The values of one latency, and how many requests have one that is longer than could be awaited."""

    values: list[float] = field(default_factory=list)
    censored: int = 0

    def __len__(self) -> int:
        return len(self.values) + self.censored


@dataclass(frozen=True, slots=True)
class Figures:
    """What the records of one window say.

    Attributes:
        metrics: by the names of :mod:`tuner.metrics`; absent where nothing was observed.
        errors: failed requests of the window by kind.
        requests: requests completed without error inside the window.
        due: requests due inside the window.
        samples: number of samples of each latency, by its name.
    """

    metrics: dict[str, float]
    errors: dict[str, int]
    requests: int
    due: int
    samples: dict[str, int]


def statistic(samples: Samples, name: str) -> float | None:
    """``mean`` or a percentile such as ``p95``; ``None`` where it cannot be known."""
    if name == "mean":
        known = samples.values and not samples.censored
        return math.fsum(samples.values) / len(samples.values) if known else None
    rank = -(-int(name.removeprefix("p")) * len(samples) // 100)  # rounded up, in whole numbers
    return sorted(samples.values)[rank - 1] if 0 < rank <= len(samples.values) else None


def _tokens_inside(record: Record, window: Window) -> float:
    if not record.output_tokens or not record.chunks:
        return 0.0
    inside = sum(moment in window for moment in record.chunks)
    return record.output_tokens * inside / len(record.chunks)


def _ttft(record: Record) -> float | None:
    return record.chunks[0] - record.sent if record.chunks and record.sent is not None else None


def _tpot(record: Record) -> float | None:
    tokens = record.output_tokens or 0
    if not record.completed or tokens < 2:
        return None
    return (record.chunks[-1] - record.chunks[0]) / (tokens - 1)


def _e2e(record: Record) -> float | None:
    return record.chunks[-1] - record.due if record.completed else None


def _collect(records: Sequence[Record], latency: Callable[[Record], float | None]) -> Samples:
    samples = Samples()
    for record in records:
        value = latency(record)
        if value is not None:
            samples.values.append(value)
        elif record.error == TIMEOUT:
            samples.censored += 1
    return samples


def _gaps(records: Iterable[Record]) -> Samples:
    return Samples([later - earlier for record in records for earlier, later in pairwise(record.chunks)])


def _latencies(due: Sequence[Record]) -> dict[str, Samples]:
    """Samples by latency, from the window's requests that were answered, or that were too slow to be."""
    observed = [record for record in due if record.error in (None, TIMEOUT)]
    found = {
        "ttft": _collect(observed, _ttft),
        "tpot": _collect(observed, _tpot),
        "itl": _gaps(observed),
        "e2e": _collect(observed, _e2e),
    }
    return {name: found[name] for name in LATENCIES}


def _rates(records: Sequence[Record], window: Window) -> dict[str, float]:
    output = math.fsum(_tokens_inside(record, window) for record in records) / window.length_s
    started = [record for record in records if record.chunks and record.chunks[0] in window]
    prompt = sum(record.prompt_tokens for record in started) / window.length_s
    return {
        "output_tokens_per_s": output,
        "input_tokens_per_s": prompt,
        "total_tokens_per_s": output + prompt,
    }


def measure(records: Sequence[Record], window: Window) -> Figures:
    """The figures of one window.

    Args:
        records: every request of the run, warm-up and drain included.
        window: the measured window.
    """
    due = [record for record in records if record.due in window]
    errors = Counter(record.error for record in due if record.error is not None)
    completed = sum(record.completed and record.ended in window for record in records)
    metrics = _rates(records, window) | {"requests_per_s": completed / window.length_s}
    if due:
        metrics["error_rate"] = sum(errors.values()) / len(due)
    latencies = _latencies(due)
    for latency, samples in latencies.items():
        for name in STATISTICS:
            value = statistic(samples, name)
            if value is not None:
                metrics[latency_metric(latency, name)] = value
    counts = {latency: len(samples) for latency, samples in latencies.items()}
    return Figures(metrics, dict(errors), completed, len(due), counts)

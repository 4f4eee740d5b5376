"""From what happened to a measurement, by the definitions of :mod:`tuner.metrics`.

Percentiles are nearest-rank, and a request that timed out is above all others, as the workers count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tuner.metrics import STATISTICS, latency_metric
from tuner.protocol import Workload
from tuner.simulation.engine import TIMEOUT, Exchange, Trace

__all__ = ["Observation", "observe"]

Seconds = npt.NDArray[np.float64]


class Observation:
    """Metrics of one trace. A metric that the trace does not hold is absent.

    Attributes:
        metrics: figures by the names of :data:`tuner.metrics.METRICS`, start-up excepted.
        errors: failed requests that were due in the window, by kind.
        requests: requests completed inside the window.
        due: requests due in the window.
    """

    def __init__(self, trace: Trace, workload: Workload) -> None:
        self._trace = trace
        self._opens_s = workload.warmup_s
        self._closes_s = workload.warmup_s + workload.measure_s
        self._window_s = workload.measure_s
        self._ends_s = np.asarray(trace.ends_s, dtype=np.float64)
        self._due = [exchange for exchange in trace.exchanges if self._inside(exchange.due_s)]
        completed = [e for e in trace.exchanges if e.error is None and self._inside(e.last_s)]
        self.requests = len(completed)
        self.due = len(self._due)
        self.errors = dict(Counter(exchange.error for exchange in self._due if exchange.error is not None))
        self.metrics = self._rates() | self._latencies() | self._server_figures()

    def _inside(self, moment_s: float | None) -> bool:
        return moment_s is not None and self._opens_s <= moment_s < self._closes_s

    def _rates(self) -> dict[str, float]:
        window = (self._ends_s >= self._opens_s) & (self._ends_s < self._closes_s)
        output = float(np.asarray(self._trace.emitted, dtype=np.float64)[window].sum())
        prompts = sum(e.request.input_tokens for e in self._trace.exchanges if self._inside(e.first_s))
        rates = {
            "output_tokens_per_s": output / self._window_s,
            "input_tokens_per_s": prompts / self._window_s,
            "total_tokens_per_s": (output + prompts) / self._window_s,
            "requests_per_s": self.requests / self._window_s,
        }
        if self._due:
            rates["error_rate"] = sum(self.errors.values()) / len(self._due)
        return rates

    def _latencies(self) -> dict[str, float]:
        answered = [(e, e.first_s, e.last_s) for e in self._due if e.error is None and e.last_s is not None]
        late = self.errors.get(TIMEOUT, 0)
        ttft = [first - e.sent_s for e, first, _ in answered if first is not None]
        e2e = [last - e.due_s for e, _, last in answered]
        tpot = [
            (last - first) / (e.request.output_tokens - 1)
            for e, first, last in answered
            if first is not None and e.request.output_tokens > 1
        ]
        plain = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
        metrics = self._gaps([e for e, *_ in answered])
        for latency, values in plain.items():
            metrics |= statistics(latency, np.array(values), np.ones(len(values)), late)
        return metrics

    def _gaps(self, answered: Sequence[Exchange]) -> dict[str, float]:
        """Statistics of the gaps between tokens: each batch's gap counts once per request that saw it."""
        if len(self._ends_s) < 2:
            return {}
        watching = np.zeros(len(self._ends_s) + 1)
        resumed: list[float] = []
        for exchange in answered:
            spans = exchange.request.spans
            for first, last in spans:
                watching[first + 1] += 1
                watching[last + 1] -= 1
            resumed += [self._ends_s[after[0]] - self._ends_s[before[1]] for before, after in pairwise(spans)]
        times = np.cumsum(watching)[1 : len(self._ends_s)]
        gaps = np.concatenate([np.diff(self._ends_s), np.array(resumed, dtype=np.float64)])
        weights = np.concatenate([times, np.ones(len(resumed))])
        return statistics("itl", gaps[weights > 0], weights[weights > 0])

    def _server_figures(self) -> dict[str, float]:
        window = (self._ends_s >= self._opens_s) & (self._ends_s < self._closes_s)
        figures = {"preemptions": float(np.asarray(self._trace.preempted, dtype=np.float64)[window].sum())}
        used = np.asarray(self._trace.blocks_used, dtype=np.float64)[window]
        if used.size:
            figures["kv_cache_usage_peak"] = float(used.max()) / self._trace.blocks_total
        return figures


def observe(trace: Trace, workload: Workload) -> Observation:
    """Measure a trace."""
    return Observation(trace, workload)


def statistics(latency: str, values: Seconds, weights: Seconds, censored: int = 0) -> dict[str, float]:
    """All statistics of one latency that can be known.

    Args:
        latency: name of the latency.
        values: what was observed.
        weights: how often, in whole numbers.
        censored: samples that are above all values.
    """
    order = np.argsort(values)
    values, ranks = values[order], np.cumsum(weights[order])
    samples = (float(ranks[-1]) if ranks.size else 0.0) + censored
    found = {name: _statistic(name, values, weights[order], ranks, samples) for name in STATISTICS}
    return {latency_metric(latency, name): value for name, value in found.items() if value is not None}


def _statistic(name: str, values: Seconds, weights: Seconds, ranks: Seconds, samples: float) -> float | None:
    if not ranks.size or not ranks[-1]:
        return None
    if name == "mean":
        return float(np.average(values, weights=weights)) if samples == ranks[-1] else None
    rank = math.ceil(round(int(name.removeprefix("p")) * samples, 6) / 100.0)
    return float(values[np.searchsorted(ranks, rank)]) if rank <= ranks[-1] else None

"""Simulated and real measurements are defined alike: the workers' code makes the same figures of a trace."""

import pytest

from tests.tuner.simulation.test_models import LLAMA_2_7B
from tuner.metrics import METRICS
from tuner.protocol import Arrivals, ClosedLoop, Length, Poisson, SyntheticPrompts, Workload
from tuner.simulation.arguments import Arguments
from tuner.simulation.calibration import calibrated
from tuner.simulation.engine import Exchange, Trace
from tuner.simulation.hardware import GPUS
from tuner.simulation.load import SeededLengths
from tuner.simulation.models import ModelShape
from tuner.simulation.observation import observe
from tuner.simulation.steptimes import Roofline
from tuner.simulation.trial import serve
from workers.load.records import Record, Window
from workers.measure import measure

MODEL = ModelShape.from_config(LLAMA_2_7B)


def served(arrivals: Arrivals, *, blocks: int = 10_000, measure_s: float = 10.0) -> tuple[Trace, Workload]:
    prompts = SyntheticPrompts(
        input_tokens=Length(mean=300, stdev=90.0), output_tokens=Length(mean=60, stdev=30.0)
    )
    workload = Workload(prompts=prompts, arrivals=arrivals, warmup_s=3.0, measure_s=measure_s)
    arguments = Arguments.resolve({}, gpu=GPUS["H200"], model=MODEL)
    step_s = Roofline(GPUS["H200"], MODEL, arguments.execution(), calibrated().efficiencies).step_s
    lengths = SeededLengths(prompts, 0)
    return serve(arguments, blocks, workload, lengths, step_s, calibrated()), workload


def as_a_worker_records(exchange: Exchange, ends_s: list[float]) -> Record:
    chunks = [ends_s[batch] for first, last in exchange.request.spans for batch in range(first, last + 1)]
    return Record(
        due=exchange.due_s,
        sent=exchange.sent_s,
        chunks=chunks,
        ended=exchange.last_s,
        prompt_tokens=exchange.request.input_tokens,
        output_tokens=exchange.request.output_tokens if exchange.last_s is not None else None,
        error=exchange.error,
    )


class TestDefinitions:
    @pytest.mark.parametrize(
        ("arrivals", "blocks"),
        [
            (ClosedLoop(concurrency=64), 10_000),
            (ClosedLoop(concurrency=64), 700),
            (Poisson(rate_per_s=20.0), 10_000),
        ],
        ids=["closed", "closed with preemption", "poisson"],
    )
    def test_the_workers_would_compute_the_same(self, arrivals: Arrivals, blocks: int) -> None:
        trace, workload = served(arrivals, blocks=blocks)
        window = Window(workload.warmup_s, workload.warmup_s + workload.measure_s)
        figures = measure(
            [as_a_worker_records(exchange, trace.ends_s) for exchange in trace.exchanges], window
        )
        seen = observe(trace, workload)
        own = {name: value for name, value in seen.metrics.items() if name in figures.metrics}
        assert own == pytest.approx(figures.metrics, rel=1e-9)
        assert (seen.requests, seen.due, seen.errors) == (figures.requests, figures.due, figures.errors)

    def test_only_known_metrics_are_reported(self) -> None:
        seen = observe(*served(ClosedLoop(concurrency=8)))
        assert set(METRICS) - set(seen.metrics) == {"startup_s"}
        assert set(seen.metrics) <= set(METRICS)

    def test_preemptions_are_counted_and_fill_the_cache(self) -> None:
        metrics = observe(*served(ClosedLoop(concurrency=64), blocks=700)).metrics
        assert metrics["preemptions"] > 0
        assert 0.95 < metrics["kv_cache_usage_peak"] <= 1.0


class TestLateRequests:
    def test_a_percentile_that_falls_on_one_is_absent(self) -> None:
        trace, workload = served(Poisson(rate_per_s=1000.0), measure_s=10.0)
        metrics = observe(trace, workload).metrics
        assert metrics["error_rate"] > 0.05
        assert "e2e_p99_s" not in metrics
        assert "e2e_mean_s" not in metrics

    def test_a_window_without_requests_has_no_latency(self) -> None:
        metrics = observe(*served(Poisson(rate_per_s=1e-6))).metrics
        assert metrics["output_tokens_per_s"] == 0.0
        assert not any(name.startswith(("ttft", "tpot", "e2e", "itl")) for name in metrics)
        assert "error_rate" not in metrics

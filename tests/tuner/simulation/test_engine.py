"""Virtual time, in cases that can be followed by hand: every step takes a second, the network nothing."""

from typing import Any

import pytest

from tuner.protocol import Arrivals, ClosedLoop, Length, Poisson, SyntheticPrompts, Workload
from tuner.simulation.blocks import BlockPool
from tuner.simulation.engine import TIMEOUT, Client, Engine, Trace
from tuner.simulation.load import SeededLengths
from tuner.simulation.scheduler import Limits, Scheduler

NOTHING_BETWEEN = Client(ingest_s=0.0, latency_s=0.0, token_s=0.0)


def workload(arrivals: Arrivals, *, inputs: int = 8, outputs: int = 3, measure_s: float = 10.0) -> Workload:
    prompts = SyntheticPrompts(input_tokens=Length(mean=inputs), output_tokens=Length(mean=outputs))
    return Workload(prompts=prompts, arrivals=arrivals, warmup_s=0.0, measure_s=measure_s)


def run(what: Workload, *, step_s: float = 1.0, client: Client = NOTHING_BETWEEN, **limits: Any) -> Trace:
    values = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "asynchronous": False} | limits
    scheduler = Scheduler(Limits(**values), BlockPool(1000, caching=True))
    return Engine(scheduler, lambda _: step_s, client).run(what, SeededLengths(what.prompts, what.seed))


class TestOneUser:
    def test_a_request_takes_as_many_steps_as_tokens(self) -> None:
        first = run(workload(ClosedLoop(concurrency=1))).exchanges[0]
        assert (first.due_s, first.first_s, first.last_s) == (0.0, 1.0, 3.0)

    def test_the_next_is_sent_when_the_last_one_ended(self) -> None:
        exchanges = run(workload(ClosedLoop(concurrency=1))).exchanges
        assert [exchange.due_s for exchange in exchanges[:4]] == [0.0, 3.0, 6.0, 9.0]

    def test_load_goes_on_until_the_windows_requests_are_answered(self) -> None:
        exchanges = run(workload(ClosedLoop(concurrency=2), measure_s=4.0)).exchanges
        assert all(exchange.last_s is not None for exchange in exchanges if exchange.due_s < 4.0)
        assert exchanges[-1].due_s >= 4.0

    def test_the_network_and_the_api_server_take_their_time(self) -> None:
        client = Client(ingest_s=0.25, latency_s=0.5, token_s=0.0)
        first, second = run(workload(ClosedLoop(concurrency=2)), client=client).exchanges[:2]
        # Half the latency there, one request taken in after the other, a step, half the latency back.
        assert first.first_s == pytest.approx(0.25 + 0.25 + 1.0 + 0.25)
        assert second.first_s == pytest.approx(0.25 + 0.5 + 0.75 + 1.0 + 0.25)


class TestAsynchronousScheduling:
    def test_who_comes_during_a_batch_is_in_the_batch_after_the_next(self) -> None:
        arrivals = Poisson(rate_per_s=0.4)
        plain = run(workload(arrivals, outputs=20))
        ahead = run(workload(arrivals, outputs=20), asynchronous=True)
        second = [trace.exchanges[1] for trace in (plain, ahead)]
        assert second[0].due_s == second[1].due_s
        assert second[1].first_s == pytest.approx((second[0].first_s or 0.0) + 1.0)


class TestOverload:
    def test_what_is_not_answered_in_time_is_timed_out(self) -> None:
        trace = run(workload(Poisson(rate_per_s=50.0), outputs=10, measure_s=10.0))
        late = [exchange for exchange in trace.exchanges if exchange.error == TIMEOUT]
        assert late
        assert all(exchange.last_s is None and exchange.due_s < 10.0 for exchange in late)
        assert trace.ends_s[-1] == pytest.approx(10.0 + 60.0, abs=1.0)

    def test_an_idle_engine_waits_for_the_next_arrival(self) -> None:
        trace = run(workload(Poisson(rate_per_s=0.2), outputs=1, measure_s=60.0))
        assert all((e.first_s or 0.0) - e.due_s <= 2.0 for e in trace.exchanges if e.due_s < 60.0)

"""The simulated load is the workers' load."""

import asyncio
from itertools import islice

import numpy as np

from tuner.protocol import ClosedLoop, Length, Poisson, SyntheticPrompts, Workload
from tuner.simulation.load import SeededLengths, due_times, longest_request
from workers.load import prompts as workers_prompts
from workers.load.arrivals import offer
from workers.load.records import Record

PROMPTS = SyntheticPrompts(
    input_tokens=Length(mean=300, stdev=200.0),
    output_tokens=Length(mean=40, stdev=30.0),
    shared_prefix_tokens=20,
)


class TestLengths:
    def test_they_are_those_that_a_worker_draws(self) -> None:
        vocabulary = workers_prompts.Vocabulary(range(100))
        real = workers_prompts.PromptSource(PROMPTS, vocabulary, seed=5, content_seed=0)
        simulated = SeededLengths(PROMPTS, 5)
        for _ in range(500):
            theirs, ours = real.next(), simulated.draw()
            assert (len(theirs.token_ids), theirs.output_tokens) == (ours.input_tokens, ours.output_tokens)
            assert ours.shared_tokens == min(20, ours.input_tokens)

    def test_the_longest_request_is_the_one_that_a_worker_computes(self) -> None:
        assert longest_request(PROMPTS) == workers_prompts.longest_request(PROMPTS)


class TestArrivals:
    async def test_an_open_loop_sends_when_a_worker_would(self) -> None:
        workload = Workload(prompts=PROMPTS, arrivals=Poisson(rate_per_s=1e5), seed=3)
        due: list[float] = []
        enough = asyncio.Event()

        async def send(moment: float) -> Record:
            due.append(moment)
            if len(due) == 50:
                enough.set()
            return Record(moment)

        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(offer(workload.arrivals, send, clock=lambda: 0.0, seed=3))
            await asyncio.wait_for(enough.wait(), 10.0)
            load.cancel()
        np.testing.assert_allclose(due[:50], list(islice(due_times(workload), 50)))

    def test_a_closed_loop_begins_with_all_users(self) -> None:
        workload = Workload(prompts=PROMPTS, arrivals=ClosedLoop(concurrency=3))
        assert list(due_times(workload)) == [0.0, 0.0, 0.0]

"""The scheduler's rules: invariants over drawn scenarios, and small cases computed by hand."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings

from tests.tuner.simulation.replay import Replay, scenario, scenarios
from tuner.simulation.blocks import BlockPool
from tuner.simulation.scheduler import Limits, Scheduler

EXAMPLES = settings(max_examples=150, deadline=None)


class TestInvariants:
    @given(scenarios())
    @EXAMPLES
    def test_budget_and_places_are_never_exceeded(self, data: dict[str, Any]) -> None:
        replay = Replay.of(data)
        for step in replay.steps:
            assert (
                0 < sum(step.scheduled.values()) == step.batch.tokens <= replay.limits.max_num_batched_tokens
            )
            assert len(step.running) <= replay.limits.max_num_seqs

    @given(scenarios())
    @EXAMPLES
    def test_every_request_gets_exactly_its_tokens(self, data: dict[str, Any]) -> None:
        replay = Replay.of(data)
        assert sorted(request.number for request in replay.finished) == list(range(len(data["requests"])))
        for request in replay.finished:
            assert sum(last - first + 1 for first, last in request.spans) == request.output_tokens
        assert sum(step.batch.emitted for step in replay.steps) == sum(r[2] for r in data["requests"])

    @given(scenarios())
    @EXAMPLES
    def test_blocks_are_conserved(self, data: dict[str, Any]) -> None:
        replay = Replay.of(data)
        assert all(0 <= step.free <= data["blocks"] for step in replay.steps)
        assert replay.pool.free == data["blocks"]
        replay.pool.take(data["blocks"])  # the queue really holds as many as it says

    @given(scenarios())
    @EXAMPLES
    def test_requests_are_first_admitted_in_the_order_of_arrival(self, data: dict[str, Any]) -> None:
        first_seen: list[int] = []
        for step in Replay.of(data).steps:
            first_seen += [number for number in step.running if number not in first_seen]
        assert first_seen == sorted(first_seen)

    @given(scenarios())
    @EXAMPLES
    def test_preempted_requests_recompute_unless_the_prefix_cache_still_holds_them(
        self, data: dict[str, Any]
    ) -> None:
        replay = Replay.of(data | {"caching": False})
        computed: defaultdict[str, int] = defaultdict(int)
        for step in replay.steps:
            for number, tokens in step.scheduled.items():
                computed[number] += tokens
        for request in replay.finished:
            least = request.input_tokens + request.output_tokens - 1
            assert computed[str(request.number)] >= least
            if not request.preemptions:
                assert computed[str(request.number)] == least
            elif len(request.spans) > 1:
                assert computed[str(request.number)] > least

    @given(scenarios())
    @EXAMPLES
    def test_nothing_is_admitted_in_a_batch_that_preempts(self, data: dict[str, Any]) -> None:
        before: set[int] = set()
        for step in Replay.of(data).steps:
            if step.batch.preempted:
                assert set(step.running) <= before
            before = set(step.running)

    @given(scenarios())
    @EXAMPLES
    def test_a_cache_that_holds_all_never_preempts(self, data: dict[str, Any]) -> None:
        all_blocks = sum(r[1] + r[2] for r in data["requests"]) // data["limits"]["block_size"]
        replay = Replay.of(data | {"blocks": all_blocks + 2 * len(data["requests"])})
        assert replay.scheduler.preemptions == 0

    @given(scenarios())
    @EXAMPLES
    def test_decode_context_is_what_the_requests_hold(self, data: dict[str, Any]) -> None:
        """The running sum agrees with the sum over the requests, counted from what was scheduled."""
        replay = Replay.of(data | {"caching": False, "blocks": 10_000})
        held: defaultdict[str, int] = defaultdict(int)
        for step in replay.steps:
            chunks = {str(prefill.request.number) for prefill in step.batch.prefills}
            for number, tokens in step.scheduled.items():
                held[number] += tokens
            decoding = set(step.scheduled) - chunks
            assert step.batch.decodes == len(decoding)
            assert step.batch.decode_context == sum(held[number] for number in decoding)


class TestSmallCases:
    def test_one_request_takes_a_prefill_and_one_step_a_token(self) -> None:
        steps = Replay.of(scenario((0, 5, 3))).steps
        assert [step.scheduled for step in steps] == [{"0": 5}, {"0": 1}, {"0": 1}]
        assert [step.batch.decode_context for step in steps] == [0, 6, 7]

    def test_long_prompt_is_computed_in_chunks_of_the_budget(self) -> None:
        steps = Replay.of(scenario((0, 150, 1))).steps
        assert [step.scheduled["0"] for step in steps] == [64, 64, 22]
        assert [step.batch.emitted for step in steps] == [0, 0, 1]
        assert [step.batch.prefills[0].context for step in steps] == [0, 64, 128]

    def test_decodes_come_before_the_chunk_of_the_next_prompt(self) -> None:
        steps = Replay.of(scenario((0, 8, 4), (1, 100, 1))).steps
        assert [step.scheduled for step in steps[:3]] == [{"0": 8}, {"0": 1, "1": 63}, {"0": 1, "1": 37}]

    def test_without_chunked_prefill_a_prompt_waits_for_a_budget_that_holds_it(self) -> None:
        steps = Replay.of(scenario((0, 40, 2), (0, 40, 1), chunked_prefill=False)).steps
        assert [step.scheduled for step in steps] == [{"0": 40}, {"0": 1, "1": 40}]

    def test_places_bound_what_runs(self) -> None:
        steps = Replay.of(scenario((0, 4, 2), (0, 4, 2), max_num_seqs=1)).steps
        assert [step.scheduled for step in steps] == [{"0": 4}, {"0": 1}, {"1": 4}, {"1": 1}]

    def test_asynchronous_scheduling_sees_a_free_place_one_batch_later(self) -> None:
        data = scenario((0, 4, 2), (0, 4, 1), (0, 4, 1), max_num_seqs=2, asynchronous=True)
        steps = Replay.of(data).steps
        # Request 1 ends with batch 0, but batch 1 is composed before that is known.
        assert [step.scheduled for step in steps] == [{"0": 4, "1": 4}, {"0": 1}, {"2": 4}]

    def test_the_last_admitted_is_preempted_and_recomputes_prompt_and_output(self) -> None:
        # 4 blocks of 4 tokens; both prompts fill 2 each, so the 9th token of request 0 needs another.
        replay = Replay.of(scenario((0, 7, 4), (0, 7, 4), blocks=4))
        assert [step.scheduled for step in replay.steps] == [
            {"0": 7, "1": 7},
            {"0": 1, "1": 1},
            {"0": 1},
            {"0": 1},
            {"1": 9},
            {"1": 1},
        ]
        assert [step.batch.preempted for step in replay.steps] == [0, 0, 1, 0, 0, 0]
        assert replay.finished[1].spans == [(0, 1), (4, 5)]

    def test_the_prefix_cache_spares_what_is_left_of_a_preempted_request(self) -> None:
        replay = Replay.of(scenario((0, 7, 4), (0, 7, 4), blocks=4, caching=True))
        # Two blocks were freed and one of them was taken: the first 4 of 9 tokens are hit.
        assert replay.steps[4].scheduled == {"1": 5}

    def test_a_shared_prefix_is_computed_once(self) -> None:
        data = scenario((0, 10, 1), (0, 10, 1), caching=True)
        data["requests"] = [(0, 10, 1, 9), (0, 10, 1, 9)]
        steps = Replay.of(data).steps
        assert steps[0].scheduled == {"0": 10, "1": 2}  # two full blocks of 4 are shared
        assert steps[0].free == 1000 - 3 - 1

    def test_admission_needs_room_for_the_whole_prompt(self) -> None:
        requests = ((0, 16, 3), (0, 16, 1))
        reserved = Replay.of(scenario(*requests, blocks=8, max_num_batched_tokens=24))
        assert reserved.steps[0].scheduled == {"0": 16, "1": 8}
        reserved = Replay.of(scenario(*requests, blocks=7, max_num_batched_tokens=24))
        assert reserved.steps[0].scheduled == {"0": 16}
        eager = Replay.of(scenario(*requests, blocks=7, max_num_batched_tokens=24, reserve_full_prompt=False))
        assert eager.steps[0].scheduled == {"0": 16, "1": 8}

    def test_the_watermark_holds_back_admission_but_for_the_first(self) -> None:
        requests = ((0, 16, 2), (0, 16, 1))
        assert Replay.of(scenario(*requests, blocks=8)).steps[0].scheduled == {"0": 16, "1": 16}
        held_back = Replay.of(scenario(*requests, blocks=8, watermark=0.2))
        assert held_back.steps[0].scheduled == {"0": 16}

    def test_less_cache_can_preempt_less_because_admission_stops_first(self) -> None:
        """Why more cache is not promised to preempt less on any trace: here the larger one admits both."""
        requests = ((0, 7, 6), (0, 7, 6))
        assert Replay.of(scenario(*requests, blocks=3)).scheduler.preemptions == 0
        assert Replay.of(scenario(*requests, blocks=4)).scheduler.preemptions == 1

    def test_nothing_to_do_is_no_batch(self) -> None:
        scheduler = Scheduler(Limits(max_num_seqs=1, max_num_batched_tokens=1), BlockPool(1, caching=True))
        assert scheduler.schedule() is None

    def test_a_budget_below_the_places_is_refused(self) -> None:
        with pytest.raises(ValueError, match="max_num_batched_tokens"):
            Limits(max_num_seqs=8, max_num_batched_tokens=4)

"""Drives the simulated scheduler turn by turn, without a clock, and draws scenarios for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tuner.simulation.blocks import BlockPool
from tuner.simulation.scheduler import Batch, Limits, Request, Scheduler

__all__ = ["Replay", "Step", "scenario", "scenarios"]


@dataclass(frozen=True)
class Step:
    """One batch, with what the aggregate does not tell: which request got how many tokens."""

    batch: Batch
    scheduled: dict[str, int]
    running: list[int]
    free: int

    def as_vllm_tells(self) -> dict[str, Any]:
        return {"scheduled": self.scheduled, "preempted": self.batch.preempted, "free": self.free}


@dataclass
class Replay:
    """Runs a scenario to its end in the rounds of vLLM's engine loop."""

    limits: Limits
    pool: BlockPool
    requests: list[tuple[int, Request]]
    steps: list[Step] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Replay:
        requests = [
            (turn, Request(number, inputs, outputs, shared))
            for number, (turn, inputs, outputs, shared) in enumerate(data["requests"])
        ]
        replay = cls(Limits(**data["limits"]), BlockPool(data["blocks"], caching=data["caching"]), requests)
        replay._run()
        return replay

    def _run(self) -> None:
        self.scheduler = Scheduler(self.limits, self.pool)
        coming, batch, turn = list(self.requests), None, 0
        while coming or batch or self.scheduler.running or self.scheduler.waiting:
            while coming and coming[0][0] <= turn:
                self.scheduler.add(coming.pop(0)[1])
            turn += 1
            assert turn < 100_000, "the scheduler is stuck"
            batch = batch or self._schedule()
            if batch is None:
                continue
            following = self._schedule() if self.limits.asynchronous else None
            self.finished += self.scheduler.finish(batch)
            batch = following

    def _schedule(self) -> Batch | None:
        batch = self.scheduler.schedule()
        if batch is not None:
            decoding = [
                r
                for r in self.scheduler.running
                if r.joined is not None and r.joined < batch.number <= r.last
            ]
            tokens = {r.number: 1 for r in decoding} | {p.request.number: p.tokens for p in batch.prefills}
            scheduled = {str(number): tokens[number] for number in sorted(tokens)}
            running = [request.number for request in self.scheduler.running]
            self.steps.append(Step(batch, scheduled, running, self.pool.free))
        return batch


def scenario(*requests: tuple[int, int, int], **limits: Any) -> dict[str, Any]:
    """Requests of (turn, input, output) under limits; ``blocks`` and ``caching`` among them."""
    values = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "asynchronous": False,
    } | limits
    blocks, caching = values.pop("blocks", 1000), values.pop("caching", False)
    return {
        "limits": values,
        "blocks": blocks,
        "caching": caching,
        "requests": [(*request, 0) for request in requests],
    }


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Small engines under pressure: few places, small budgets, a cache that holds little more than one."""
    size = draw(st.sampled_from([4, 16]))
    seqs = draw(st.integers(1, 10))
    shared = draw(st.sampled_from([0, 0, 5, 24, 40]))
    requests, turn = [], 0
    for gap, inputs, outputs in draw(
        st.lists(
            st.tuples(st.integers(0, 12), st.integers(1, 120), st.integers(1, 50)), min_size=1, max_size=16
        )
    ):
        turn += gap
        requests.append((turn, max(inputs, shared + 1), outputs, shared))
    longest = max(-(-(inputs + outputs) // size) for _, inputs, outputs, _ in requests)
    return {
        "limits": {
            "max_num_seqs": seqs,
            "max_num_batched_tokens": draw(st.integers(seqs, 128)),
            "block_size": size,
            "asynchronous": draw(st.booleans()),
        },
        "blocks": longest + draw(st.integers(0, 40)),
        "caching": draw(st.booleans()),
        "requests": requests,
    }

"""The load in virtual time: who sends a request of which lengths, and when.

Lengths and arrivals are those of the workers' load generator, draw by draw: a workload's seed offers the same
requests to a simulated engine as to a real one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tuner.protocol import ClosedLoop, Length, Poisson, SyntheticPrompts, Workload

__all__ = ["Lengths", "Prompt", "SeededLengths", "due_times", "longest_request"]

DEVIATIONS = 3.0
"""Lengths are cut at so many standard deviations from the mean, as the workers cut them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Lengths of one request in tokens; ``shared_tokens`` of the input are the same in all requests."""

    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0


class Lengths(Protocol):
    """Where the lengths of the next request come from; called once for each, in the order of sending."""

    def draw(self) -> Prompt:
        """Lengths of the next request."""


class SeededLengths:
    """The lengths that the workers draw for a workload's seed."""

    def __init__(self, prompts: SyntheticPrompts, seed: int) -> None:
        self._prompts = prompts
        self._random = random.Random(f"lengths {seed}")  # noqa: S311  # reproducible, guards nothing

    def draw(self) -> Prompt:
        """Lengths of the next request; a prompt shorter than the shared prefix is a part of it."""
        inputs = self._length(self._prompts.input_tokens)
        outputs = self._length(self._prompts.output_tokens)
        return Prompt(inputs, outputs, min(self._prompts.shared_prefix_tokens, inputs))

    def _length(self, length: Length) -> int:
        if not length.stdev:
            return length.mean
        deviation = min(DEVIATIONS, max(-DEVIATIONS, self._random.gauss(0.0, 1.0)))
        return min(_bound(length), max(1, round(length.mean + deviation * length.stdev)))


def longest_request(prompts: SyntheticPrompts) -> int:
    """Tokens of the longest request that these prompts can make, prompt and output together."""
    return _bound(prompts.input_tokens) + _bound(prompts.output_tokens)


def _bound(length: Length) -> int:
    return max(1, math.floor(length.mean + DEVIATIONS * length.stdev))


def due_times(workload: Workload) -> Iterator[float]:
    """Due times that do not depend on answers, ascending.

    All of an open loop's, without end; the users' first ones of a closed loop.
    """
    match workload.arrivals:
        case ClosedLoop(concurrency=users):
            yield from (0.0 for _ in range(users))
        case Poisson(rate_per_s=rate):
            gaps = random.Random(f"arrivals {workload.seed}")  # noqa: S311  # reproducible, guards nothing
            due_s = 0.0
            while True:
                due_s += gaps.expovariate(rate)
                yield due_s

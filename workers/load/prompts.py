"""Synthetic prompts: lengths that every run shares, content that no run shares."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.protocol import Length, SyntheticPrompts

__all__ = ["Prompt", "PromptSource", "Vocabulary", "longest_request"]

DEVIATIONS = 3.0
"""Lengths are cut at so many standard deviations from the mean. The bound does not depend on the
configuration: all are offered the same lengths, and whether they fit can be told beforehand."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to send.

    Attributes:
        token_ids: the prompt.
        output_tokens: exact number of tokens to generate.
    """

    token_ids: list[int]
    output_tokens: int


class Vocabulary:
    """The token ids that prompts are drawn from."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._ids = np.unique(np.fromiter(token_ids, dtype=np.int64))
        if not self._ids.size:
            raise ValueError("a vocabulary needs at least one token")

    @classmethod
    def of_size(cls, size: int, *, without: Iterable[int] = ()) -> Vocabulary:
        """All ids below ``size`` but those that have a special meaning to the model."""
        special = set(without)
        return cls(token for token in range(size) if token not in special)

    def __len__(self) -> int:
        return int(self._ids.size)

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        """``count`` ids, independent and uniform."""
        drawn: list[int] = self._ids[generator.integers(0, self._ids.size, count)].tolist()
        return drawn


def _bound(length: Length) -> int:
    return max(1, math.floor(length.mean + DEVIATIONS * length.stdev))


def longest_request(prompts: SyntheticPrompts) -> int:
    """Tokens of the longest request that these prompts can make, prompt and output together."""
    return _bound(prompts.input_tokens) + _bound(prompts.output_tokens)


def _draw_length(length: Length, lengths: random.Random) -> int:
    if not length.stdev:
        return length.mean
    deviation = min(DEVIATIONS, max(-DEVIATIONS, lengths.gauss(0.0, 1.0)))
    return min(_bound(length), max(1, round(length.mean + deviation * length.stdev)))


class PromptSource:
    """An endless supply of prompts.

    Args:
        prompts: what they look like.
        vocabulary: the ids to draw from.
        seed: decides the lengths, in order: two runs of one seed are offered the same.
        content_seed: decides the content; new for every run, so that no cache knows it.
    """

    def __init__(
        self,
        prompts: SyntheticPrompts,
        vocabulary: Vocabulary,
        *,
        seed: int,
        content_seed: int | Sequence[int],
    ) -> None:
        self._prompts = prompts
        self._vocabulary = vocabulary
        self._lengths = random.Random(f"lengths {seed}")  # noqa: S311  # reproducible, guards nothing
        self._content = np.random.default_rng(content_seed)
        self._prefix = vocabulary.draw(self._content, prompts.shared_prefix_tokens)

    def next(self) -> Prompt:
        """The next prompt. One shorter than the shared prefix is a part of it."""
        input_tokens = _draw_length(self._prompts.input_tokens, self._lengths)
        output_tokens = _draw_length(self._prompts.output_tokens, self._lengths)
        prefix = self._prefix[:input_tokens]
        return Prompt(
            prefix + self._vocabulary.draw(self._content, input_tokens - len(prefix)), output_tokens
        )

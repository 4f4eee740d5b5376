"""Prompts: the same lengths for all, new content for each, never longer than told beforehand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuner.protocol import Length, SyntheticPrompts
from workers.load.prompts import PromptSource, Vocabulary, longest_request


def prompts(mean: int = 50, stdev: float = 15.0, shared: int = 0) -> SyntheticPrompts:
    return SyntheticPrompts(
        input_tokens=Length(mean=mean, stdev=stdev),
        output_tokens=Length(mean=20, stdev=5.0),
        shared_prefix_tokens=shared,
    )


def source(of: SyntheticPrompts, *, seed: int = 0, content_seed: int = 0) -> PromptSource:
    return PromptSource(of, Vocabulary.of_size(1000), seed=seed, content_seed=content_seed)


def lengths(of: PromptSource) -> list[tuple[int, int]]:
    return [(len(prompt.token_ids), prompt.output_tokens) for prompt in (of.next() for _ in range(200))]


class TestLengths:
    def test_are_the_same_in_every_run_of_a_seed_whatever_the_content(self) -> None:
        assert lengths(source(prompts(), content_seed=1)) == lengths(source(prompts(), content_seed=2))

    def test_differ_between_seeds(self) -> None:
        assert lengths(source(prompts(), seed=1)) != lengths(source(prompts(), seed=2))

    def test_without_deviation_are_exact(self) -> None:
        fixed = SyntheticPrompts(input_tokens=Length(mean=7), output_tokens=Length(mean=3))
        assert set(lengths(source(fixed))) == {(7, 3)}

    def test_have_the_mean_and_the_deviation_asked_for(self) -> None:
        inputs = [length for length, _ in lengths(source(prompts(mean=500, stdev=100.0)))]
        mean = sum(inputs) / len(inputs)
        assert abs(mean - 500) < 30
        assert 80 < (sum((n - mean) ** 2 for n in inputs) / len(inputs)) ** 0.5 < 120

    @given(st.integers(1, 300), st.floats(0.0, 400.0), st.integers(0, 100))
    def test_never_exceed_what_is_told_beforehand(self, mean: int, stdev: float, seed: int) -> None:
        of = prompts(mean=mean, stdev=stdev)
        drawn = lengths(source(of, seed=seed))
        assert min(min(pair) for pair in drawn) >= 1
        assert max(sum(pair) for pair in drawn) <= longest_request(of)


class TestContent:
    def test_is_new_in_every_run(self) -> None:
        first, second = source(prompts(), content_seed=1).next(), source(prompts(), content_seed=2).next()
        assert first.token_ids != second.token_ids

    def test_shares_its_prefix_within_a_run_alone(self) -> None:
        of = prompts(mean=50, stdev=0.0, shared=30)
        one, other = source(of, content_seed=1), source(of, content_seed=2)
        first, second, foreign = one.next(), one.next(), other.next()
        assert first.token_ids[:30] == second.token_ids[:30] != foreign.token_ids[:30]
        assert first.token_ids[30:] != second.token_ids[30:]

    def test_shorter_than_the_prefix_is_a_part_of_it(self) -> None:
        of = prompts(mean=10, stdev=0.0, shared=30)
        run = source(of)
        assert run.next().token_ids == run.next().token_ids
        assert len(run.next().token_ids) == 10

    def test_uses_the_vocabulary_without_its_special_tokens(self) -> None:
        run = PromptSource(prompts(), Vocabulary.of_size(8, without=[0, 1, 7]), seed=0, content_seed=0)
        assert {token for _ in range(50) for token in run.next().token_ids} == {2, 3, 4, 5, 6}

"""What vLLM's own validation refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.constraints import violations
from tuner.protocol import ArgValue


def names(args: dict[str, ArgValue]) -> list[str]:
    return [violation.name for violation in violations(args)]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_num_batched_tokens": 512, "max_num_seqs": 512},
        {"max_num_batched_tokens": 512},
        {"max_num_seqs": 4096},
        {"max_num_batched_tokens": 512, "max_model_len": 4096},
        {"max_num_batched_tokens": 512, "max_model_len": 4096, "enable_chunked_prefill": True},
        {"max_num_batched_tokens": 4096, "max_model_len": 4096, "enable_chunked_prefill": False},
        {"gpu_memory_utilization": 1.0},
        {"max_num_batched_tokens": "8K", "max_num_seqs": 9000},
    ],
)
def test_admissible(args: dict[str, ArgValue]) -> None:
    assert names(args) == []


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ({"max_num_batched_tokens": 256, "max_num_seqs": 512}, "tokens_for_every_seq"),
        (
            {"max_num_batched_tokens": 2048, "max_model_len": 4096, "enable_chunked_prefill": False},
            "tokens_for_a_whole_prompt",
        ),
        ({"gpu_memory_utilization": 0.0}, "share_of_memory"),
        ({"gpu_memory_utilization": 1.01}, "share_of_memory"),
    ],
)
def test_broken_rule_is_named(args: dict[str, ArgValue], name: str) -> None:
    assert names(args) == [name]


def test_message_has_both_values() -> None:
    (violation,) = violations({"max_num_batched_tokens": 256, "max_num_seqs": 512})
    assert violation.message == "max_num_batched_tokens (256) is below max_num_seqs (512)"
    assert violation.amount == 1.0


@given(tokens=st.integers(1, 1000), seqs=st.integers(1, 1000))
def test_amount_grows_with_the_distance_and_is_above_zero(tokens: int, seqs: int) -> None:
    def amount(tokens: int) -> float:
        return sum(v.amount for v in violations({"max_num_batched_tokens": tokens, "max_num_seqs": seqs}))

    assert (amount(tokens) > 0) == (tokens < seqs)
    assert amount(tokens) >= amount(tokens + 1)

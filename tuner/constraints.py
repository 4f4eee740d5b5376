"""Known constraints: what vLLM refuses by its own validation, so that no trial is spent on it.

Sources: ``vllm/config/scheduler.py`` (``SchedulerConfig.verify_max_model_len`` and its field checks) and
``vllm/config/parallel.py`` of vLLM 0.32. Only arguments that a trial sets are judged; a default that vLLM
chooses itself always fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.protocol import ArgValue

__all__ = ["Violation", "violations"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        name: the rule.
        message: one clause for people, with the values.
        amount: how far beyond the rule, as a share of the bound; above 0.
    """

    name: str
    message: str
    amount: float


def violations(args: Mapping[str, ArgValue]) -> tuple[Violation, ...]:
    """The rules that the merged arguments of a trial break; empty for an admissible one."""
    tokens, seqs = _number(args, "max_num_batched_tokens"), _number(args, "max_num_seqs")
    length = _number(args, "max_model_len")
    broken: list[Violation] = []
    if tokens is not None and seqs is not None and tokens < seqs:
        broken.append(
            Violation(
                "tokens_for_every_seq",
                f"max_num_batched_tokens ({tokens:g}) is below max_num_seqs ({seqs:g})",
                (seqs - tokens) / tokens,
            )
        )
    if (
        args.get("enable_chunked_prefill") is False
        and tokens is not None
        and length is not None
        and tokens < length
    ):
        broken.append(
            Violation(
                "tokens_for_a_whole_prompt",
                f"unchunked: max_num_batched_tokens ({tokens:g}) is below max_model_len ({length:g})",
                (length - tokens) / tokens,
            )
        )
    share = _number(args, "gpu_memory_utilization")
    if share is not None and not 0 < share <= 1:
        broken.append(
            Violation(
                "share_of_memory", f"gpu_memory_utilization ({share:g}) is outside (0, 1]", abs(share - 0.5)
            )
        )
    return tuple(broken)


def _number(args: Mapping[str, ArgValue], name: str) -> float | None:
    value = args.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

"""Verdicts of a simulated trial without a measurement: worded like a worker's, marked as simulated."""

from __future__ import annotations

from tuner.errors import FieldError
from tuner.protocol import Failure, FailureKind, Phase, Verdict

__all__ = ["infeasible", "invalid", "overloaded", "too_long"]


def infeasible(
    kind: FailureKind,
    message: str,
    *,
    advice: str,
    numbers: dict[str, float],
    phase: Phase = Phase.STARTING,
) -> Failure:
    """The configuration's fault."""
    return Failure(
        kind=kind,
        verdict=Verdict.INFEASIBLE,
        retryable=False,
        fatal=False,
        phase=phase,
        message=f"simulated: {message}",
        advice=advice,
        numbers=numbers,
        exit_code=1 if phase is Phase.STARTING else None,
    )


def invalid(error: FieldError) -> Failure:
    """vLLM refuses the arguments themselves."""
    return infeasible(
        FailureKind.INVALID_CONFIG,
        f"{error.field} {error.value} {error.problem}",
        advice=error.fix,
        numbers={},
    )


def too_long(longest: int, max_model_len: int) -> Failure:
    """The workload has requests that the engine would not take."""
    return infeasible(
        FailureKind.INVALID_CONFIG,
        f"the workload's longest request has {longest} tokens, and max_model_len is {max_model_len}",
        advice=f"set max_model_len to {longest} or more, or shorten the workload's prompts and outputs",
        numbers={"longest_request_tokens": float(longest), "max_model_len_tokens": float(max_model_len)},
        phase=Phase.READY,
    )


def overloaded(late: int, due: int) -> Failure:
    """Too many requests of the window had no answer when the drain was over."""
    return infeasible(
        FailureKind.SERVER_OVERLOADED,
        f"{late} of the window's {due} requests had no answer in time",
        advice="this configuration cannot carry the load: allow more sequences or tokens per step",
        numbers={"timed_out_requests": float(late), "requests": float(due)},
        phase=Phase.MEASURING,
    )

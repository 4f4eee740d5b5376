"""From evidence to a verdict."""

from __future__ import annotations

from tuner.protocol import Failure, FailureKind, Verdict
from workers.failures.evidence import Evidence

__all__ = ["classify"]


def classify(evidence: Evidence) -> Failure | None:
    """Why the attempt failed, or ``None`` when nothing in the evidence says that it did. Pure; never raises."""
    if not evidence.exit_code:
        return None
    return Failure(
        kind=FailureKind.OTHER,
        verdict=Verdict.FAILED,
        retryable=True,
        fatal=False,
        phase=evidence.phase,
        message=f"the engine ended with exit code {evidence.exit_code}",
        excerpt=tuple(evidence.log_lines[-40:]),
        exit_code=evidence.exit_code,
    )

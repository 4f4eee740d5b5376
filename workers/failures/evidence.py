"""What is known about an attempt that may have failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.protocol import ArgValue, Phase

__all__ = ["Evidence"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about one attempt, observed from outside the engine.

    A field that could not be observed keeps its default: an unknown fact never decides anything.

    Attributes:
        phase: what the attempt was doing when it ended or was looked at.
        exit_code: the engine's exit code, negative for a signal; ``None`` while it runs.
        log_lines: the engine's output in the order in which it was written, stdout and stderr together.
        gpu_memory_used_before_bytes: bytes in use on the GPU before the engine started (the fullest one
            of a group).
        gpu_memory_total_bytes: memory of one GPU.
        cgroup_oom_kills: growth of ``oom_kill`` in the cgroup's ``memory.events`` during the attempt;
            ``None`` where it cannot be read, 0 says that no OOM killer was at work.
        knobs: names of the args and env entries that the search chose; ``None`` if not known. A misfit
            of any other argument can be mended by no trial.
        args: all vLLM arguments of the trial by their name with underscores.
        env: all environment variables of the trial.
        startup_timed_out: the worker stopped an engine that was not ready in time, so a signal in
            ``exit_code`` is the worker's own.
        startup_timeout_s: the limit that was exceeded.
        stalled_s: seconds without any token when the worker gave the engine up; the signal is its own too.
        stopped_by_worker: the worker had told the engine to stop, so SIGTERM or SIGKILL is no failure.
        refused_requests: requests of the window that the server refused as overloaded (HTTP 429 or 503).
        requests: all requests of the window.
    """

    phase: Phase
    exit_code: int | None
    log_lines: Sequence[str] = ()
    gpu_memory_used_before_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    cgroup_oom_kills: int | None = None
    knobs: frozenset[str] | None = None
    args: Mapping[str, ArgValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    startup_timed_out: bool = False
    startup_timeout_s: float | None = None
    stalled_s: float | None = None
    stopped_by_worker: bool = False
    refused_requests: int = 0
    requests: int = 0

"""What the control plane and a worker say to each other, as data.

Everything here is frozen, refuses unknown fields, and is what travels in the bodies of
``/api/v1/leases`` and ``/api/v1/workers``. It imports nothing but the standard library and pydantic,
so that a worker needs neither Optuna nor a database.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = [
    "PROTOCOL_VERSION",
    "Action",
    "ArgValue",
    "Arrivals",
    "Assignment",
    "ClaimRequest",
    "ClosedLoop",
    "EngineSpec",
    "Failed",
    "Failure",
    "FailureKind",
    "Hardware",
    "Heartbeat",
    "HeartbeatAnswer",
    "Infeasible",
    "Length",
    "Measured",
    "Measurement",
    "Outcome",
    "Phase",
    "Poisson",
    "Prompts",
    "PrunedEarly",
    "Release",
    "Report",
    "SyntheticPrompts",
    "Verdict",
    "WorkerDescription",
    "Workload",
]

PROTOCOL_VERSION = 1
"""Raised when a worker of the previous version could misread a message."""

ArgValue = bool | int | float | str
"""Value of one vLLM argument. ``True`` renders as ``--flag``, ``False`` as ``--no-flag``."""


def _without_nul(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


Quoted = Annotated[str, AfterValidator(_without_nul)]
"""Text that may quote a log. PostgreSQL keeps no NUL; it is replaced and not refused, so that no garbage in a
log can hinder the report of a failure."""


class Message(BaseModel):
    """Base of all messages: immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---------------------------------------------------------------- what to run


class EngineSpec(Message):
    """The engine that every trial of a study starts.

    Attributes:
        kind: ``vllm`` starts the real ``vllm`` by the worker's interpreter.
        model: Hugging Face id or a folder on the worker.
        args: fixed vLLM arguments by their name with underscores, e.g. ``{"max_model_len": 4096}``.
        env: environment variables of the engine, never a secret.
    """

    kind: Literal["vllm"] = "vllm"
    model: str = Field(min_length=1)
    args: dict[str, ArgValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


class Hardware(Message):
    """What a worker must own to run the study.

    Attributes:
        gpus: GPUs per trial; 0 runs on the CPU build of vLLM; ``None`` takes any worker.
        gpu: text that the GPU's name must contain, case-insensitively, e.g. ``H200``.
    """

    gpus: int | None = Field(default=None, ge=0, le=64)
    gpu: str | None = None


class Length(Message):
    """A token count drawn from a normal distribution, rounded, at least 1; ``stdev`` 0 is a fixed length."""

    mean: int = Field(ge=1, le=10_000_000)
    stdev: float = Field(default=0.0, ge=0.0)


class SyntheticPrompts(Message):
    """Random token ids, new ones for every run so that the prefix cache cannot flatter.

    Attributes:
        input_tokens: prompt length in tokens, ``shared_prefix_tokens`` included.
        output_tokens: tokens to generate; ``ignore_eos`` makes the length exact.
        shared_prefix_tokens: leading tokens that all prompts of one run share.
    """

    kind: Literal["synthetic"] = "synthetic"
    input_tokens: Length
    output_tokens: Length
    shared_prefix_tokens: int = Field(default=0, ge=0)


class ClosedLoop(Message):
    """A fixed number of users, each sending its next request when the last one ended."""

    kind: Literal["closed"] = "closed"
    concurrency: int = Field(ge=1, le=100_000)


class Poisson(Message):
    """Open loop: independent arrivals at a mean rate, which never wait for answers."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: float = Field(gt=0.0, le=100_000.0)


Prompts = SyntheticPrompts
Arrivals = Annotated[ClosedLoop | Poisson, Field(discriminator="kind")]


class Workload(Message):
    """The load that every trial of a study is offered.

    Attributes:
        warmup_s: seconds of load before the measured window opens.
        measure_s: length of the measured window in seconds.
        seed: seeds lengths and arrivals; prompt content differs in every run all the same.
    """

    prompts: Prompts
    arrivals: Arrivals
    warmup_s: float = Field(default=10.0, ge=0.0, le=3600.0)
    measure_s: float = Field(default=30.0, gt=0.0, le=36_000.0)
    seed: int = Field(default=0, ge=0)


# ---------------------------------------------------------------- verdicts


class Phase(StrEnum):
    """What an attempt is doing; a field that heartbeats carry, not a state."""

    STARTING = "starting"
    READY = "ready"
    WARMING_UP = "warming_up"
    MEASURING = "measuring"
    STOPPING = "stopping"


class FailureKind(StrEnum):
    """What went wrong (the table of verdicts is in docs/verdicts.md)."""

    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    MEMORY_BUDGET = "memory_budget"
    INVALID_CONFIG = "invalid_config"
    UNKNOWN_FLAG = "unknown_flag"
    KERNEL_ERROR = "kernel_error"
    MODEL_UNAVAILABLE = "model_unavailable"
    BROKEN_INSTALLATION = "broken_installation"
    DEVICE_UNAVAILABLE = "device_unavailable"
    PORT_IN_USE = "port_in_use"
    STARTUP_TIMEOUT = "startup_timeout"
    ENGINE_CRASH = "engine_crash"
    SERVER_OVERLOADED = "server_overloaded"
    OTHER = "other"


class Verdict(StrEnum):
    """Whose fault it was: the configuration's (learned), the environment's (retried), or nobody's."""

    OK = "ok"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


class Failure(Message):
    """Why an attempt did not end in a measurement.

    Attributes:
        retryable: another attempt of the same configuration may pass.
        fatal: no configuration can pass on this worker or for this study: stop and tell the user.
        message: one sentence for people, naming the cause as the log states it.
        advice: one sentence: which knob to lower or what to mend.
        numbers: figures that the log's message holds, unit in the name, e.g. ``{"needed_bytes": …}``.
        excerpt: the log lines that decided, at most 40.
        exit_code: the engine's exit code, negative for a signal; ``None`` while it runs.
    """

    kind: FailureKind
    verdict: Verdict
    retryable: bool
    fatal: bool
    phase: Phase
    message: Quoted = Field(min_length=1, max_length=4000)
    advice: Quoted = Field(default="", max_length=2000)
    numbers: dict[str, float] = Field(default_factory=dict)
    excerpt: tuple[Quoted, ...] = Field(default=(), max_length=40)
    exit_code: int | None = None


class Measurement(Message):
    """What one attempt observed.

    Attributes:
        metrics: figures by the names of :data:`tuner.metrics.METRICS`; a metric that could not be
            observed is absent, never zero.
        errors: number of failed requests of the window by kind, e.g. ``{"http_503": 2}``.
        requests: requests that completed without error inside the window.
        window_s: length of the measured window.
        resolved_args: values that the engine itself reports for its arguments, where it tells.
        provenance: versions, argv, environment without secrets, GPU, seeds.
    """

    metrics: dict[str, float]
    errors: dict[str, int] = Field(default_factory=dict)
    requests: int = Field(ge=0)
    window_s: float = Field(gt=0.0)
    resolved_args: dict[str, ArgValue] = Field(default_factory=dict)
    provenance: dict[str, str | int | float | bool | list[str] | dict[str, str]] = Field(default_factory=dict)


# ---------------------------------------------------------------- outcomes of an attempt


class Measured(Message):
    """The attempt ended with a measurement."""

    kind: Literal["measured"] = "measured"
    measurement: Measurement


class Infeasible(Message):
    """The configuration cannot run here: told to the search as PRUNED with the constraint it broke."""

    kind: Literal["infeasible"] = "infeasible"
    failure: Failure


class Failed(Message):
    """The environment failed: another attempt, or FAIL when the attempts are used up or it is fatal."""

    kind: Literal["failed"] = "failed"
    failure: Failure


class PrunedEarly(Message):
    """Stopped on partial evidence because it cannot win."""

    kind: Literal["pruned_early"] = "pruned_early"
    reason: Quoted = Field(min_length=1, max_length=2000)
    partial: Measurement | None = None


Outcome = Annotated[Measured | Infeasible | Failed | PrunedEarly, Field(discriminator="kind")]


# ---------------------------------------------------------------- the lease protocol


class WorkerDescription(Message):
    """A worker as it introduces itself.

    Attributes:
        name: unique and stable across restarts, e.g. ``host-gpu0``.
        gpus: number of GPUs it owns; 0 is a CPU worker.
        gpu: name of the GPU model, ``None`` on a CPU worker.
        gpu_memory_bytes: memory of one GPU.
    """

    name: str = Field(min_length=1, max_length=200)
    protocol_version: int = PROTOCOL_VERSION
    nightshift_version: str = ""
    vllm_version: str | None = None
    host: str = ""
    pid: int | None = None
    gpus: int = Field(default=0, ge=0)
    gpu: str | None = None
    gpu_memory_bytes: int | None = Field(default=None, ge=0)
    labels: dict[str, str] = Field(default_factory=dict)


class ClaimRequest(Message):
    """Long poll for the next attempt. ``wait_s`` bounds how long the server may hold the request."""

    worker: WorkerDescription
    wait_s: float = Field(default=20.0, ge=0.0, le=60.0)


class Assignment(Message):
    """One granted lease: everything a worker needs to run one attempt.

    Attributes:
        token: fences every later write; never logged.
        ttl_s: seconds from the grant until the server considers the lease expired. The worker keeps it
            on its monotonic clock and must have stopped its engine before then.
        args: all vLLM arguments of the trial, fixed ones and knobs together.
        env: all environment variables of the trial.
        knobs: names of the args and env entries that the search chose; a misfit of any other one can
            be mended by no trial.
        attempt: 1 for the first.
    """

    lease_id: str
    token: str
    ttl_s: float = Field(gt=0.0)
    study: str
    trial_number: int = Field(ge=0)
    attempt: int = Field(ge=1)
    engine: EngineSpec
    args: dict[str, ArgValue]
    env: dict[str, str]
    knobs: tuple[str, ...]
    workload: Workload
    gpus: int = Field(ge=0)
    startup_timeout_s: float = Field(default=1800.0, gt=0.0)


class Heartbeat(Message):
    """Sent every third of the ttl.

    Attributes:
        partial: metrics seen so far, by metric name; absent ones are unknown.
        elapsed_s: seconds since the attempt began, on the worker's monotonic clock.
    """

    token: str
    phase: Phase
    elapsed_s: float = Field(ge=0.0)
    partial: dict[str, float] = Field(default_factory=dict)


class Action(StrEnum):
    """What the server wants the worker to do."""

    CONTINUE = "continue"
    STOP = "stop"


class HeartbeatAnswer(Message):
    """``stop`` carries its reason; after it the worker stops the engine and releases the lease."""

    action: Action
    reason: str = ""
    ttl_s: float = Field(gt=0.0)


class Report(Message):
    """The end of an attempt. Sending the same report twice is harmless."""

    token: str
    outcome: Outcome


class Release(Message):
    """A worker gives an attempt back unfinished (it drains, or was told to stop): no attempt is lost."""

    token: str
    reason: Quoted = Field(min_length=1, max_length=500)

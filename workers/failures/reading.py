"""Evidence out of what people have: a case file, or only a log."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tuner.errors import FieldError
from tuner.protocol import ArgValue, Phase
from workers.failures.evidence import Evidence
from workers.failures.log import Line, Loudness, parse
from workers.failures.selection import Trust, read

__all__ = ["evidence_of_case", "evidence_of_log"]


def _split(log: object) -> object:
    return log.splitlines() if isinstance(log, str) else log


class _Case(BaseModel):
    """A case file. Fields that only people read (``id``, ``source``, ``expected`` …) are passed over."""

    model_config = ConfigDict(extra="ignore")

    log: Annotated[list[str], BeforeValidator(_split)]
    phase: Phase = Phase.STARTING
    exit_code: int | None = None
    gpu_memory_used_before_bytes: int | None = Field(default=None, ge=0)
    gpu_memory_total_bytes: int | None = Field(default=None, ge=0)
    cgroup_oom_kills: int | None = Field(default=None, ge=0)
    knobs: frozenset[str] | None = None
    args: dict[str, ArgValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    startup_timed_out: bool = False
    startup_timeout_s: float | None = Field(default=None, ge=0)
    stalled_s: float | None = Field(default=None, ge=0)
    stopped_by_worker: bool = False
    refused_requests: int = Field(default=0, ge=0)
    requests: int = Field(default=0, ge=0)


def evidence_of_case(case: Mapping[str, object]) -> Evidence:
    """The evidence that a case file describes.

    Raises:
        FieldError: a field is missing or has a value that cannot be.
    """
    try:
        read_case = _Case.model_validate(case)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise FieldError(
            field, first["input"], problem=first["msg"], fix="see docs/verdicts.md for the fields"
        ) from error
    facts = {name: getattr(read_case, name) for name in _Case.model_fields if name != "log"}
    return Evidence(log_lines=tuple(read_case.log), **facts)


READY = re.compile(r"Application startup complete|Uvicorn running on|Starting vLLM (?:API )?server")
HEALTHY = re.compile(
    r'"(?:GET|POST) [^"]*" 200\b|Avg (?:prompt|generation) throughput|Application startup complete'
)
USAGE_EXIT, ERROR_EXIT = 2, 1
SHELL_WORDS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Illegal instruction": signal.SIGILL,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
}
"""What a shell prints last about a process that a signal ended."""
OBITUARY = re.compile(
    r"^(?:\S+: (?:line \d+: )?)?(?:\s*\d+ )?(?P<word>[A-Z][a-z]+(?: [a-z]+)?)"
    r"(?: +\(core dumped\).*| {2,}.*)?$"
)
LAST_LINES = 3


def evidence_of_log(log_lines: Sequence[str]) -> Evidence:
    """The evidence that a log alone gives: its phase by whether it says that the server was ready.

    The exit code is not in a log. An exception after which nothing works any more stands for one.
    """
    lines = parse(log_lines)
    ready = any(READY.search(line.text) for line in lines if line.loudness is not Loudness.LOUD)
    phase = Phase.MEASURING if ready else Phase.STARTING
    return Evidence(phase=phase, exit_code=_exit_code(lines, phase), log_lines=tuple(log_lines))


def _exit_code(lines: Sequence[Line], phase: Phase) -> int | None:
    if (number := _signal_in(lines)) is not None:
        return -number
    reading = read(lines, phase)
    if reading.child_signals or reading.engine_died or any(s.trust is Trust.FATAL for s in reading.suspects):
        return ERROR_EXIT
    last_healthy = max((line.number for line in lines if HEALTHY.search(line.text)), default=-1)
    later = [s for s in reading.suspects if s.finding.chain.start > last_healthy]
    if any(s.finding.raised.name == "UsageError" for s in later):
        return USAGE_EXIT
    return ERROR_EXIT if later else None


def _signal_in(lines: Sequence[Line]) -> int | None:
    """The signal that a shell names on one of the last lines."""
    for line in [line for line in lines if line.text.strip()][-LAST_LINES:]:
        found = OBITUARY.match(line.text) if line.loudness is Loudness.RAW and not line.process else None
        if found and found["word"] in SHELL_WORDS:
            return int(SHELL_WORDS[found["word"]])
    return None

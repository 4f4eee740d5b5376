"""Which exception of a log killed the engine: how far each may be trusted, and which process died first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tuner.protocol import FailureKind, Phase
from workers.failures.findings import RESOURCES, Finding, find, is_wrapper
from workers.failures.log import Line, Loudness
from workers.failures.tracebacks import Chain, read_chains

__all__ = ["Reading", "Suspect", "Trust", "read"]


class Trust(IntEnum):
    """How sure it is that an exception in a log is what killed a process; lower is surer."""

    FATAL = 0
    """The process said that it dies of it, or printed its traceback under its own name."""
    REPORTED = 1
    """An ERROR record, or a traceback without the name of a process."""
    MENTIONED = 2
    """A bare line: it could be anybody's text."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An exception that may have been the cause."""

    finding: Finding
    trust: Trust

    @property
    def of_engine(self) -> bool:
        """A process behind the API server raised it: those die first."""
        return ENGINE.match(self.finding.chain.process) is not None


@dataclass(frozen=True, slots=True)
class Reading:
    """What the log tells.

    Attributes:
        suspects: exceptions that may have been the cause, in the order of the log.
        engine_died: an API server says that the engine behind it is gone.
        child_signals: signals that killed processes behind the API server, as it reports them.
    """

    suspects: tuple[Suspect, ...]
    engine_died: bool
    child_signals: tuple[int, ...]

    def cause(self, *, ended: bool, died: bool, phase: Phase) -> Suspect | None:
        """The exception of the process that died first.

        Args:
            ended: the engine is known to have ended; otherwise only an exception that kills counts.
            died: an engine that has not ended is dead behind its API server all the same.
        """
        admitted = [s for s in self.suspects if ended or _kills(s, phase, died=died)]
        if not admitted:
            return None
        best = min((s.trust, not s.of_engine) for s in admitted)
        group = [s for s in admitted if (s.trust, not s.of_engine) == best]
        processes: dict[str, list[Suspect]] = {}
        for suspect in group:
            processes.setdefault(suspect.finding.chain.process, []).append(suspect)
        return min((_last_words(own) for own in processes.values()), key=lambda s: s.finding.chain.start)


ENGINE = re.compile(r"EngineCore|VllmWorker|Worker|RayWorker|rank\d", re.IGNORECASE)
UNSURVIVABLE = RESOURCES | {FailureKind.ENGINE_CRASH, FailureKind.INVALID_CONFIG, FailureKind.PORT_IN_USE}
"""Kinds that an ERROR record alone proves; a missing module or file may have been an attempt."""
LAST_WORDS = re.compile(
    r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)"
    r"|(?:Ray)?WorkerProc (?:failed|hit an exception)|Process \S+:|Exception in worker|Error executing method"
    r"|Engine background task failed|terminate called after"
)
OBITUARY = re.compile(r"(?:Engine\w*|AsyncLLM) is already dead|proc \S+ died unexpectedly")
HARMLESS = re.compile(r"Exception ignored in|--- Logging error ---")
OF_ONE_REQUEST = re.compile(
    r"Exception in ASGI application|Error in (?:pre)?processing|Error with (?:request|model)"
)
REQUEST_SOURCES = re.compile(
    r"(?:serving|protocol|tool_parser|chat_utils|reasoning|async_llm|preprocess|input_processor)\w*\.py"
)
CHILD_EXITS = (
    re.compile(r"died unexpectedly \(exit code: (?P<code>-\d+)\)"),
    re.compile(r"\(PID: \d+\) died with exit code (?P<code>-\d+)"),
    re.compile(r"Failed (?:core|frontend) proc\(s\): \{[^}]*?: (?P<code>-\d+)"),
    re.compile(r"Worker \w+ pid \d+ died, exit code: (?P<code>-\d+)"),
)


def read(lines: Sequence[Line], phase: Phase) -> Reading:
    """Collect what the log tells about deaths; its quiet lines are no evidence."""
    named = any(line.process and line.source for line in lines)
    chains = [chain for chain in read_chains(lines) if not HARMLESS.match(chain.headline)]
    suspects = [
        Suspect(finding, _trust(chain, named=named))
        for chain in chains
        if not _is_of_one_request(chain, phase) and (finding := find(chain, phase)) is not None
    ]
    return Reading(
        suspects=tuple(suspects),
        engine_died=any(_tells_of_death(chain) for chain in chains)
        or any(_is_obituary(line) for line in lines),
        child_signals=tuple(_child_signals(lines)),
    )


def _kills(suspect: Suspect, phase: Phase, *, died: bool) -> bool:
    """The engine seems to run: who is named here has died all the same."""
    kind = suspect.finding.kind
    match suspect.trust:
        case Trust.FATAL:
            return kind is not None or died or suspect.of_engine
        case Trust.REPORTED if not died and suspect.finding.chain.loud:
            return kind in UNSURVIVABLE
        case Trust.REPORTED:
            return died or (phase is Phase.STARTING and kind is not None)
        case Trust.MENTIONED:
            return False


def _trust(chain: Chain, *, named: bool) -> Trust:
    if named and chain.loud and not chain.process:  # vLLM puts names on all its records or on none
        return Trust.MENTIONED
    if chain.structured and (chain.process or chain.headline) and not chain.loud:
        return Trust.REPORTED if chain.headline.startswith("Exception in thread") else Trust.FATAL
    if LAST_WORDS.match(chain.headline):
        return Trust.FATAL
    return Trust.REPORTED if chain.loud or chain.structured or chain.process else Trust.MENTIONED


def _is_of_one_request(chain: Chain, phase: Phase) -> bool:
    """The API server answered one request with an error and goes on."""
    if phase is Phase.STARTING or ENGINE.match(chain.process):
        return False
    return bool(OF_ONE_REQUEST.match(chain.headline) or (chain.loud and REQUEST_SOURCES.match(chain.source)))


def _tells_of_death(chain: Chain) -> bool:
    trusted = chain.loud or chain.structured or chain.process != ""
    return trusted and any(is_wrapper(raised) for raised in chain.raised)


def _is_obituary(line: Line) -> bool:
    return line.loudness is Loudness.LOUD and OBITUARY.search(line.text) is not None


def _last_words(suspects: Sequence[Suspect]) -> Suspect:
    """What one process died of.

    It names its fatal exception once, and anything later is the noise of going down. Without such words the
    last known exception counts, since one that was survived comes earlier.
    """
    if suspects[0].trust is Trust.FATAL:
        return next((s for s in suspects if LAST_WORDS.match(s.finding.chain.headline)), suspects[0])
    known = [s for s in suspects if s.finding.kind is not None]
    return (known or list(suspects))[-1]


def _child_signals(lines: Iterable[Line]) -> Iterable[int]:
    for line in lines:
        if line.loudness is Loudness.QUIET:
            continue
        for pattern in CHILD_EXITS:
            if found := pattern.search(line.text):
                yield -int(found["code"])

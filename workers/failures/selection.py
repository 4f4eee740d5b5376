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

    def cause(self, *, ended: bool, phase: Phase) -> Suspect | None:
        """The exception of the process that died first.

        Args:
            ended: a process is known to have died; otherwise only an exception that kills counts.
        """
        admitted = [s for s in self.suspects if ended or self._kills(s, phase)]
        if not admitted:
            return None
        best = min((s.trust, not s.of_engine) for s in admitted)
        group = [s for s in admitted if (s.trust, not s.of_engine) == best]
        processes: dict[str, list[Suspect]] = {}
        for suspect in group:
            processes.setdefault(suspect.finding.chain.process, []).append(suspect)
        return min((_last_words(own) for own in processes.values()), key=lambda s: s.finding.chain.start)

    def _kills(self, suspect: Suspect, phase: Phase) -> bool:
        """An engine that still seems to run: who is named here has died all the same."""
        if suspect.trust is Trust.FATAL:
            return suspect.finding.kind is not None or self.engine_died or suspect.of_engine
        if suspect.trust is Trust.MENTIONED:
            return False
        if self.engine_died:
            return True
        if suspect.finding.chain.loud:
            return suspect.finding.kind in UNSURVIVABLE
        return phase is Phase.STARTING and suspect.finding.kind is not None


ENGINE = re.compile(r"EngineCore|VllmWorker|Worker|RayWorker|rank\d", re.IGNORECASE)
UNSURVIVABLE = RESOURCES | {FailureKind.ENGINE_CRASH}
LAST_WORDS = re.compile(
    r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)"
    r"|(?:Ray)?WorkerProc (?:failed|hit an exception)|Process \S+:|Exception in worker|Error executing method"
    r"|Engine background task failed|terminate called after"
)
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
    chains = [chain for chain in read_chains(lines) if not HARMLESS.match(chain.headline)]
    suspects = [
        Suspect(finding, _trust(chain))
        for chain in chains
        if not _is_of_one_request(chain, phase) and (finding := find(chain, phase)) is not None
    ]
    return Reading(
        suspects=tuple(suspects),
        engine_died=any(_tells_of_death(chain) for chain in chains),
        child_signals=tuple(_child_signals(lines)),
    )


def _trust(chain: Chain) -> Trust:
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

"""From evidence to a verdict, in this order.

1. The kernel killed a process for memory, as the cgroup counts it.
2. The innermost exception of the process that died first.
3. The signal that ended the engine or a process behind it.
4. An exception that a bare line mentions.
5. What the worker itself saw: not ready in time, no tokens, requests refused.
6. Nothing of these: the failure stays unknown.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.protocol import Failure, FailureKind, Phase
from workers.failures.advice import HEADLINES, TEXTS, advise, advise_host_oom, headline
from workers.failures.catalogue import STANDINGS, Standing
from workers.failures.evidence import Evidence
from workers.failures.excerpt import excerpt_of, tail_of, without_secrets
from workers.failures.log import Line, parse
from workers.failures.numbers import numbers_in
from workers.failures.selection import Reading, Suspect, Trust, read
from workers.failures.standing import stand, stand_host_oom

__all__ = ["classify"]

STOPPING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP})
SHELL_SIGNAL_BASE = 128
"""Shells and containers report a process killed by signal N as 128 + N."""
CANNOT_RUN, NOT_FOUND = 126, 127
READY = "Application startup complete"
MAX_MESSAGE_CHARS = 1500
UNNAMED = frozenset({"UsageError", "NativeError"})
"""Names given here to what is no Python exception."""
ILLEGAL = "Install a build of vLLM and PyTorch that runs on the instruction set of this host's processor."
KILLED = "Somebody on the host killed it; it is tried once more."
STOPPED = "Somebody on the host stopped it; it is tried once more."
BUS_ERROR = "Give the container more shared memory (--shm-size, or an emptyDir of medium Memory at /dev/shm)."


def classify(evidence: Evidence) -> Failure | None:
    """Why the attempt failed, or ``None`` when nothing in the evidence says that it did.

    Pure and total: the same evidence gives the same answer, and no log makes it raise.
    """
    lines = parse(evidence.log_lines)
    reading = read(lines, evidence.phase)
    return _Judgement(evidence, lines, reading).failure()


@dataclass(frozen=True, slots=True)
class _Judgement:
    evidence: Evidence
    lines: Sequence[Line]
    reading: Reading

    def failure(self) -> Failure | None:
        return (
            self._killed_for_memory()
            or self._raised()
            or self._signalled()
            or self._mentioned()
            or self._watched()
        )

    # -------------------------------------------------------------- facts

    @property
    def signal(self) -> int | None:
        """The signal that ended the engine, unless the worker itself sent it."""
        code = self.evidence.exit_code
        if code is None:
            return None
        number = -code if code < 0 else code - SHELL_SIGNAL_BASE
        if number not in {int(known) for known in signal.Signals}:
            return None
        return None if self._stopped_on_purpose and number in STOPPING_SIGNALS else number

    @property
    def _stopped_on_purpose(self) -> bool:
        return (
            self.evidence.stopped_by_worker
            or self.evidence.startup_timed_out
            or self.evidence.stalled_s is not None
            or self.evidence.phase is Phase.STOPPING
        )

    @property
    def signals(self) -> tuple[int, ...]:
        own = () if self.signal is None else (self.signal,)
        return own if self._stopped_on_purpose else (*self.reading.child_signals, *own)

    @property
    def ended(self) -> bool:
        """The engine died, or was given up, without having been told to stop."""
        gave_up = self.evidence.startup_timed_out or self.evidence.stalled_s is not None
        code = self.evidence.exit_code
        if code in {None, 0} or (self._stopped_on_purpose and self._by_stopping_signal(code)):
            return gave_up
        return True

    def _by_stopping_signal(self, code: int | None) -> bool:
        return code is not None and (
            -code in STOPPING_SIGNALS or code - SHELL_SIGNAL_BASE in STOPPING_SIGNALS
        )

    @property
    def died(self) -> bool:
        """The engine behind the API server is gone, and not because the worker stopped it."""
        return self.reading.engine_died and not self._stopped_on_purpose

    @property
    def _cause(self) -> Suspect | None:
        return self.reading.cause(ended=self.ended, died=self.died, phase=self.evidence.phase)

    @property
    def _crashed(self) -> bool:
        return any(number not in STOPPING_SIGNALS for number in self.signals)

    def _gave_up(self, cause: Suspect) -> bool:
        """The worker's own observation says more than an unknown exception that may have been survived."""
        return cause.trust is not Trust.FATAL and self._watched_kind() is not None

    # -------------------------------------------------------------- the order

    def _killed_for_memory(self) -> Failure | None:
        kills = self.evidence.cgroup_oom_kills or 0
        if kills <= 0 or not (self.ended or self.died):
            return None
        cause = self._cause
        explained = (
            cause is not None and cause.trust is not Trust.MENTIONED and cause.finding.kind is not None
        )
        if explained and signal.SIGKILL not in self.signals:
            return None
        return self._host_oom(f"the kernel's OOM killer ended {kills} of its processes, as the cgroup counts")

    def _raised(self) -> Failure | None:
        cause = self._cause
        if cause is None or cause.trust is Trust.MENTIONED:
            return None
        if cause.finding.kind is None and (self._crashed or self._gave_up(cause)):
            return None
        return self._by_exception(cause)

    def _signalled(self) -> Failure | None:
        if not self.signals or not (self.ended or self.died):
            return None
        number = self.signals[0]
        if number == signal.SIGKILL and self.evidence.cgroup_oom_kills is None:
            return self._host_oom(
                "it was killed (SIGKILL) without a Python error, as the kernel's OOM killer does"
            )
        if number == signal.SIGKILL:
            return self._plain(
                FailureKind.ENGINE_CRASH, "it was killed (SIGKILL), but not by the OOM killer", KILLED
            )
        name = signal.Signals(number).name
        if number == signal.SIGILL:
            return self._plain(
                FailureKind.BROKEN_INSTALLATION, "it was built for another processor (SIGILL)", ILLEGAL
            )
        if number in STOPPING_SIGNALS:
            return self._plain(FailureKind.OTHER, f"it was told to stop from outside ({name})", STOPPED)
        return self._plain(
            FailureKind.ENGINE_CRASH, f"it died by {name}", BUS_ERROR if name == "SIGBUS" else ""
        )

    def _mentioned(self) -> Failure | None:
        cause = self._cause
        if cause is None or (cause.finding.kind is None and self._watched_kind() is not None):
            return None
        return self._by_exception(cause)

    def _watched_kind(self) -> FailureKind | None:
        """What the worker saw from outside."""
        if self.evidence.startup_timed_out:
            return FailureKind.STARTUP_TIMEOUT
        return FailureKind.ENGINE_CRASH if self.evidence.stalled_s is not None else None

    def _watched(self) -> Failure | None:
        evidence = self.evidence
        match self._watched_kind():
            case FailureKind.STARTUP_TIMEOUT:
                limit = f" ({evidence.startup_timeout_s:g} s)" if evidence.startup_timeout_s else ""
                return self._plain(FailureKind.STARTUP_TIMEOUT, f"it did not answer within the limit{limit}")
            case FailureKind.ENGINE_CRASH:
                return self._plain(
                    FailureKind.ENGINE_CRASH, f"it hangs: no token for {evidence.stalled_s:g} s"
                )
            case _:
                return self._unexplained() or self._overloaded()

    def _unexplained(self) -> Failure | None:
        code = self.evidence.exit_code
        if self.ended and code in {CANNOT_RUN, NOT_FOUND}:
            return self._plain(
                FailureKind.BROKEN_INSTALLATION, f"its command cannot be run (exit code {code})"
            )
        if self.died:
            kind = FailureKind.OTHER if self.evidence.phase is Phase.STARTING else FailureKind.ENGINE_CRASH
            return self._plain(kind, "the engine behind the API server died, and the log does not say why")
        if self.ended:
            return self._plain(
                FailureKind.OTHER, f"it ended with exit code {code}, and the log does not say why"
            )
        never_ready = self.evidence.phase is Phase.STARTING and not any(
            READY in line.text for line in self.lines
        )
        if code == 0 and never_ready and not self._stopped_on_purpose:
            return self._plain(FailureKind.OTHER, "it ended by itself before it was ready")
        return None

    def _overloaded(self) -> Failure | None:
        refused, requests = self.evidence.refused_requests, self.evidence.requests
        if refused * 2 <= requests or not refused:
            return None
        return self._plain(FailureKind.SERVER_OVERLOADED, f"{refused} of {requests} requests were refused")

    # -------------------------------------------------------------- putting it into words

    def _by_exception(self, cause: Suspect) -> Failure:
        finding = cause.finding
        numbers = self._numbers(cause)
        standing = stand(finding, numbers, self.evidence)
        told = finding.raised.message.strip()
        shown = told if finding.raised.name in UNNAMED else f"{finding.raised.name}: {told}"
        return self._failure(
            finding.kind or FailureKind.OTHER,
            standing,
            message=f"{headline(finding, self.evidence)}: {shown}",
            advice=advise(finding, standing, numbers, self.evidence),
            numbers=numbers,
            excerpt=excerpt_of(self.lines, finding.chain),
        )

    def _numbers(self, cause: Suspect) -> dict[str, float]:
        numbers = numbers_in(cause.finding.raised.message)
        if (
            cause.finding.kind is FailureKind.OOM_DEVICE
        ):  # an OOM in another's wrapping keeps its figures inside
            for raised in cause.finding.chain.raised:
                numbers = numbers_in(raised.message) | numbers
        return numbers

    def _host_oom(self, told: str) -> Failure:
        return self._failure(
            FailureKind.OOM_HOST,
            stand_host_oom(self.evidence),
            message=f"{HEADLINES[FailureKind.OOM_HOST]}: {told}",
            advice=advise_host_oom(self.evidence),
            numbers={},
            excerpt=tail_of(self.lines),
        )

    def _plain(self, kind: FailureKind, told: str, advice: str = "") -> Failure:
        return self._failure(
            kind,
            STANDINGS[kind],
            message=f"{HEADLINES[kind]}: {told}",
            advice=advice or TEXTS[kind],
            numbers={} if self.evidence.stalled_s is None else {"stalled_s": self.evidence.stalled_s},
            excerpt=tail_of(self.lines),
        )

    def _failure(
        self,
        kind: FailureKind,
        standing: Standing,
        *,
        message: str,
        advice: str,
        numbers: Mapping[str, float],
        excerpt: tuple[str, ...],
    ) -> Failure:
        return Failure(
            kind=kind,
            verdict=standing.verdict,
            retryable=standing.retryable,
            fatal=standing.fatal,
            phase=self.evidence.phase,
            message=without_secrets(message)[:MAX_MESSAGE_CHARS],
            advice=without_secrets(advice),
            numbers=dict(numbers),
            excerpt=excerpt,
            exit_code=self.evidence.exit_code,
        )

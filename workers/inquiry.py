"""Why an attempt has no measurement: gathers the evidence, has it classified, words what is unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.protocol import Assignment, Failure, FailureKind, Phase, Verdict
from workers.engines.base import Engine, EngineUnreadableError
from workers.failures import Evidence, classify
from workers.gpu import Gpu, memory_used_bytes
from workers.host import oom_kills
from workers.load.prompts import longest_request
from workers.load.records import TIMEOUT
from workers.measure import Figures

__all__ = ["Inquiry"]

TOO_SLOW_SHARE = 0.05
"""With more requests than this timed out, the 95th percentile is unknown: the load is beyond the engine."""

REFUSED = ("http_429", "http_503")
EXCERPT_LINES = 40


class Inquiry:
    """Answers for one attempt; make it before the engine starts.

    Attributes:
        phase: what the attempt is doing.
    """

    def __init__(self, assignment: Assignment, engine: Engine, gpus: tuple[Gpu, ...]) -> None:
        self.phase = Phase.STARTING
        self._assignment = assignment
        self._engine = engine
        self._gpu_memory_total_bytes = max((gpu.memory_bytes for gpu in gpus), default=None)
        self._gpu_memory_used_before_bytes = memory_used_bytes(gpus)
        self._oom_kills_before = oom_kills()

    # ------------------------------------------------------------ the engine's end

    def ended(self, code: int) -> Failure:
        """The engine's process has ended by itself."""
        doing = self.phase.value.replace("_", " ")
        return self._explain(
            self._evidence(), FailureKind.ENGINE_CRASH, f"the engine ended with code {code} while {doing}"
        )

    def not_ready(self, limit_s: float) -> Failure:
        """The engine was not ready in time."""
        evidence = replace(self._evidence(), startup_timed_out=True, startup_timeout_s=limit_s)
        return self._explain(
            evidence, FailureKind.STARTUP_TIMEOUT, f"the engine was not ready after {limit_s:g} s"
        )

    def stalled(self, seconds: float) -> Failure:
        """Requests are open and no token came for so long."""
        evidence = replace(self._evidence(), stalled_s=seconds)
        return self._explain(evidence, FailureKind.ENGINE_CRASH, f"no token for {seconds:.0f} s")

    def dead(self) -> Failure:
        """The API server says that the engine behind it is dead."""
        message = "the engine behind the API server is dead"
        return self._explain(self._evidence(), FailureKind.ENGINE_CRASH, message)

    def look(self) -> Failure | None:
        """Whether the log explains why requests fail."""
        return classify(self._evidence())

    def unreadable(self, error: EngineUnreadableError) -> Failure:
        """The ready engine does not tell what is needed of it."""
        return self._failure(FailureKind.OTHER, str(error), excerpt=self._engine.log_lines())

    # ------------------------------------------------------------ the workload

    def too_long(self, limit: int | None) -> Failure | None:
        """Whether the workload's longest request is longer than the engine takes."""
        longest = longest_request(self._assignment.workload.prompts)
        if limit is None or longest <= limit:
            return None
        chosen = "max_model_len" in self._assignment.knobs
        failure = self._failure(
            FailureKind.INVALID_CONFIG,
            f"the workload's longest request has {longest} tokens, and max_model_len is {limit}",
            advice=f"set max_model_len to {longest} or more, or shorten the workload's prompts and outputs",
        )
        verdict = Verdict.INFEASIBLE if chosen else Verdict.FAILED
        numbers = {"longest_request_tokens": float(longest), "max_model_len_tokens": float(limit)}
        return failure.model_copy(
            update={"verdict": verdict, "retryable": False, "fatal": not chosen, "numbers": numbers}
        )

    def too_many_errors(self, figures: Figures, drain_s: float, last_error: str) -> Failure | None:
        """Whether so many requests failed that there is nothing to report."""
        if figures.errors:
            refused = sum(figures.errors.get(kind, 0) for kind in REFUSED)
            failure = classify(replace(self._evidence(), refused_requests=refused, requests=figures.due))
            if failure is not None:
                return failure
        late = figures.errors.get(TIMEOUT, 0)
        if late > TOO_SLOW_SHARE * figures.due:
            return self._overloaded(late, figures.due, drain_s)
        return None if figures.samples["e2e"] else self._nothing_completed(figures, last_error)

    def _overloaded(self, late: int, due: int, drain_s: float) -> Failure:
        failure = self._failure(
            FailureKind.SERVER_OVERLOADED,
            f"{late} of the window's {due} requests had no answer {drain_s:g} s after it",
            advice="this configuration cannot carry the load: allow more sequences or tokens per step",
        )
        numbers = {"timed_out_requests": float(late), "requests": float(due)}
        return failure.model_copy(
            update={"verdict": Verdict.INFEASIBLE, "retryable": False, "numbers": numbers}
        )

    def _nothing_completed(self, figures: Figures, last_error: str) -> Failure:
        if not figures.due:
            window_s = self._assignment.workload.measure_s
            message = f"no request was due in the {window_s:g} s of the window"
            failure = self._failure(FailureKind.OTHER, message, advice="lengthen workload.measure_s")
            return failure.model_copy(update={"retryable": False})
        kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(figures.errors.items()))
        message = f"all {figures.due} requests of the window failed: {kinds}; the last one: {last_error}"
        return self._failure(FailureKind.OTHER, message, excerpt=self._engine.log_lines())

    # ------------------------------------------------------------ the evidence

    def _evidence(self) -> Evidence:
        return Evidence(
            phase=self.phase,
            exit_code=self._engine.exit_code,
            log_lines=self._engine.log_lines(),
            gpu_memory_used_before_bytes=self._gpu_memory_used_before_bytes,
            gpu_memory_total_bytes=self._gpu_memory_total_bytes,
            cgroup_oom_kills=self._oom_kills(),
            knobs=frozenset(self._assignment.knobs),
            args=self._assignment.args,
            env=self._assignment.env,
        )

    def _oom_kills(self) -> int | None:
        now, before = oom_kills(), self._oom_kills_before
        return now - before if now is not None and before is not None else None

    def _explain(self, evidence: Evidence, kind: FailureKind, message: str) -> Failure:
        """What the evidence says, else the plain fact: an unknown failure stays unknown."""
        return classify(evidence) or self._failure(kind, message, excerpt=evidence.log_lines)

    def _failure(
        self, kind: FailureKind, message: str, *, advice: str = "", excerpt: Sequence[str] = ()
    ) -> Failure:
        return Failure(
            kind=kind,
            verdict=Verdict.FAILED,
            retryable=True,
            fatal=False,
            phase=self.phase,
            message=message,
            advice=advice,
            excerpt=tuple(excerpt[-EXCERPT_LINES:]),
            exit_code=self._engine.exit_code,
        )

"""Verdicts that the worker words itself, because no log line holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.workers.conftest import AssignmentMaker
from tuner.protocol import FailureKind, Phase, Verdict
from workers.engines.base import EngineDescription, EngineUnreadableError
from workers.inquiry import Inquiry
from workers.load.prompts import Vocabulary
from workers.load.records import TIMEOUT, Record, Window
from workers.measure import Figures, measure

WINDOW = Window(0.0, 10.0)


@dataclass
class QuietEngine:
    """An engine that runs, and whose log says nothing of a failure."""

    url: str = "http://127.0.0.1:9"
    argv: Sequence[str] = ("python",)
    env: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None

    async def start(self) -> None: ...

    async def wait(self) -> int:
        return 0

    async def health(self) -> int | None:
        return 200

    async def describe(self) -> EngineDescription:
        return EngineDescription(None, "m", None, {}, Vocabulary([1]))

    async def metrics(self) -> str | None:
        return None

    def log_lines(self) -> list[str]:
        return ["INFO all is well"]

    async def stop(self, *, at_once: bool = False) -> None: ...


@pytest.fixture
def inquiry(assignment: AssignmentMaker) -> Inquiry:
    inquiry = Inquiry(assignment(), QuietEngine(), ())
    inquiry.phase = Phase.MEASURING
    return inquiry


def figures(*, good: int = 0, **errors: int) -> Figures:
    """Of a window with so many good requests, and so many errors of each kind."""
    records = [Record(1.0, 5, 1, 1.0, [2.0], 2.1, 1) for _ in range(good)]
    records += [Record(1.0, error=kind, detail="why") for kind, count in errors.items() for _ in range(count)]
    return measure(records, WINDOW)


class TestTimeouts:
    def test_of_a_few_requests_are_part_of_the_measurement(self, inquiry: Inquiry) -> None:
        assert inquiry.too_many_errors(figures(good=95, timeout=5), 60.0, "") is None

    def test_of_many_mean_that_the_configuration_cannot_carry_the_load(self, inquiry: Inquiry) -> None:
        failure = inquiry.too_many_errors(figures(good=90, **{TIMEOUT: 10}), 60.0, "")
        assert failure is not None
        assert failure.kind is FailureKind.SERVER_OVERLOADED
        assert (failure.verdict, failure.retryable) == (Verdict.INFEASIBLE, False)
        assert failure.numbers == {"timed_out_requests": 10.0, "requests": 100.0}
        assert "10 of the window's 100 requests had no answer 60 s after it" in failure.message


class TestErrors:
    def test_beside_good_requests_are_part_of_the_measurement(self, inquiry: Inquiry) -> None:
        assert inquiry.too_many_errors(figures(good=50, connection=2), 60.0, "reset") is None

    def test_alone_are_a_failure_that_quotes_the_last_one(self, inquiry: Inquiry) -> None:
        failure = inquiry.too_many_errors(figures(connection=2, garbage=1), 60.0, "reset by peer")
        assert failure is not None
        assert failure.message == (
            "all 3 requests of the window failed: 2 × connection, 1 × garbage; the last one: reset by peer"
        )
        assert failure.retryable


class TestAWindow:
    def test_in_which_nothing_was_due_is_too_short(self, inquiry: Inquiry) -> None:
        failure = inquiry.too_many_errors(figures(), 60.0, "")
        assert failure is not None
        assert "no request was due" in failure.message
        assert failure.advice == "lengthen workload.measure_s"
        assert not failure.retryable


class TestAnUnknownFailure:
    def test_stays_unknown_but_keeps_the_log(self, inquiry: Inquiry) -> None:
        failure = inquiry.unreadable(EngineUnreadableError("it does not tell"))
        assert (failure.kind, failure.verdict) == (FailureKind.OTHER, Verdict.FAILED)
        assert failure.excerpt == ("INFO all is well",)

    def test_of_a_dead_engine_names_the_phase(self, inquiry: Inquiry) -> None:
        failure = inquiry.dead()
        assert failure.verdict is Verdict.FAILED
        assert failure.phase is Phase.MEASURING


class TestTheLongestRequest:
    @pytest.mark.parametrize("limit", [None, 28, 4096])
    def test_that_fits_is_no_failure(self, inquiry: Inquiry, limit: int | None) -> None:
        assert inquiry.too_long(limit) is None

"""The figures of a window, against values computed by hand."""

from __future__ import annotations

import pytest

from workers.load.records import Record, Window
from workers.measure import Samples, measure, statistic

WINDOW = Window(opened=10.0, closed=20.0)


def answered(due: float, *chunks: float, tokens: int, prompt: int = 5, sent: float | None = None) -> Record:
    return Record(
        due=due,
        sent=due if sent is None else sent,
        chunks=list(chunks),
        ended=chunks[-1] + 0.01,
        prompt_tokens=prompt,
        wanted_tokens=tokens,
        output_tokens=tokens,
    )


def failed(due: float, kind: str, *chunks: float) -> Record:
    return Record(due=due, sent=due, chunks=list(chunks), ended=None, error=kind, detail="why")


class TestTokens:
    def test_count_where_they_were_delivered_not_where_the_request_ended(self) -> None:
        # 4 chunks of 3 tokens each; two of them lie inside the window.
        record = answered(8.0, 9.0, 9.5, 10.0, 12.0, tokens=12)
        assert measure([record], WINDOW).metrics["output_tokens_per_s"] == pytest.approx(0.6)

    def test_of_a_request_that_ends_after_the_window_count_too(self) -> None:
        record = answered(19.0, 19.5, 20.0, 21.0, tokens=3)
        assert measure([record], WINDOW).metrics["output_tokens_per_s"] == pytest.approx(0.1)

    def test_are_those_of_usage_not_the_number_of_chunks(self) -> None:
        record = answered(11.0, 12.0, 13.0, tokens=100)
        assert measure([record], WINDOW).metrics["output_tokens_per_s"] == pytest.approx(10.0)

    def test_of_a_request_without_usage_do_not_count(self) -> None:
        assert measure([failed(11.0, "connection", 12.0)], WINDOW).metrics["output_tokens_per_s"] == 0.0

    def test_of_the_prompt_count_at_the_first_token(self) -> None:
        inside = answered(9.0, 10.5, tokens=1, prompt=70)
        before = answered(9.0, 9.9, 10.5, tokens=2, prompt=1000)
        metrics = measure([inside, before], WINDOW).metrics
        assert metrics["input_tokens_per_s"] == pytest.approx(7.0)
        assert metrics["total_tokens_per_s"] == pytest.approx(7.0 + 0.2)


class TestLatencies:
    def test_are_measured_from_what_their_definitions_say(self) -> None:
        record = answered(11.0, 12.5, 13.0, 14.5, tokens=5, sent=12.0)
        metrics = measure([record], WINDOW).metrics
        assert metrics["ttft_p50_s"] == pytest.approx(0.5)  # first - sent
        assert metrics["e2e_p50_s"] == pytest.approx(3.5)  # last - due
        assert metrics["tpot_p50_s"] == pytest.approx(0.5)  # (14.5 - 12.5) / 4
        assert metrics["itl_mean_s"] == pytest.approx(1.0)  # 0.5 and 1.5

    def test_come_from_the_requests_due_inside_the_window(self) -> None:
        records = [
            answered(9.9, 15.0, tokens=1),
            answered(19.9, 25.0, tokens=1),
            answered(20.0, 20.1, tokens=1),
        ]
        figures = measure(records, WINDOW)
        assert figures.metrics["e2e_mean_s"] == pytest.approx(5.1)
        assert figures.samples["e2e"] == figures.due == 1

    def test_of_one_token_have_no_time_per_token(self) -> None:
        metrics = measure([answered(11.0, 12.0, tokens=1)], WINDOW).metrics
        assert [name for name in metrics if name.startswith(("tpot", "itl"))] == []


class TestErrors:
    def test_are_counted_by_kind_and_never_are_a_latency(self) -> None:
        records = [
            answered(11.0, 12.0, tokens=1),
            failed(12.0, "http_503"),
            failed(13.0, "http_503"),
            failed(14.0, "connection"),
            failed(25.0, "http_500"),
        ]
        figures = measure(records, WINDOW)
        assert figures.errors == {"http_503": 2, "connection": 1}
        assert figures.metrics["error_rate"] == pytest.approx(0.75)
        assert figures.metrics["e2e_p99_s"] == pytest.approx(1.0)
        assert figures.requests == 1

    def test_by_timeout_are_longer_than_all_others_so_what_they_decide_is_absent(self) -> None:
        records = [answered(11.0, 12.0 + n, tokens=1) for n in range(9)] + [failed(12.0, "timeout")]
        metrics = measure(records, WINDOW).metrics
        assert metrics["e2e_p90_s"] == pytest.approx(9.0)
        assert "e2e_p95_s" not in metrics
        assert "e2e_mean_s" not in metrics

    def test_by_timeout_after_the_first_token_still_have_a_first_token(self) -> None:
        metrics = measure([failed(12.0, "timeout", 13.5)], WINDOW).metrics
        assert metrics["ttft_p99_s"] == pytest.approx(1.5)
        assert "e2e_p50_s" not in metrics


class TestRequestsPerSecond:
    def test_counts_completions_inside_the_window(self) -> None:
        records = [
            answered(5.0, 10.5, tokens=1),
            answered(15.0, 16.0, tokens=1),
            answered(19.0, 21.0, tokens=1),
        ]
        figures = measure(records, WINDOW)
        assert figures.requests == 2
        assert figures.metrics["requests_per_s"] == pytest.approx(0.2)


class TestNothing:
    def test_observed_is_absent_not_zero(self) -> None:
        metrics = measure([], WINDOW).metrics
        assert metrics.keys() == {
            "output_tokens_per_s",
            "input_tokens_per_s",
            "total_tokens_per_s",
            "requests_per_s",
        }


class TestAPercentile:
    @pytest.mark.parametrize(("name", "value"), [("p50", 50.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0)])
    def test_is_the_smallest_value_that_so_many_do_not_exceed(self, name: str, value: float) -> None:
        assert statistic(Samples([float(n) for n in range(100, 0, -1)]), name) == value

    def test_of_few_samples_is_one_of_them(self) -> None:
        assert statistic(Samples([3.0, 1.0, 2.0]), "p50") == 2.0
        assert statistic(Samples([3.0, 1.0, 2.0]), "p99") == 3.0

    def test_of_nothing_is_nothing(self) -> None:
        assert statistic(Samples(), "p50") is None
        assert statistic(Samples(), "mean") is None

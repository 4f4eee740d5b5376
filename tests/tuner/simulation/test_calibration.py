"""The fit finds what made the data, and the committed calibration is close to what was measured."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulator_validation import SPREAD, as_generator_counts, ranked, simulate
from tuner.simulation.calibration import FILE, PRIOR_SPREAD, Calibration, calibrated, fit
from tuner.simulation.engine import Client, Exchange, Trace
from tuner.simulation.scheduler import Request

DOCUMENT = json.loads(FILE.read_text())
POINTS = {point["id"]: point for point in DOCUMENT["points"]}
# One of each regime. s00 is left out: docs/simulator.md tells why it cannot be met.
EXAMPLES = ("p_default7b", "s01", "s02", "s06", "s08", "s17", "seqs16")


class TestFit:
    def test_it_finds_what_made_the_data(self) -> None:
        weights = np.random.default_rng(0).normal(size=(40, len(PRIOR_SPREAD)))
        truth = Calibration().with_figures(Calibration().figures() + 0.1)
        found = fit(lambda at: [weights @ (at.figures() - truth.figures()) / 0.001])
        np.testing.assert_allclose(found.figures(), truth.figures(), atol=1e-3)

    def test_what_no_measurement_touches_stays_at_its_prior(self) -> None:
        found = fit(lambda at: [np.array([(at.figures()[0] - 1.0) / 0.001])])
        np.testing.assert_allclose(found.figures()[1:], Calibration().figures()[1:])

    def test_one_odd_value_does_not_bend_the_rest(self) -> None:
        at_prior = Calibration().figures()[0]
        odd = np.array([0.0] * 9 + [30.0])
        found = fit(lambda at: [(at.figures()[0] - at_prior) / 0.01 - odd])
        assert abs(found.figures()[0] - at_prior) < 0.01


class TestCommittedCalibration:
    def test_it_reads_back(self) -> None:
        assert calibrated().to_dict() == DOCUMENT["calibration"]

    def test_efficiencies_are_shares_of_a_peak(self) -> None:
        costs = calibrated().efficiencies
        assert all(
            0.0 < share < 1.0
            for share in (costs.weights, costs.kv, costs.kv_fp8, costs.compute, costs.attention)
        )

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_it_meets_what_was_measured(self, name: str) -> None:
        point = POINTS[name]
        seen = simulate(point, calibrated())
        for metric in ("server_tokens_per_s", "tpot_p50_s", "e2e_p95_s"):
            if metric in point["measured"]:
                assert seen[metric] == pytest.approx(point["measured"][metric], rel=0.10)

    @pytest.mark.parametrize("name", ["p_default7b", "s08"])
    def test_preemptions_are_about_as_many_as_on_the_gpu(self, name: str) -> None:
        seen = simulate(POINTS[name], calibrated())["preemptions"]
        assert seen == pytest.approx(POINTS[name]["measured"]["preemptions"], rel=0.35)


class TestFiguresOfTheMeasurements:
    """By hand: the load generator of the measurements counts differently from this project."""

    def test_requests_that_end_in_the_window_are_credited_whole(self) -> None:
        requests = [Request(number, 10, 5) for number in range(3)]
        trace = Trace(blocks_total=1, ends_s=[1.0, 6.0, 20.0], preempted=[0, 1, 9])
        trace.emitted = [7, 5, 3]
        trace.exchanges = [
            Exchange(requests[0], 0.0, 0.0, 1.0, 4.0),
            Exchange(requests[1], 0.0, 0.0, 2.0, 6.0),
            Exchange(requests[2], 4.0, 4.0, 6.0, 20.0),
        ]
        figures = as_generator_counts(trace, {"warmup_s": 5.0, "measure_s": 10.0})
        assert figures["completed_tokens_per_s"] == 0.5
        assert figures["server_tokens_per_s"] == 12 / 15.0
        assert figures["preemptions"] == 1
        assert (figures["tpot_p50_s"], figures["ttft_p50_s"], figures["e2e_p95_s"]) == (1.0, 2.0, 6.0)

    def test_its_percentile_is_the_value_at_that_share(self) -> None:
        assert ranked([3.0, 1.0, 2.0, 4.0], 0.5) == 3.0
        assert ranked([1.0], 0.95) == 1.0

    def test_every_measured_metric_has_a_weight(self) -> None:
        assert {name for point in POINTS.values() for name in point["measured"]} - set(SPREAD) == {
            "preemptions"
        }


def test_an_api_server_that_is_slower_is_part_of_the_calibration() -> None:
    slower = replace(Calibration(), client=Client(ingest_s=0.5))
    assert Calibration().with_figures(slower.figures()).client.ingest_s == pytest.approx(0.5)

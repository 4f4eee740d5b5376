"""Rules of thumb: whole points of whatever space there is, near what the workload asks for."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.trial import create_trial

from tests.tuner.conftest import spec_with
from tuner.initial import rule_points
from tuner.space import build_space
from tuner.spec import StudySpec

POISSON = {
    "prompts": {"input_tokens": 256, "output_tokens": 64},
    "arrivals": {"kind": "poisson", "rate_per_s": 3.0},
}


def points(spec: StudySpec) -> dict[str, dict[str, Any]]:
    return dict(rule_points(spec, build_space(spec)))


def test_users_of_a_closed_loop_all_run() -> None:
    point = points(spec_with())["rule:every-user-runs"]
    assert (point["max_num_seqs"], point["max_num_batched_tokens"]) == (64, 8192)


def test_open_loop_has_room_for_ten_seconds_of_arrivals() -> None:
    assert points(spec_with(workload=POISSON))["rule:every-user-runs"]["max_num_seqs"] == 32


def test_slots_follow_the_tokens_of_a_step() -> None:
    point = points(spec_with(workload=POISSON))["rule:seqs-follow-tokens"]
    assert point["max_num_batched_tokens"] == 2048
    assert point["max_num_seqs"] == 8  # 1.25 * 2048 / 256 = 10, and the grid has 8


def test_other_knobs_stay_at_vllms_usual_values() -> None:
    point = points(spec_with())["rule:every-user-runs"]
    assert (point["gpu_memory_utilization"], point["enforce_eager"]) == (0.9, False)


def test_space_without_the_schedulers_knobs_has_no_rules() -> None:
    assert points(spec_with({"enforce_eager": [False, True]})) == {}


@pytest.mark.parametrize(
    "knobs",
    [
        {"max_num_seqs": [3, 5], "dtype": ["half", "bfloat16"]},
        {"max_num_seqs": {"low": 1000, "high": 1024}, "OMP_NUM_THREADS": {"low": 1, "high": 8}},
        {"max_num_batched_tokens": {"low": 512, "high": 30_001}},
        {"max_num_batched_tokens": {"low": 10_000, "high": 40_001}, "max_num_seqs": [1]},
        {"max_num_seqs": [4, 8], "kv_cache_memory_bytes": {"low": 10**9, "high": 10**11, "log": True}},
        {"max_num_seqs": [4, 8], "cpu_offload_gb": {"low": 0, "high": 3}},
        {"max_num_seqs": ["1K"], "stream_interval": [4, 16]},
    ],
)
def test_rules_are_whole_points_of_any_space(knobs: dict[str, Any]) -> None:
    spec = spec_with(knobs)
    space = build_space(spec)
    for point in points(spec).values():
        assert space.contains(point)
        assert space.snap(point) == point
        # Optuna checks types and bounds again; a float among whole numbers would end at vLLM's parser.
        assert create_trial(values=[0.0], params=point, distributions=space.distributions()).params == point


def test_knob_without_a_grid_takes_the_rules_number() -> None:
    spec = spec_with({"max_num_batched_tokens": {"low": 512, "high": 30_000}})
    point = points(spec)["rule:seqs-follow-tokens"]
    assert point == {"max_num_batched_tokens": 2048}

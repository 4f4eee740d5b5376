"""The space: grids, snapping, what vLLM is started with, and what may not be a knob."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, IntDistribution

from tests.tuner.conftest import document, spec_with
from tuner.errors import FieldError
from tuner.space import Domain, build_space
from tuner.spec import parse_study


def grid_of(knob: Any, name: str = "max_num_seqs") -> tuple[object, ...] | None:
    return build_space(spec_with({name: knob})).domains[0].grid


@pytest.mark.parametrize(
    ("knob", "grid"),
    [
        ({"low": 8, "high": 100, "step": "pow2"}, (8, 16, 32, 64)),
        ({"low": 16, "high": 64, "step": 16}, (16, 32, 48, 64)),
        ({"low": 1, "high": 4}, (1, 2, 3, 4)),
        ([4, 2], (4, 2)),
    ],
)
def test_grid_of_a_whole_number(knob: object, grid: tuple[int, ...]) -> None:
    assert grid_of(knob) == grid


def test_steps_of_a_float_are_round() -> None:
    grid = grid_of({"low": 0.85, "high": 0.95, "step": 0.01}, "gpu_memory_utilization")
    assert grid == (0.85, 0.86, 0.87, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95)


def test_powers_of_two_are_searched_on_a_log_scale_and_stored_as_they_are() -> None:
    space = build_space(spec_with({"max_num_batched_tokens": {"low": 512, "high": 16384, "step": "pow2"}}))
    assert space.distributions()["max_num_batched_tokens"] == IntDistribution(512, 16384, log=True)
    assert space.snap({"max_num_batched_tokens": 5900}) == {"max_num_batched_tokens": 8192}
    assert space.snap({"max_num_batched_tokens": 5700}) == {"max_num_batched_tokens": 4096}


def test_continuous_knob_has_no_grid_and_no_size() -> None:
    space = build_space(spec_with({"gpu_memory_utilization": {"low": 0.8, "high": 0.9}}))
    assert space.size() is None
    assert space.distributions()["gpu_memory_utilization"] == FloatDistribution(0.8, 0.9)


def test_size_counts_the_points() -> None:
    space = build_space(spec_with())
    assert space.size() == 7 * 7 * 11 * 2
    assert len({tuple(point.values()) for point in space.points()}) == space.size()


def test_split_puts_knobs_over_the_fixed_arguments_and_capitals_into_the_environment() -> None:
    spec = spec_with(
        {"max_num_seqs": [4], "VLLM_CPU_KVCACHE_SPACE": [1.0, 2.5], "enforce_eager": [True]},
        engine={"model": "m", "args": {"max_model_len": 4096}, "env": {"OMP_NUM_THREADS": "2"}},
    )
    args, env = build_space(spec).split(
        {"max_num_seqs": 4, "VLLM_CPU_KVCACHE_SPACE": 1.0, "enforce_eager": True}
    )
    assert args == {"max_model_len": 4096, "max_num_seqs": 4, "enforce_eager": True}
    assert env == {"OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1"}


@given(st.integers(8, 512), st.floats(0.85, 0.95), st.booleans(), st.integers(256, 16384))
def test_what_is_snapped_is_a_point_and_stays_where_it_is(
    seqs: int, share: float, eager: bool, tokens: int
) -> None:
    space = build_space(spec_with())
    raw = {
        "max_num_seqs": seqs,
        "gpu_memory_utilization": share,
        "enforce_eager": eager,
        "max_num_batched_tokens": tokens,
    }
    point = space.snap(raw)
    assert space.contains(point)
    assert space.snap(point) == point


def test_true_is_not_one() -> None:
    space = build_space(spec_with({"enforce_eager": [False, True]}))
    assert space.contains({"enforce_eager": True})
    assert not space.contains({"enforce_eager": 1})


def test_fingerprint_changes_with_what_a_point_means() -> None:
    prints = {
        build_space(spec).fingerprint
        for spec in (
            spec_with(),
            spec_with({"max_num_seqs": [1, 2]}),
            spec_with(engine={"model": "m", "args": {"max_model_len": 4096}}),
            spec_with({"max_num_seqs": [2, 1]}),
        )
    }
    assert len(prints) == 4
    assert build_space(spec_with()).fingerprint == build_space(spec_with(budget={"trials": 3})).fingerprint


def test_preset_has_what_the_platform_has() -> None:
    on_cpu = build_space(parse_study(document(space={"preset": "balanced"}, hardware={"gpus": 0})))
    on_gpu = build_space(parse_study(document(space={"preset": "balanced"}, hardware={"gpus": 1})))
    assert "VLLM_CPU_KVCACHE_SPACE" in on_cpu.names
    assert "gpu_memory_utilization" not in on_cpu.names
    assert {"gpu_memory_utilization", "block_size", "max_num_seqs"} <= set(on_gpu.names)


def test_what_the_study_fixes_its_preset_does_not_search() -> None:
    engine = {"model": "m", "args": {"enforce_eager": True}}
    space = build_space(parse_study(document(space={"preset": "balanced"}, engine=engine)))
    assert "enforce_eager" not in space.names


@pytest.mark.parametrize(
    ("knobs", "field", "words"),
    [
        ({"max_num_seq": [1]}, "space.knobs.max_num_seq", ["did you mean max_num_seqs?"]),
        ({"max-num-seqs": [1]}, "space.knobs.max-num-seqs", ["did you mean max_num_seqs?"]),
        ({"swap_space": [1]}, "space.knobs.swap_space", ["no argument swap_space"]),
        ({"api_key": ["a"]}, "space.knobs.api_key", ["secret"]),
        ({"trust_remote_code": [True]}, "space.knobs.trust_remote_code", ["foreign code"]),
        ({"port": [1]}, "space.knobs.port", ["set by the worker"]),
        ({"LD_PRELOAD": ["x"]}, "space.knobs.LD_PRELOAD", ["may not be set"]),
        ({"VLLM_API_KEY": ["x"]}, "space.knobs.VLLM_API_KEY", ["may not be set"]),
        ({"VLLM_PLUGINS": ["x"]}, "space.knobs.VLLM_PLUGINS", ["may not be set"]),
        ({"enforce_eager": [1]}, "space.knobs.enforce_eager.choices.0", ["true or false"]),
        ({"max_num_seqs": [True]}, "space.knobs.max_num_seqs.choices.0", ["whole number"]),
        ({"max_num_seqs": {"low": 1.5, "high": 4}}, "space.knobs.max_num_seqs.low", ["whole numbers"]),
        (
            {"max_num_seqs": {"low": 33, "high": 63, "step": "pow2"}},
            "space.knobs.max_num_seqs",
            ["no power of two"],
        ),
        ({"max_num_seqs": {"low": 1, "high": 9, "step": 0.5}}, "space.knobs.max_num_seqs.step", ["whole"]),
        (
            {"kv_cache_dtype": {"low": 1, "high": 2}},
            "space.knobs.kv_cache_dtype",
            ["is not a number", "[a, b]"],
        ),
        ({}, "space.knobs", ["no knob"]),
    ],
)
def test_error_names_field_and_fix(knobs: dict[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(FieldError) as caught:
        build_space(spec_with(knobs))
    assert caught.value.field == field
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        ({"model": "m", "args": {"host": "0.0.0.0"}}, "engine.args.host"),
        ({"model": "m", "args": {"max_modle_len": 1}}, "engine.args.max_modle_len"),
        ({"model": "m", "args": {"enforce_eager": "yes"}}, "engine.args.enforce_eager"),
        ({"model": "m", "env": {"HF_TOKEN": "x"}}, "engine.env.HF_TOKEN"),
        ({"model": "m", "args": {"max_num_seqs": 4}}, "space.knobs.max_num_seqs"),
    ],
)
def test_fixed_arguments_are_checked_too(engine: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        build_space(spec_with({"max_num_seqs": [1, 2]}, engine=engine))
    assert caught.value.field == field


def test_what_is_taken_out_has_to_exist() -> None:
    with pytest.raises(FieldError, match="did you mean max_num_seqs"):
        build_space(parse_study(document(space={"preset": "balanced", "knobs": {"max_num_sqes": None}})))


def test_knob_that_is_taken_out_is_not_searched() -> None:
    knobs = {"enforce_eager": None}
    space = build_space(parse_study(document(space={"preset": "balanced", "knobs": knobs})))
    assert "enforce_eager" not in space.names


def test_whole_numbers_too_many_to_list_stay_whole() -> None:
    (domain,) = build_space(spec_with({"max_num_batched_tokens": {"low": 512, "high": 30_000}})).domains
    assert domain.grid is None
    assert (domain.contains(20_000), domain.contains(20_000.5)) == (True, False)
    assert repr(domain.snap(20_000.4)) == "20000"


@pytest.mark.parametrize(
    ("knob", "distribution"),
    [
        ({"low": 1, "high": 8}, IntDistribution(1, 8)),
        ({"low": 2, "high": 8, "step": 2}, IntDistribution(2, 8)),
        ({"low": 0.5, "high": 8}, FloatDistribution(0.5, 8.0)),
        ({"low": 0, "high": 1, "step": 0.5}, FloatDistribution(0.0, 1.0)),
    ],
)
def test_variable_with_whole_bounds_takes_whole_numbers(knob: Any, distribution: object) -> None:
    assert build_space(spec_with({"OMP_NUM_THREADS": knob})).domains[0].distribution == distribution


def test_range_of_one_number_is_one_point() -> None:
    assert build_space(spec_with({"gpu_memory_utilization": {"low": 0.9, "high": 0.9}})).size() == 1


@given(low=st.integers(1, 999), steps=st.integers(1, 50), digits=st.integers(1, 4))
def test_steps_of_a_float_are_the_decimals_that_a_person_would_write(
    low: int, steps: int, digits: int
) -> None:
    unit = 10**digits
    knob = {"low": low / unit, "high": (low + steps) / unit, "step": 1 / unit}
    grid = grid_of(knob, "cpu_offload_gb")
    assert grid == tuple((low + index) / unit for index in range(steps + 1))


def test_order_of_the_knobs_does_not_change_the_fingerprint() -> None:
    knobs = {"max_num_seqs": [1, 2], "enforce_eager": [False, True]}
    reverse = dict(reversed(knobs.items()))
    assert build_space(spec_with(knobs)).fingerprint == build_space(spec_with(reverse)).fingerprint


BOUNDS = st.one_of(st.integers(-10, 10**6), st.floats(), st.booleans())
RANGES = st.fixed_dictionaries(
    {"low": BOUNDS, "high": BOUNDS},
    optional={"step": st.one_of(st.just("pow2"), BOUNDS), "log": st.booleans()},
)
KNOBS = st.one_of(RANGES, st.lists(st.one_of(BOUNDS, st.text(max_size=3), st.none()), max_size=4))


def mistake_or_domain(name: str, knob: object) -> FieldError | Domain:
    try:
        return build_space(spec_with({name: knob})).domains[0]
    except FieldError as error:
        return error


@given(name=st.sampled_from(["max_num_seqs", "cpu_offload_gb", "enforce_eager", "OMP_X"]), knob=KNOBS)
def test_any_knob_is_a_domain_or_an_error_with_a_field(name: str, knob: object) -> None:
    found = mistake_or_domain(name, knob)
    if isinstance(found, FieldError):
        assert found.field.startswith(f"space.knobs.{name}")
        assert found.fix
    else:
        point = found.grid[-1] if found.grid else getattr(found.distribution, "high", None)
        assert found.contains(point)
        assert found.snap(point) == point


def test_human_sizes_are_whole_numbers_to_vllm() -> None:
    space = build_space(spec_with({"max_model_len": ["8K", "auto"]}))
    assert space.split({"max_model_len": "8K"})[0] == {"max_model_len": "8K"}

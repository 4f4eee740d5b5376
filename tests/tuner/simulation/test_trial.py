"""A simulated trial: deterministic, marked as simulated, and quick."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.tuner.simulation.test_models import LLAMA_31_8B
from tuner.protocol import (
    ArgValue,
    ClosedLoop,
    FailureKind,
    Infeasible,
    Length,
    Measured,
    Measurement,
    Poisson,
    SyntheticPrompts,
    Workload,
)
from tuner.simulation import (
    GPUS,
    Arguments,
    Batch,
    CompileCache,
    MemoryFigures,
    ModelShape,
    Noise,
    Simulator,
    calibrated,
)

GIB = float(1 << 30)
CHAT = Workload(
    prompts=SyntheticPrompts(
        input_tokens=Length(mean=512, stdev=150), output_tokens=Length(mean=128, stdev=40)
    ),
    arrivals=ClosedLoop(concurrency=128),
    warmup_s=10.0,
    measure_s=50.0,
)


class PlainMemory:
    """Weights of 15 GiB, two for everything else, the rest is KV cache; off by half a GiB."""

    def figures(self, args: Mapping[str, ArgValue]) -> MemoryFigures:
        budget_bytes = float(args.get("gpu_memory_utilization", 0.92)) * 139.8 * GIB
        return MemoryFigures(
            total_bytes=139.8 * GIB,
            budget_bytes=budget_bytes,
            profile_bytes=17 * GIB,
            kv_bytes=budget_bytes - 17 * GIB,
            serving_bytes=budget_bytes + 1 * GIB,
            stdev_bytes=0.5 * GIB,
        )


SIMULATOR = Simulator(
    GPUS["H200"], ModelShape.from_config(LLAMA_31_8B, name="8b"), PlainMemory(), calibrated()
)


def measured(
    simulator: Simulator = SIMULATOR, workload: Workload = CHAT, seed: int = 1, **args: Any
) -> Measurement:
    outcome = simulator.run({"max_model_len": 4096} | args, workload, seed=seed).outcome
    assert isinstance(outcome, Measured), outcome
    return outcome.measurement


def failed(simulator: Simulator = SIMULATOR, workload: Workload = CHAT, **args: Any) -> FailureKind:
    outcome = simulator.run({"max_model_len": 4096} | args, workload, seed=1).outcome
    assert isinstance(outcome, Infeasible), outcome
    return outcome.failure.kind


class TestDeterminism:
    def test_the_same_seed_gives_the_same_trial(self) -> None:
        assert SIMULATOR.run({}, CHAT, seed=3) == SIMULATOR.run({}, CHAT, seed=3)

    def test_another_seed_gives_other_noise_about_the_same_figures(self) -> None:
        rates = [measured(seed=seed).metrics["output_tokens_per_s"] for seed in range(8)]
        assert len(set(rates)) == 8
        assert max(rates) / min(rates) < 1.08

    def test_without_noise_the_seed_does_not_matter(self) -> None:
        quiet = replace(SIMULATOR, noise=Noise.none())
        assert measured(quiet, seed=1).metrics == measured(quiet, seed=2).metrics


class TestProvenance:
    def test_a_measurement_says_that_it_is_simulated(self) -> None:
        provenance = measured(stream_interval=4).provenance
        assert provenance["simulated"] is True
        assert provenance["gpu_calibrated"] is True
        assert provenance["unmodelled_args"] == ["stream_interval"]

    def test_figures_of_another_gpu_are_not_calibrated(self) -> None:
        other = replace(SIMULATOR, gpu=GPUS["H100"])
        assert measured(other).provenance["gpu_calibrated"] is False

    def test_defaults_are_reported_as_resolved(self) -> None:
        assert measured().resolved_args["max_num_batched_tokens"] == 8192


class TestSense:
    def test_a_trial_of_a_minute_takes_well_under_a_second(self) -> None:
        began_s = time.process_time()
        measured()
        assert time.process_time() - began_s < 1.0

    def test_few_places_are_slower_in_all_and_quicker_for_each(self) -> None:
        few, many = measured(max_num_seqs=8).metrics, measured(max_num_seqs=256).metrics
        assert few["output_tokens_per_s"] < 0.5 * many["output_tokens_per_s"]
        assert few["tpot_p50_s"] < 0.5 * many["tpot_p50_s"]

    def test_a_small_budget_smooths_the_gaps(self) -> None:
        small, large = (
            measured(max_num_batched_tokens=512).metrics,
            measured(max_num_batched_tokens=16384).metrics,
        )
        assert small["itl_p99_s"] < large["itl_p99_s"]

    def test_eager_costs_most_where_batches_are_small(self) -> None:
        def cost(users: int) -> float:
            load = CHAT.model_copy(update={"arrivals": ClosedLoop(concurrency=users)})
            eager, graphs = (
                measured(workload=load, enforce_eager=flag).metrics["tpot_p50_s"] for flag in (True, False)
            )
            return eager / graphs

        assert cost(2) > 1.5
        assert cost(256) < 1.1

    def test_preemptions_fall_as_the_cache_of_a_busy_engine_grows(self) -> None:
        shares = (0.16, 0.175, 0.19, 0.3)
        preemptions = [measured(gpu_memory_utilization=share).metrics["preemptions"] for share in shares]
        assert preemptions == sorted(preemptions, reverse=True)
        assert preemptions[0] > 0 == preemptions[-1]

    def test_a_shared_prefix_pays_with_prefix_caching_only(self) -> None:
        prompts = CHAT.prompts.model_copy(update={"shared_prefix_tokens": 400})
        load = CHAT.model_copy(update={"prompts": prompts})
        with_cache, without = (
            measured(workload=load, enable_prefix_caching=flag).metrics["output_tokens_per_s"]
            for flag in (True, False)
        )
        assert with_cache > 1.2 * without

    def test_other_step_times_can_be_plugged_in(self) -> None:
        class TenMilliseconds:
            def __init__(self, _: Arguments) -> None: ...

            def step_s(self, _: Batch) -> float:
                return 0.01

        simulator = replace(SIMULATOR, step_times=TenMilliseconds, noise=Noise.none())
        measurement = measured(simulator)
        assert measurement.metrics["itl_p50_s"] == pytest.approx(0.01, rel=0.05)
        assert measurement.provenance["step_times"] == "given"


class TestOutcomesWithoutMeasurement:
    def test_the_kinds(self) -> None:
        slow = CHAT.model_copy(update={"arrivals": Poisson(rate_per_s=200.0)})
        assert failed(gpu_memory_utilization=0.999) == FailureKind.MEMORY_BUDGET
        assert failed(gpu_memory_utilization=0.12) == FailureKind.KV_CACHE_TOO_SMALL
        assert failed(max_num_seqs=512, max_num_batched_tokens=256) == FailureKind.INVALID_CONFIG
        assert failed(max_model_len=1024) == FailureKind.INVALID_CONFIG
        assert failed(workload=slow, max_num_seqs=16) == FailureKind.SERVER_OVERLOADED

    def test_machines_differ_in_what_barely_fits(self) -> None:
        machines = [replace(SIMULATOR, machine_seed=seed) for seed in range(12)]
        barely = {"gpu_memory_utilization": 0.125, "max_model_len": 4096}
        started = {isinstance(machine.run(barely, CHAT, seed=1).outcome, Measured) for machine in machines}
        assert started == {True, False}


class TestCost:
    def test_a_second_start_of_one_compile_key_is_cheaper(self) -> None:
        cache = CompileCache()
        first, second = (
            SIMULATOR.run({"gpu_memory_utilization": share}, CHAT, seed=1, cache=cache)
            for share in (0.9, 0.91)
        )
        assert second.startup_s < first.startup_s - 20.0

    def test_a_measured_trial_holds_the_gpu_for_start_window_and_drain(self) -> None:
        trial = SIMULATOR.run({}, CHAT, seed=1)
        assert 0.0 < trial.elapsed_s - trial.startup_s - 60.0 < 10.0

    def test_a_refused_trial_costs_its_start_only(self) -> None:
        trial = SIMULATOR.run({"gpu_memory_utilization": 0.999}, CHAT, seed=1)
        assert trial.elapsed_s == trial.startup_s

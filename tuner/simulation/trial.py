"""One simulated trial: from a configuration to an outcome as a worker would report it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tuner.errors import FieldError
from tuner.protocol import ArgValue, Failure, FailureKind, Infeasible, Measured, Measurement, Workload
from tuner.simulation.arguments import Arguments
from tuner.simulation.blocks import BlockPool
from tuner.simulation.calibration import Calibration
from tuner.simulation.engine import TIMEOUT, Engine, Trace
from tuner.simulation.hardware import Gpu
from tuner.simulation.load import Lengths, SeededLengths, longest_request
from tuner.simulation.memory import MemoryModel, misfit
from tuner.simulation.models import ModelShape
from tuner.simulation.observation import observe
from tuner.simulation.scheduler import Batch, Scheduler
from tuner.simulation.startup import CompileCache, Startup, compile_key
from tuner.simulation.steptimes import Roofline, StepTimes
from tuner.simulation.verdicts import invalid, overloaded, too_long

__all__ = ["Noise", "SimulatedTrial", "Simulator", "serve"]

TOO_SLOW_SHARE = 0.05
"""With more requests than this timed out, the workers call the load too much for the configuration."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations of what two runs of one configuration do not share.

    Attributes:
        run: speed of a whole run; two H200s differed by 1 % on the same configuration.
        step: one step beside the next.
        startup: a whole start.
    """

    run: float = 0.01
    step: float = 0.03
    startup: float = 0.05

    @classmethod
    def none(cls) -> Noise:
        """No noise at all."""
        return cls(run=0.0, step=0.0, startup=0.0)


@dataclass(frozen=True, slots=True)
class SimulatedTrial:
    """What came of one trial, and what it would have cost.

    Attributes:
        startup_s: seconds until the engine answered or gave up.
        elapsed_s: seconds in which the GPU would have been taken, drain and stop included.
    """

    outcome: Measured | Infeasible
    startup_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class _Start:
    """An engine that has started."""

    arguments: Arguments
    kv_bytes: float
    startup_s: float

    @property
    def blocks(self) -> int:
        return int(self.kv_bytes // (self.arguments.kv_bytes_per_token * self.arguments.limits.block_size))


@dataclass(frozen=True, slots=True)
class Simulator:
    """One simulated machine with one model: a function from configurations to outcomes.

    Calls do not depend on each other, but for the compile cache that a caller may hand in.

    Attributes:
        step_times: makes the step times of one configuration; ``None`` is the calibrated roofline.
        machine_seed: seeds how far this machine's memory is off the memory model's prediction.
        warm_start: processes are forked from one that has imported vLLM.
    """

    gpu: Gpu
    model: ModelShape
    memory: MemoryModel
    calibration: Calibration
    startup: Startup = field(default_factory=Startup)
    noise: Noise = field(default_factory=Noise)
    step_times: Callable[[Arguments], StepTimes] | None = None
    machine_seed: int = 0
    warm_start: bool = False

    def run(
        self,
        args: Mapping[str, ArgValue],
        workload: Workload,
        *,
        seed: int,
        cache: CompileCache | None = None,
    ) -> SimulatedTrial:
        """Run one trial. The same arguments, workload, seed and cache give the same outcome.

        Args:
            args: vLLM's arguments; those left out have vLLM's defaults.
            workload: its seed draws lengths and arrivals.
            seed: draws the noise.
            cache: what the machine has compiled so far; a fresh machine's when not given.
        """
        draws = np.random.default_rng([seed, zlib.crc32(_canonical(args))])
        factor = _lognormal(draws, self.noise.startup)
        startup, warm = self.startup, self.warm_start
        try:
            arguments = Arguments.resolve(args, gpu=self.gpu, model=self.model)
        except FieldError as error:
            return _ended(invalid(error), factor * startup.until_validated_s(warm=warm))
        figures = self.memory.figures(args)
        deviation = float(np.random.default_rng([self.machine_seed, 3]).standard_normal())
        failure = misfit(figures, arguments, deviation)
        if failure is not None and failure.kind is FailureKind.MEMORY_BUDGET:
            return _ended(failure, factor * startup.until_engine_s(warm=warm))
        known = cache is not None and cache.hit(compile_key(arguments, self.model))
        if failure is not None:
            return _ended(
                failure, factor * startup.until_profiled_s(arguments, self.model, known=known, warm=warm)
            )
        startup_s = factor * startup.total_s(arguments, self.model, known=known, warm=warm)
        longest = longest_request(workload.prompts)
        if longest > arguments.max_model_len:
            return _ended(too_long(longest, arguments.max_model_len), startup_s)
        kv_bytes = figures.kv_bytes - deviation * figures.stdev_bytes
        return self._measure(_Start(arguments, kv_bytes, startup_s), workload, seed, draws)

    def _measure(
        self, start: _Start, workload: Workload, seed: int, draws: np.random.Generator
    ) -> SimulatedTrial:
        arguments = start.arguments
        step_s = _with_noise(self._step_times(arguments), self.noise, draws)
        lengths = SeededLengths(workload.prompts, workload.seed)
        trace = serve(arguments, start.blocks, workload, lengths, step_s, self.calibration)
        seen = observe(trace, workload)
        ended_s = start.startup_s + max([workload.warmup_s + workload.measure_s, *trace.ends_s[-1:]])
        late = seen.errors.get(TIMEOUT, 0)
        if late > TOO_SLOW_SHARE * seen.due:
            return SimulatedTrial(Infeasible(failure=overloaded(late, seen.due)), start.startup_s, ended_s)
        measurement = Measurement(
            metrics=seen.metrics | {"startup_s": start.startup_s},
            errors=seen.errors,
            requests=seen.requests,
            window_s=workload.measure_s,
            resolved_args=arguments.resolved(),
            provenance=self._provenance(arguments, start.blocks, workload, seed),
        )
        return SimulatedTrial(Measured(measurement=measurement), start.startup_s, ended_s)

    def _step_times(self, arguments: Arguments) -> StepTimes:
        if self.step_times is not None:
            return self.step_times(arguments)
        return Roofline(self.gpu, self.model, arguments.execution(), self.calibration.efficiencies)

    def _provenance(
        self, arguments: Arguments, blocks: int, workload: Workload, seed: int
    ) -> dict[str, str | int | float | bool | list[str] | dict[str, str]]:
        return {
            "simulated": True,
            "step_times": "roofline" if self.step_times is None else "given",
            "gpu": self.gpu.name,
            "gpu_calibrated": self.gpu.calibrated,
            "gpus": arguments.tensor_parallel_size,
            "model": self.model.name,
            "kv_cache_tokens": blocks * arguments.limits.block_size,
            "seed": seed,
            "workload_seed": workload.seed,
            "unmodelled_args": list(arguments.unmodelled),
        }


def serve(
    arguments: Arguments,
    blocks: int,
    workload: Workload,
    lengths: Lengths,
    step_s: Callable[[Batch], float],
    calibration: Calibration,
) -> Trace:
    """Offer a workload to a simulated engine that has so many KV blocks.

    No request may be longer than ``max_model_len``: vLLM refuses those, and they never reach the scheduler.
    """
    size = arguments.limits.block_size
    # vLLM keeps one block as the null block; a single longest request still has to fit.
    usable = max(blocks - 1, -(-arguments.max_model_len // size))
    scheduler = Scheduler(arguments.limits, BlockPool(usable, caching=arguments.prefix_caching))
    return Engine(scheduler, step_s, calibration.client).run(workload, lengths)


def _ended(failure: Failure, startup_s: float) -> SimulatedTrial:
    return SimulatedTrial(Infeasible(failure=failure), startup_s, startup_s)


def _canonical(args: Mapping[str, ArgValue]) -> bytes:
    return json.dumps(dict(args), sort_keys=True).encode()


def _lognormal(random: np.random.Generator, deviation: float) -> float:
    return float(np.exp(deviation * random.standard_normal()))


def _with_noise(step_times: StepTimes, noise: Noise, random: np.random.Generator) -> Callable[[Batch], float]:
    run = _lognormal(random, noise.run)
    factors = _factors(random, noise.step)
    return lambda batch: step_times.step_s(batch) * run * next(factors)


def _factors(random: np.random.Generator, deviation: float) -> Iterator[float]:
    while True:
        yield from np.exp(deviation * random.standard_normal(1024)).tolist()

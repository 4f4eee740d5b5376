"""What the simulator needs to know of memory, and what becomes of a start by it.

The figures come from outside (:class:`MemoryModel`): the simulator decides what happens, not how much
there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.protocol import ArgValue, Failure, FailureKind
from tuner.simulation.arguments import Arguments
from tuner.simulation.verdicts import infeasible

__all__ = ["MemoryFigures", "MemoryModel", "misfit"]

GIB = float(1 << 30)
CONTEXT_BYTES = 0.9 * GIB
"""What a bare CUDA context takes: 138.9 of 139.8 GiB were free on an idle H200."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory of one GPU under one configuration, in bytes.

    Attributes:
        total_bytes: memory of the GPU.
        budget_bytes: what the utilization allows vLLM.
        profile_bytes: most that is in use at once during the profile run, without a KV cache.
        kv_bytes: what is left for the KV cache; 0 or less when nothing is.
        serving_bytes: most that is in use at once while serving: KV cache, CUDA graphs and activations
            included.
        stdev_bytes: how far off the figures may be, one standard deviation.
    """

    total_bytes: float
    budget_bytes: float
    profile_bytes: float
    kv_bytes: float
    serving_bytes: float
    stdev_bytes: float = 0.0


class MemoryModel(Protocol):
    """Where the figures come from."""

    def figures(self, args: Mapping[str, ArgValue]) -> MemoryFigures:
        """Memory under these arguments; those left out have vLLM's defaults."""


def misfit(figures: MemoryFigures, arguments: Arguments, deviation: float) -> Failure | None:
    """Why the configuration does not start on this machine, in the order in which vLLM finds out.

    Args:
        figures: the prediction.
        arguments: the configuration.
        deviation: how far the machine is off the prediction, in its standard deviations: above 0 needs more.
    """
    more_bytes = deviation * figures.stdev_bytes
    free_bytes = figures.total_bytes - CONTEXT_BYTES
    if figures.budget_bytes > free_bytes:
        return infeasible(
            FailureKind.MEMORY_BUDGET,
            f"{_gib(free_bytes)} are free on the idle GPU, less than the utilization asks for "
            f"({_gib(figures.budget_bytes)})",
            advice="lower gpu_memory_utilization",
            numbers={"free_bytes": free_bytes, "wanted_bytes": figures.budget_bytes},
        )
    profile_bytes = figures.profile_bytes + more_bytes
    if profile_bytes > free_bytes:
        return infeasible(
            FailureKind.OOM_DEVICE,
            f"CUDA out of memory in the profile run: {_gib(profile_bytes)} of {_gib(free_bytes)}",
            advice="lower max_num_batched_tokens",
            numbers={"needed_bytes": profile_bytes, "available_bytes": free_bytes},
        )
    return _kv_misfit(figures.kv_bytes - more_bytes, arguments) or _late_misfit(
        figures, more_bytes, free_bytes
    )


def _kv_misfit(kv_bytes: float, arguments: Arguments) -> Failure | None:
    needed_bytes = arguments.max_model_len * arguments.kv_bytes_per_token
    if kv_bytes <= 0:
        return infeasible(
            FailureKind.KV_CACHE_TOO_SMALL,
            "no memory is left for the KV cache's blocks",
            advice="raise gpu_memory_utilization, or lower max_num_batched_tokens",
            numbers={"available_bytes": kv_bytes, "needed_bytes": needed_bytes},
        )
    if kv_bytes < needed_bytes:
        return infeasible(
            FailureKind.KV_CACHE_TOO_SMALL,
            f"one request of {arguments.max_model_len} tokens needs {_gib(needed_bytes)} of KV cache, "
            f"{_gib(kv_bytes)} are available",
            advice="raise gpu_memory_utilization, or lower max_model_len",
            numbers={"available_bytes": kv_bytes, "needed_bytes": needed_bytes},
        )
    return None


def _late_misfit(figures: MemoryFigures, more_bytes: float, free_bytes: float) -> Failure | None:
    needed_bytes = figures.serving_bytes + more_bytes
    if needed_bytes <= free_bytes:
        return None
    return infeasible(
        FailureKind.OOM_DEVICE,
        f"CUDA out of memory while warming up: {_gib(needed_bytes)} of {_gib(free_bytes)}",
        advice="lower gpu_memory_utilization or max_num_seqs",
        numbers={"needed_bytes": needed_bytes, "available_bytes": free_bytes},
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"

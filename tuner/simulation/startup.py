"""How long a start takes, with the compile cache of the machine.

Measured on an H200 with vLLM 0.26 and a Llama-2-7B shape (docs/simulator.md has the table).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.simulation.arguments import Arguments
from tuner.simulation.models import ModelShape

__all__ = ["CompileCache", "Startup", "compile_key"]


@dataclass(slots=True)
class CompileCache:
    """What a machine has compiled so far. It belongs to the caller, who keeps one per simulated machine."""

    keys: set[str] = field(default_factory=set)

    def hit(self, key: str) -> bool:
        """Whether the key was compiled before; from now on it is."""
        known = key in self.keys
        self.keys.add(key)
        return known


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds of the parts of a start.

    Attributes:
        validation_s: from the start of a cold process until vLLM has checked its arguments.
        process_s: from the start of a cold process to the loading of weights, imports of both processes
            included.
        warm_validation_s: like ``validation_s``, forked from a parent that has imported vLLM.
        warm_process_s: like ``process_s``, forked likewise.
        read_bytes_per_s: reading weights; 7B dummy weights took 1.7 s.
        compile_s: torch.compile on a cache miss.
        cached_compile_s: the same on a hit.
        profile_s: profile run.
        first_kernels_s: warm-up of kernels at shapes that the machine has not seen.
        capture_s: capturing CUDA graphs, besides ``graph_s`` for each.
        rest_s: allocating the KV cache, warming up, opening the port.
    """

    validation_s: float = 25.0
    process_s: float = 59.0
    warm_validation_s: float = 1.0
    warm_process_s: float = 22.0
    read_bytes_per_s: float = 8e9
    compile_s: float = 20.0
    cached_compile_s: float = 4.3
    profile_s: float = 1.0
    first_kernels_s: float = 15.0
    capture_s: float = 1.5
    graph_s: float = 0.07
    rest_s: float = 2.0

    def until_validated_s(self, *, warm: bool) -> float:
        """Until arguments that vLLM does not accept are refused."""
        return self.warm_validation_s if warm else self.validation_s

    def until_engine_s(self, *, warm: bool) -> float:
        """Until the engine's process looks at the GPU's free memory."""
        return self.warm_process_s if warm else self.process_s

    def until_profiled_s(self, arguments: Arguments, model: ModelShape, *, known: bool, warm: bool) -> float:
        """Until the room for the KV cache is known: compilation comes before it."""
        weights_s = model.total_weight_bytes / arguments.tensor_parallel_size / self.read_bytes_per_s
        compile_s = self.cached_compile_s if known else self.compile_s
        return (
            self.until_engine_s(warm=warm)
            + weights_s
            + (0.0 if arguments.eager else compile_s)
            + self.profile_s
        )

    def total_s(self, arguments: Arguments, model: ModelShape, *, known: bool, warm: bool) -> float:
        """Until the first healthy answer.

        Args:
            arguments: the configuration.
            model: the model.
            known: the machine has compiled this before.
            warm: the process is forked from one that has imported vLLM.
        """
        graphs_s = self.capture_s + self.graph_s * len(arguments.captured) if arguments.captured else 0.0
        return (
            self.until_profiled_s(arguments, model, known=known, warm=warm)
            + (0.0 if known else self.first_kernels_s)
            + graphs_s
            + self.rest_s
        )


def compile_key(arguments: Arguments, model: ModelShape) -> str:
    """Configurations with the same key share compiled code.

    On the H200 the key changed with ``max_num_batched_tokens``, the KV cache's type and, as far as
    that shows, the sizes of the CUDA graphs; not with ``max_num_seqs`` of 256 and more, nor with the
    utilization.
    """
    largest = arguments.captured[-1] if arguments.captured else 0
    parts = (
        model.name,
        f"{model.hidden}x{model.layers}",
        arguments.tensor_parallel_size,
        arguments.limits.max_num_batched_tokens,
        arguments.kv_cache_dtype,
        "eager" if arguments.eager else f"graphs{largest}",
    )
    return "/".join(map(str, parts))

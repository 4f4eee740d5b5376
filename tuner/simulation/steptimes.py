"""How long one step of the engine takes: the port, and a roofline with measured efficiencies.

Another source of step times (a table of measured kernels, say) implements :class:`StepTimes`; the scheduler's
model, the load and the metrics do not change.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

from tuner.simulation.hardware import Gpu
from tuner.simulation.models import ModelShape
from tuner.simulation.scheduler import Batch

__all__ = ["Efficiencies", "Execution", "Roofline", "StepTimes", "capture_sizes"]


class StepTimes(Protocol):
    """Where the simulator learns how long a step takes."""

    def step_s(self, batch: Batch) -> float:
        """Seconds from the start of one step to the start of the next, above 0, when the engine is busy."""


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """What a GPU reaches of its peaks, and what every step costs besides.

    Attributes:
        weights: share of the memory's peak bandwidth when weights are read.
        kv: the same when the KV cache is read by decodes.
        kv_fp8: what remains of ``kv`` with an 8-bit cache, which is converted on the way.
        compute: share of the matrix units' peak in large matrix products.
        attention: share of the peak in the attention of prompts.
        step_s: seconds of every step that neither peak explains.
        sequence_s: seconds per sequence of a step (sampling, gathering, scatter).
        token_s: seconds per token of a step beyond the matrix products (norms, rotary, activations).
        host_s: seconds in which the host prepares a step whose kernels are in CUDA graphs.
        launch_s: seconds per layer in which the host launches compiled kernels outside CUDA graphs:
            steps of more tokens than the largest graph.
        eager_launch_s: the same for a model that is not compiled (``enforce_eager``).
    """

    weights: float = 0.85
    kv: float = 0.75
    kv_fp8: float = 0.8
    compute: float = 0.65
    attention: float = 0.4
    step_s: float = 0.001
    sequence_s: float = 10e-6
    token_s: float = 1e-6
    host_s: float = 0.002
    launch_s: float = 150e-6
    eager_launch_s: float = 350e-6


@dataclass(frozen=True, slots=True)
class Execution:
    """How the model is run, by vLLM's names.

    Attributes:
        kv_number_bytes: bytes of one number in the KV cache.
        captured: batch sizes, in tokens and ascending, that have a CUDA graph; empty when eager.
        eager: the model is not compiled.
    """

    tensor_parallel_size: int = 1
    kv_number_bytes: float = 2.0
    captured: tuple[int, ...] = ()
    eager: bool = False
    asynchronous: bool = True


def capture_sizes(largest: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """Batch sizes that vLLM 0.32 captures up to the largest (``VllmConfig._set_cudagraph_sizes``)."""
    top = min(largest, max_num_batched_tokens)
    sizes = {size for size in (1, 2, 4) if size <= top}
    sizes |= set(range(8, min(top + 1, 256), 8)) | set(range(256, top + 1, 16))
    if max_num_batched_tokens <= top:
        sizes.add(max_num_batched_tokens)
    return tuple(sorted(sizes))


class Roofline:
    """Step times from peaks and efficiencies.

    A step reads the weights and multiplies by them, whichever takes longer; reads the KV cache of the
    requests that decode; computes the attention of prompts; and pays fixed costs. The host prepares the
    next step meanwhile, and is waited for when it takes longer.
    """

    def __init__(self, gpu: Gpu, model: ModelShape, execution: Execution, efficiencies: Efficiencies) -> None:
        share = 1.0 / execution.tensor_parallel_size
        self._model = model
        self._execution = execution
        self._efficiencies = efficiencies
        peak = gpu.flops.get(model.weight_type, gpu.flops["bf16"])
        self._weight_byte_s = share / (gpu.bandwidth_bytes_per_s * efficiencies.weights)
        self._linear_token_s = 2.0 * model.active_weights * share / (peak * efficiencies.compute)
        kv = efficiencies.kv * (efficiencies.kv_fp8 if execution.kv_number_bytes < 2.0 else 1.0)
        kv_bytes = model.kv_numbers_per_token * execution.kv_number_bytes
        self._kv_token_s = kv_bytes * share / (gpu.bandwidth_bytes_per_s * kv)
        attended = 4.0 * model.layers * model.heads * model.head_dim * share
        self._attended_pair_s = attended / (gpu.flops["bf16"] * efficiencies.attention)
        self._link_byte_s = 1.0 / gpu.link_bytes_per_s

    def step_s(self, batch: Batch) -> float:
        """Seconds of the step."""
        device_s = self.device_s(batch)
        host_s = self._host_s(batch)
        return max(device_s, host_s) if self._execution.asynchronous else device_s + host_s

    def device_s(self, batch: Batch) -> float:
        """Seconds in which the GPU is busy."""
        tokens = self._padded(batch.tokens)
        costs = self._efficiencies
        return (
            self._linear_s(tokens)
            + batch.decode_context * self._kv_token_s
            + self._prompt_attention_s(batch)
            + self._exchange_s(tokens)
            + tokens * costs.token_s
            + (batch.decodes + len(batch.prefills)) * costs.sequence_s
            + costs.step_s
        )

    def _padded(self, tokens: int) -> int:
        captured = self._execution.captured
        if not captured or tokens > captured[-1]:
            return tokens
        return captured[bisect_left(captured, tokens)]

    def _linear_s(self, tokens: int) -> float:
        read_s = self._model.touched_weight_bytes(tokens) * self._weight_byte_s
        multiply_s = tokens * self._linear_token_s
        # Reading and multiplying overlap, but not perfectly where they take about as long.
        return float((read_s**4 + multiply_s**4) ** 0.25)

    def _prompt_attention_s(self, batch: Batch) -> float:
        pairs = sum(chunk.tokens * (chunk.context + 0.5 * chunk.tokens) for chunk in batch.prefills)
        return pairs * self._attended_pair_s

    def _exchange_s(self, tokens: int) -> float:
        """Two all-reduces a layer between tensor-parallel GPUs, in 16 bit."""
        gpus = self._execution.tensor_parallel_size
        if gpus == 1:
            return 0.0
        carried = 2.0 * (gpus - 1) / gpus * tokens * self._model.hidden * 2.0
        return 2.0 * self._model.layers * (carried * self._link_byte_s + 10e-6)

    def _host_s(self, batch: Batch) -> float:
        costs, captured = self._efficiencies, self._execution.captured
        if captured and batch.tokens <= captured[-1]:
            return costs.host_s
        launch_s = costs.eager_launch_s if self._execution.eager else costs.launch_s
        return costs.host_s + self._model.layers * launch_s

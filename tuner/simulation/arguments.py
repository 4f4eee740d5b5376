"""vLLM's arguments as the simulator reads them, with vLLM 0.32's defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import FieldError
from tuner.protocol import ArgValue
from tuner.simulation.hardware import Gpu
from tuner.simulation.models import ModelShape, kv_element_bytes
from tuner.simulation.scheduler import Limits
from tuner.simulation.steptimes import Execution, capture_sizes

__all__ = ["Arguments"]

# Read here or by the memory model; every other argument is listed as not modelled.
_READ = frozenset(
    {
        "async_scheduling",
        "block_size",
        "dtype",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "load_format",
        "max_cudagraph_capture_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "model",
        "performance_mode",
        "quantization",
        "scheduler_reserve_full_isl",
        "served_model_name",
        "tensor_parallel_size",
        "watermark",
    }
)
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Arguments:
    """One configuration, complete.

    Attributes:
        captured: token counts with a CUDA graph; empty when eager.
        kv_bytes_per_token: on one GPU.
        unmodelled: arguments given that change nothing here.
    """

    limits: Limits
    max_model_len: int
    prefix_caching: bool
    eager: bool
    kv_cache_dtype: str
    tensor_parallel_size: int
    captured: tuple[int, ...]
    kv_bytes_per_token: float
    unmodelled: tuple[str, ...]

    @classmethod
    def resolve(cls, args: Mapping[str, ArgValue], *, gpu: Gpu, model: ModelShape) -> Arguments:
        """Fill in the defaults.

        Raises:
            FieldError: vLLM itself would refuse to start with these.
        """
        max_model_len = _positive(args, "max_model_len", model.max_position)
        limits = _limits(args, gpu, max_model_len)
        eager = bool(args.get("enforce_eager", False))
        parallel = _positive(args, "tensor_parallel_size", 1)
        if model.heads % parallel:
            raise FieldError(
                "tensor_parallel_size",
                parallel,
                problem=f"does not divide {model.heads} heads",
                fix="use a divisor",
            )
        kv_cache_dtype = str(args.get("kv_cache_dtype", "auto"))
        # Twice the places, for speculative tokens; never above 512 unless asked for.
        largest = _positive(args, "max_cudagraph_capture_size", min(2 * limits.max_num_seqs, 512))
        return cls(
            limits=limits,
            max_model_len=max_model_len,
            prefix_caching=bool(args.get("enable_prefix_caching", True)),
            eager=eager,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=parallel,
            captured=() if eager else capture_sizes(largest, limits.max_num_batched_tokens),
            kv_bytes_per_token=model.kv_numbers_per_token * kv_element_bytes(kv_cache_dtype) / parallel,
            unmodelled=tuple(sorted(set(args) - _READ)),
        )

    def execution(self) -> Execution:
        """What the step times depend on."""
        return Execution(
            tensor_parallel_size=self.tensor_parallel_size,
            kv_number_bytes=kv_element_bytes(self.kv_cache_dtype),
            captured=self.captured,
            eager=self.eager,
            asynchronous=self.limits.asynchronous,
        )

    def resolved(self) -> dict[str, ArgValue]:
        """Values that the defaults leave open, as the engine would report them."""
        return {
            "max_num_seqs": self.limits.max_num_seqs,
            "max_num_batched_tokens": self.limits.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "block_size": self.limits.block_size,
            "enable_prefix_caching": self.prefix_caching,
            "enforce_eager": self.eager,
        }


def _limits(args: Mapping[str, ArgValue], gpu: Gpu, max_model_len: int) -> Limits:
    double = 2 if args.get("performance_mode") == "throughput" else 1
    chunked = bool(args.get("enable_chunked_prefill", True))
    seqs = _positive(args, "max_num_seqs", gpu.default_max_num_seqs * double)
    default_tokens = min(gpu.default_max_num_batched_tokens * double, seqs * max_model_len)
    tokens = _positive(
        args, "max_num_batched_tokens", default_tokens if chunked else max(default_tokens, max_model_len)
    )
    if "max_num_seqs" not in args:
        seqs = min(seqs, tokens)
    if tokens < seqs:
        raise FieldError(
            "max_num_batched_tokens",
            tokens,
            problem=f"is below max_num_seqs ({seqs})",
            fix="raise it, or lower the other",
        )
    if not chunked and tokens < max_model_len:
        raise FieldError(
            "max_num_batched_tokens",
            tokens,
            problem=f"is below max_model_len ({max_model_len}) while chunked prefill is off",
            fix="raise it, or leave chunked prefill on",
        )
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        block_size=_positive(args, "block_size", DEFAULT_BLOCK_SIZE),
        chunked_prefill=chunked,
        asynchronous=bool(args.get("async_scheduling", True)),
        reserve_full_prompt=bool(args.get("scheduler_reserve_full_isl", True)),
        watermark=float(args.get("watermark", 0.0)),
    )


def _positive(args: Mapping[str, ArgValue], name: str, default: int) -> int:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value != int(value):
        raise FieldError(name, value, problem="is no positive integer", fix="use a positive integer")
    return int(value)

"""GPUs by their data sheets, and vLLM's defaults that depend on them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tuner.errors import FieldError

__all__ = ["GPUS", "Gpu", "gpu_by_name"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        memory_bytes: as vLLM sees it on an idle GPU.
        bandwidth_bytes_per_s: peak of the device memory.
        flops: dense peak in FLOP/s by element type, ``bf16`` and ``fp8``; no ``fp8`` means the type
            is unpacked to ``bf16``.
        link_bytes_per_s: one direction between two GPUs of the host.
        calibrated: the roofline's efficiencies were fitted on this GPU; elsewhere they are carried over.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops: MappingProxyType[str, float]
    link_bytes_per_s: float
    calibrated: bool = False

    @property
    def default_max_num_seqs(self) -> int:
        """vLLM 0.32's ``EngineArgs.get_batch_defaults`` for the API server."""
        return 1024 if self._large else 256

    @property
    def default_max_num_batched_tokens(self) -> int:
        """vLLM 0.32's ``EngineArgs.get_batch_defaults`` for the API server."""
        if self.memory_bytes >= 160 * GIB:
            return 16384
        return 8192 if self._large else 2048

    @property
    def _large(self) -> bool:
        return self.memory_bytes >= 70 * GIB and "a100" not in self.name.lower()


def _gpu(
    name: str, gib: float, terabytes_per_s: float, bf16: float, fp8: float | None, link_gb: float
) -> Gpu:
    flops = {"bf16": bf16 * 1e12} | ({"fp8": fp8 * 1e12} if fp8 else {})
    return Gpu(
        name=name,
        memory_bytes=int(gib * GIB),
        bandwidth_bytes_per_s=terabytes_per_s * 1e12,
        flops=MappingProxyType(flops),
        link_bytes_per_s=link_gb * 1e9,
        calibrated=name == "H200",
    )


# NVIDIA's data sheets (SXM where there is one): dense peaks without sparsity, NVLink or PCIe one way.
GPUS = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            _gpu("H200", 139.8, 4.8, 989.0, 1979.0, 450.0),
            _gpu("H100", 79.1, 3.35, 989.0, 1979.0, 450.0),
            _gpu("B200", 178.0, 8.0, 2250.0, 4500.0, 900.0),
            _gpu("A100", 79.2, 2.04, 312.0, None, 300.0),
            _gpu("L40S", 44.4, 0.864, 362.0, 733.0, 32.0),
            _gpu("L4", 22.0, 0.300, 121.0, 242.0, 32.0),
        )
    }
)


def gpu_by_name(name: str) -> Gpu:
    """The GPU whose name occurs in ``name``, e.g. in ``NVIDIA H200``.

    Raises:
        FieldError: the simulator has no figures for it.
    """
    # The longest name first: "L40S" also holds "L4".
    for known in sorted(GPUS, key=len, reverse=True):
        if known.lower() in name.lower():
            return GPUS[known]
    raise FieldError(
        "gpu", name, problem="the simulator has no figures for it", fix=f"use one of {', '.join(GPUS)}"
    )

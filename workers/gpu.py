"""What NVML tells about the GPUs: which there are, and how much of their memory is in use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from tuner.errors import FieldError

__all__ = ["Gpu", "driver_version", "memory_used_bytes", "owned_gpus"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: as NVML and ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` count, or a UUID.
        name: the model's name, e.g. ``NVIDIA H200``.
        memory_bytes: its whole memory.
    """

    index: str
    name: str
    memory_bytes: int


@contextmanager
def _nvml() -> Iterator[bool]:
    """NVML for the time of the block; false where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def _handle(index: str) -> object:
    if index.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(index))
    return pynvml.nvmlDeviceGetHandleByUUID(index)


def _gpu(index: str) -> Gpu:
    try:
        handle = _handle(index)
        name = pynvml.nvmlDeviceGetName(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        raise FieldError(
            "NIGHTSHIFT_GPUS", index, problem=f"NVML says {error}", fix="see nvidia-smi -L"
        ) from error
    return Gpu(index, name if isinstance(name, str) else name.decode(), int(memory.total))


def owned_gpus(indices: tuple[str, ...] | None) -> tuple[Gpu, ...]:
    """The GPUs that a worker owns.

    Args:
        indices: the setting; ``None`` takes ``CUDA_VISIBLE_DEVICES``, else every GPU of the machine.

    Raises:
        FieldError: a GPU that was named does not exist, or there is no driver to ask.
    """
    if indices == ():
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if indices is None and visible is not None:
        indices = tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    with _nvml() as present:
        if not present:
            if indices:
                fix = "install the NVIDIA driver, or set NIGHTSHIFT_GPUS=none"
                raise FieldError(
                    "NIGHTSHIFT_GPUS", ",".join(indices), problem="no NVIDIA driver answers", fix=fix
                )
            return ()
        if indices is None:
            indices = tuple(map(str, range(pynvml.nvmlDeviceGetCount())))
        return tuple(_gpu(index) for index in indices)


def memory_used_bytes(gpus: tuple[Gpu, ...]) -> int | None:
    """Bytes in use on the fullest of the GPUs; ``None`` without a GPU or where NVML does not tell."""
    if not gpus:
        return None
    try:
        with _nvml() as present:
            if not present:
                return None
            return max(int(pynvml.nvmlDeviceGetMemoryInfo(_handle(gpu.index)).used) for gpu in gpus)
    except pynvml.NVMLError:
        return None


def driver_version() -> str | None:
    """Version of the NVIDIA driver; ``None`` where there is none."""
    with _nvml() as present:
        if not present:
            return None
        version = pynvml.nvmlSystemGetDriverVersion()
    return version if isinstance(version, str) else version.decode()

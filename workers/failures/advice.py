"""What to tell people: what went wrong in one sentence, and what to do about it in another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from tuner.protocol import FailureKind, Phase, Verdict
from workers.failures.catalogue import Standing
from workers.failures.evidence import Evidence
from workers.failures.findings import Finding
from workers.failures.standing import host_memory_spenders

__all__ = ["HEADLINES", "TEXTS", "advise", "advise_host_oom", "headline"]


class Stage(Enum):
    """What the engine was doing when its memory ran out."""

    WEIGHTS = auto()
    PROFILE = auto()
    SAMPLER = auto()
    KV_CACHE = auto()
    GRAPHS = auto()
    SERVING = auto()
    UNKNOWN = auto()


STAGES: tuple[tuple[Stage, frozenset[str]], ...] = (
    (Stage.SAMPLER, frozenset({"_dummy_sampler_run"})),
    (Stage.GRAPHS, frozenset({"capture_model", "capture_begin", "capture_end", "profile_cudagraph_memory"})),
    (
        Stage.PROFILE,
        frozenset({"profile_run", "determine_available_memory", "determine_num_available_blocks"}),
    ),
    (
        Stage.KV_CACHE,
        frozenset({"initialize_kv_cache", "initialize_from_config", "_allocate_kv_cache_tensors"}),
    ),
    (
        Stage.WEIGHTS,
        frozenset({"load_model", "load_weights", "create_weights", "process_weights_after_loading"}),
    ),
)
"""Functions of vLLM by what they do; the first that is in the traceback counts."""
DOING = {
    Stage.WEIGHTS: "while loading the weights",
    Stage.PROFILE: "in the profile run, which measures the activations of the largest batch",
    Stage.SAMPLER: "while warming up the sampler",
    Stage.KV_CACHE: "while allocating the KV cache",
    Stage.GRAPHS: "while capturing CUDA graphs",
    Stage.SERVING: "while serving requests",
    Stage.UNKNOWN: "while starting",
}
ON_DEVICE_OOM = {
    Stage.WEIGHTS: "The weights do not fit: raise tensor_parallel_size, quantize, or set cpu_offload_gb.",
    Stage.PROFILE: "Lower max_num_batched_tokens; the activations of one step grow with it.",
    Stage.SAMPLER: "Lower max_num_seqs, or lower gpu_memory_utilization to leave room for the sampler.",
    Stage.KV_CACHE: "Lower gpu_memory_utilization or kv_cache_memory_bytes: the KV cache exceeds the rest.",
    Stage.GRAPHS: "Lower max_cudagraph_capture_size, set enforce_eager, or lower gpu_memory_utilization.",
    Stage.SERVING: "Lower gpu_memory_utilization for headroom, or max_num_batched_tokens or max_num_seqs.",
    Stage.UNKNOWN: "Lower max_num_batched_tokens first, then max_num_seqs or gpu_memory_utilization.",
}
DISK_FULL = (
    "Free space on the disk that the message names, or give the container more shared memory (/dev/shm)."
)
SUCCESSORS = {
    "swap-space": "its successor is --kv-offloading-size",
    "disable-log-requests": "its successor is --no-enable-log-requests",
    "disable-frontend-multiprocessing": "it is gone with the V0 engine",
    "num-scheduler-steps": "it is gone with the V0 engine; see --async-scheduling",
    "use-v2-block-manager": "it is gone with the V0 engine",
    "max-seq-len-to-capture": "its successor is --max-cudagraph-capture-size",
    "cuda-graph-sizes": "its successor is --cudagraph-capture-sizes",
    "guided-decoding-backend": "its successor is --structured-outputs-config",
    "task": "its successors are --runner and --convert",
    "device": "the platform is found by the build of vLLM",
}


def headline(finding: Finding, evidence: Evidence) -> str:
    """What went wrong, before the log's own words."""
    match finding.kind:
        case FailureKind.OOM_DEVICE:
            return f"The device ran out of memory {DOING[_stage(finding, evidence)]}"
        case FailureKind.KV_CACHE_TOO_SMALL:
            return "The memory that is left for the KV cache is too small"
        case FailureKind.MEMORY_BUDGET:
            return "The memory that was asked for is not free"
        case None:
            return "The engine died of an exception that has no rule"
        case kind:
            return HEADLINES[kind]


HEADLINES = {
    FailureKind.OOM_HOST: "The host ran out of memory",
    FailureKind.INVALID_CONFIG: "vLLM refused the configuration",
    FailureKind.UNKNOWN_FLAG: "This version of vLLM does not know a flag",
    FailureKind.KERNEL_ERROR: "A kernel cannot run in this configuration on this device",
    FailureKind.MODEL_UNAVAILABLE: "The model cannot be loaded",
    FailureKind.BROKEN_INSTALLATION: "The installation on this host is broken",
    FailureKind.DEVICE_UNAVAILABLE: "The device cannot be used",
    FailureKind.PORT_IN_USE: "The port is taken",
    FailureKind.STARTUP_TIMEOUT: "The engine was not ready in time",
    FailureKind.ENGINE_CRASH: "The engine crashed",
    FailureKind.SERVER_OVERLOADED: "The server refused requests as overloaded",
    FailureKind.OTHER: "The engine died",
}


def advise(finding: Finding, standing: Standing, numbers: Mapping[str, float], evidence: Evidence) -> str:
    """What to change or to mend."""
    if standing.verdict is Verdict.FAILED and finding.kind in {
        FailureKind.OOM_DEVICE,
        FailureKind.MEMORY_BUDGET,
    }:
        return "Free the device: other processes hold its memory (nvidia-smi shows which); it is tried again."
    match finding.kind:
        case FailureKind.OOM_DEVICE:
            return ON_DEVICE_OOM[_stage(finding, evidence)]
        case FailureKind.OOM_HOST:
            return advise_host_oom(evidence)
        case FailureKind.KV_CACHE_TOO_SMALL:
            return _of_kv_cache(numbers)
        case FailureKind.MEMORY_BUDGET:
            return _of_memory_budget(finding.raised.message, numbers)
        case None:
            full = "No space left on device" in finding.raised.message
            return DISK_FULL if full else TEXTS[FailureKind.OTHER]
        case kind:
            speaker = BY_MESSAGE.get(kind)
            return speaker(finding.raised.message) if speaker else TEXTS[kind]


def _stage(finding: Finding, evidence: Evidence) -> Stage:
    if "warming up sampler" in finding.raised.message:
        return Stage.SAMPLER
    if finding.raised.message.startswith("Failed to load model"):
        return Stage.WEIGHTS
    functions = {frame.function for raised in finding.chain.raised for frame in raised.frames}
    files = {frame.file for raised in finding.chain.raised for frame in raised.frames}
    if any(file.endswith("torch/cuda/graphs.py") for file in files):
        return Stage.GRAPHS
    known = next((stage for stage, names in STAGES if names & functions), None)
    return known or (Stage.UNKNOWN if evidence.phase is Phase.STARTING else Stage.SERVING)


def _of_kv_cache(numbers: Mapping[str, float]) -> str:
    longest = numbers.get("longest_model_len")
    bound = f" to at most {longest:.0f}" if longest else ""
    return (
        f"Raise gpu_memory_utilization (on the CPU VLLM_CPU_KVCACHE_SPACE), lower max_model_len{bound}, "
        "or lower max_num_batched_tokens; an fp8 kv_cache_dtype halves the need."
    )


def _of_memory_budget(message: str, numbers: Mapping[str, float]) -> str:
    if "requested memory for kv" in message:
        return "Lower VLLM_CPU_KVCACHE_SPACE or kv_cache_memory_bytes below the memory that is free."
    free, total = numbers.get("free_bytes"), numbers.get("total_bytes")
    bound = f" below {int(free / total * 1000) / 1000:g}" if free and total else ""
    return f"Lower gpu_memory_utilization{bound}: more is not free even on an idle device."


def _of_configuration(message: str) -> str:
    sentence = re.split(r"(?<=[a-z)\]'\"])\. |\n", message.strip(), maxsplit=1)[0]
    return f"Change the arguments as vLLM says: {sentence.rstrip('.')[:400]}."


def _of_flag(message: str) -> str:
    flags = re.findall(r"--([A-Za-z0-9][\w-]*)", message)
    hints = [f"--{flag}: {SUCCESSORS[flag]}" for flag in flags if flag in SUCCESSORS]
    named = ", ".join(f"--{flag}" for flag in flags) or "the flag"
    return f"Remove {named} from the study" + (f" ({'; '.join(hints)})." if hints else ".")


def _of_installation(message: str) -> str:
    missing = re.search(r"No module named '?([\w.]+)", message)
    if missing is None:
        return TEXTS[FailureKind.BROKEN_INSTALLATION]
    name = missing[1].split(".")[0]
    return f"Install {name} into vLLM's environment on this host, or choose a backend that does not need it."


def _of_model(message: str) -> str:
    lowered = message.lower()
    if "gated" in lowered or "401 client error" in lowered:
        return "Accept the model's licence on the hub and give the worker a token (HF_TOKEN, at the worker)."
    if "trust_remote_code" in lowered or "custom code" in lowered:
        return "The model brings its own code (trust_remote_code): allow it on the worker or take another."
    if "architecture" in lowered or "model type" in lowered:
        return "This version of vLLM does not support the model: take another model or version."
    return "Check the model's name or folder on the worker; without the hub it must be there already."


BY_MESSAGE: Mapping[FailureKind, Callable[[str], str]] = {
    FailureKind.INVALID_CONFIG: _of_configuration,
    FailureKind.UNKNOWN_FLAG: _of_flag,
    FailureKind.BROKEN_INSTALLATION: _of_installation,
    FailureKind.MODEL_UNAVAILABLE: _of_model,
}
TEXTS: Mapping[FailureKind, str] = {
    FailureKind.KERNEL_ERROR: (
        "Choose another block_size, dtype or attention_backend: a limit of the chip was met, "
        "which gpu_memory_utilization does not change."
    ),
    FailureKind.BROKEN_INSTALLATION: (
        "Mend the environment of vLLM on this host: vllm, torch, driver and compiler do not fit together."
    ),
    FailureKind.DEVICE_UNAVAILABLE: (
        "Make the device visible to the worker: check the driver (nvidia-smi, rocm-smi), "
        "CUDA_VISIBLE_DEVICES and the container's devices."
    ),
    FailureKind.PORT_IN_USE: "Free the port, or let the worker choose one; the attempt is repeated.",
    FailureKind.STARTUP_TIMEOUT: "Raise the start-up limit, or look in the log for a slow disk or download.",
    FailureKind.ENGINE_CRASH: "It is tried once more; if it comes back, report it to vLLM with this log.",
    FailureKind.SERVER_OVERLOADED: "Raise max_num_seqs or the server's queue limit, or offer less load.",
    FailureKind.OTHER: "Read the log; it is tried once more in case it was chance.",
}


def advise_host_oom(evidence: Evidence) -> str:
    """What to do when host memory ran out."""
    spenders = host_memory_spenders(evidence)
    if spenders:
        return f"Lower {' and '.join(spenders)}: it takes host memory."
    return "Give the container or the host more memory, or let less run beside the engine."

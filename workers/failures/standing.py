"""Whose fault it was: what the facts outside the log say about a kind's usual verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tuner.protocol import ArgValue, FailureKind
from workers.failures.catalogue import INFEASIBLE, RETRY, STANDINGS, Standing
from workers.failures.evidence import Evidence
from workers.failures.findings import Finding

__all__ = ["HOST_MEMORY_KNOBS", "host_memory_spenders", "stand", "stand_host_oom"]

HOST_MEMORY_KNOBS = frozenset(
    {"cpu_offload_gb", "kv_offloading_size", "swap_space", "VLLM_CPU_KVCACHE_SPACE"}
)
"""What makes vLLM keep gigabytes in the host's memory."""
NOTHING = frozenset({"", "0", "0.0", "False"})
WELL_KNOWN_ARGUMENTS = frozenset(
    {
        "attention_backend",
        "block_size",
        "cpu_offload_gb",
        "data_parallel_size",
        "dtype",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "load_format",
        "max_cudagraph_capture_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_partial_prefills",
        "max_num_seqs",
        "pipeline_parallel_size",
        "quantization",
        "tensor_parallel_size",
    }
)
"""Recognised in a message even when they keep vLLM's default."""
CONTEXT_SHARE = 0.02
CONTEXT_BYTES = 0.5 * 2**30
"""What CUDA contexts take of a GPU that nobody else uses: 0.9 of 139.8 GiB was seen on an H200."""
HOST_SHARE = 0.25
"""What an operating system and its services may take of a host's memory for good."""


def stand(finding: Finding, numbers: Mapping[str, float], evidence: Evidence) -> Standing:
    """The verdict on a known exception."""
    match finding.kind:
        case FailureKind.OOM_DEVICE:
            return _device_oom(numbers, evidence)
        case FailureKind.OOM_HOST:
            return stand_host_oom(evidence)
        case FailureKind.MEMORY_BUDGET:
            return _memory_budget(finding, numbers, evidence)
        case FailureKind.INVALID_CONFIG:
            return replace(finding.standing, fatal=_no_knob_can_mend(finding.raised.message, evidence))
        case FailureKind.BROKEN_INSTALLATION:
            return INFEASIBLE if _only_this_backend_lacks_it(finding, evidence) else finding.standing
        case _:
            return finding.standing


def _device_oom(numbers: Mapping[str, float], evidence: Evidence) -> Standing:
    """The host's fault when others held the GPU and the allocation would have fitted without them."""
    total = numbers.get("total_bytes") or evidence.gpu_memory_total_bytes or 0.0
    before = float(evidence.gpu_memory_used_before_bytes or 0)
    if before <= total * CONTEXT_SHARE + CONTEXT_BYTES:
        return INFEASIBLE
    would_fit = numbers.get("asked_bytes", 0.0) <= numbers.get("free_bytes", 0.0) + before
    return RETRY if would_fit else INFEASIBLE


def _memory_budget(finding: Finding, numbers: Mapping[str, float], evidence: Evidence) -> Standing:
    """The configuration's fault when it asks for more than an idle device leaves."""
    if not {"asked_bytes", "free_bytes", "total_bytes"} <= numbers.keys():
        return finding.standing
    asked, free, total = numbers["asked_bytes"], numbers["free_bytes"], numbers["total_bytes"]
    on_host = finding.raised.message.startswith("Available memory on node")
    share = HOST_SHARE if on_host else CONTEXT_SHARE
    before = 0.0 if on_host else float(evidence.gpu_memory_used_before_bytes or 0)
    unavoidable = min(max(total - free - before, 0.0), total * share + CONTEXT_BYTES)
    return INFEASIBLE if asked > total - unavoidable else RETRY


def stand_host_oom(evidence: Evidence) -> Standing:
    """The configuration's fault where it keeps a part of the model or of the KV cache in host memory."""
    return INFEASIBLE if host_memory_spenders(evidence) else STANDINGS[FailureKind.OOM_HOST]


def host_memory_spenders(evidence: Evidence) -> list[str]:
    """Which arguments and variables take host memory; only knobs, where it is known which ones they are."""
    values: dict[str, ArgValue] = {**evidence.args, **evidence.env}
    suspected = (
        HOST_MEMORY_KNOBS & values.keys() if evidence.knobs is None else HOST_MEMORY_KNOBS & evidence.knobs
    )
    return sorted(name for name in suspected if str(values.get(name, "unknown")).strip() not in NOTHING)


def _no_knob_can_mend(message: str, evidence: Evidence) -> bool:
    """The refusal names arguments of the trial, and the search may change none of them."""
    if evidence.knobs is None:
        return False
    names = WELL_KNOWN_ARGUMENTS | evidence.args.keys() | evidence.env.keys() | evidence.knobs
    named = {name for name in names if _mentions(message, name)}
    return bool(named) and not named & evidence.knobs


def _mentions(message: str, name: str) -> bool:
    spelling = re.escape(name).replace("_", "[ _-]")
    return re.search(rf"(?<![A-Za-z0-9_]){spelling}(?![A-Za-z0-9_])", message, re.IGNORECASE) is not None


def _only_this_backend_lacks_it(finding: Finding, evidence: Evidence) -> bool:
    """A knob chose the very backend whose module is missing: other values may run."""
    missing = re.search(r"[Nn]o module named '?([A-Za-z0-9]+)", finding.raised.message)
    if missing is None or not evidence.knobs:
        return False
    values: dict[str, ArgValue] = {**evidence.args, **evidence.env}
    return any(missing[1].lower() in str(values.get(name, "")).lower() for name in evidence.knobs)

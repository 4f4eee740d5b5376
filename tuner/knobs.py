"""The catalogue of knobs: what is worth tuning in vLLM, over which range, and what it trades.

Any other argument of vLLM can be a knob by its name. The list of arguments comes from vLLM's own parser
(``vllm_flags.json``, written by ``scripts/vllm-flags``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from tuner.errors import FieldError
from tuner.protocol import ArgValue
from tuner.spec import ChoicesKnob, Preset, RangeKnob
from tuner.wording import did_you_mean

__all__ = [
    "CATALOGUE",
    "KnobKind",
    "KnownKnob",
    "Platform",
    "check_argument",
    "check_environment",
    "check_value",
    "is_env",
    "kind_of",
    "preset_knobs",
]

Platform = Literal["cuda", "cpu"]
KnobKind = Literal["int", "float", "bool", "str"]


@dataclass(frozen=True, slots=True)
class KnownKnob:
    """One knob that we know.

    Attributes:
        name: vLLM's argument with underscores, or an environment variable in capitals.
        domain: the range or choices searched when a study names none.
        platforms: builds of vLLM that have it.
        meaning: what it sets.
        trades: what a higher value buys and costs.
    """

    name: str
    domain: RangeKnob | ChoicesKnob
    platforms: tuple[Platform, ...]
    meaning: str
    trades: str


_BOTH: tuple[Platform, ...] = ("cuda", "cpu")

_KNOBS = (
    KnownKnob(
        "max_num_batched_tokens",
        RangeKnob(low=512, high=16384, step="pow2"),
        _BOTH,
        "tokens that one scheduler step may process",
        "more raises throughput; it lengthens each step (ITL) and takes activation memory",
    ),
    KnownKnob(
        "max_num_seqs",
        RangeKnob(low=16, high=512, step="pow2"),
        _BOTH,
        "requests that run at the same time",
        "more raises throughput until the KV cache is full, then requests are preempted; each one is slower",
    ),
    KnownKnob(
        "gpu_memory_utilization",
        RangeKnob(low=0.85, high=0.95, step=0.01),
        ("cuda",),
        "share of the GPU's memory that vLLM plans with",
        "more leaves room for KV cache; too much runs out of memory in kernels that the profile did not see",
    ),
    KnownKnob(
        "block_size",
        ChoicesKnob(choices=(16, 32, 64)),
        ("cuda",),
        "tokens in one block of the KV cache",
        "larger blocks mean fewer of them to manage and more waste at the end of each request",
    ),
    KnownKnob(
        "enforce_eager",
        ChoicesKnob(choices=(False, True)),
        _BOTH,
        "run without torch.compile and CUDA graphs",
        "starts in half the time and saves memory; small batches decode slower",
    ),
    KnownKnob(
        "enable_chunked_prefill",
        ChoicesKnob(choices=(True, False)),
        ("cuda",),
        "split long prompts over several steps",
        "smooths ITL under mixed load; without it max_num_batched_tokens must hold a whole prompt",
    ),
    KnownKnob(
        "enable_prefix_caching",
        ChoicesKnob(choices=(True, False)),
        _BOTH,
        "keep the KV cache of shared prefixes",
        "saves prefill where prompts share a beginning; costs a little hashing where they do not",
    ),
    KnownKnob(
        "async_scheduling",
        ChoicesKnob(choices=(True, False)),
        ("cuda",),
        "schedule the next step while the GPU runs this one",
        "hides the scheduler's time; not every feature supports it",
    ),
    KnownKnob(
        "stream_interval",
        ChoicesKnob(choices=(1, 4, 16)),
        _BOTH,
        "tokens gathered before they are sent",
        "more saves processor time of the API server; tokens arrive in bursts, so TTFT stays and ITL grows",
    ),
    KnownKnob(
        "max_model_len",
        RangeKnob(low=2048, high=32768, step="pow2"),
        _BOTH,
        "longest prompt plus output that is accepted",
        "the KV cache must hold at least one request of this length",
    ),
    KnownKnob(
        "VLLM_CPU_KVCACHE_SPACE",
        ChoicesKnob(choices=(1, 2, 4)),
        ("cpu",),
        "size of the KV cache on the CPU build, in GiB",
        "more holds more requests; it is taken from the host's memory",
    ),
)

CATALOGUE = MappingProxyType({knob.name: knob for knob in _KNOBS})

_SCHEDULER = ("max_num_batched_tokens", "max_num_seqs")
_PRESETS: dict[Preset, tuple[str, ...]] = {
    Preset.THROUGHPUT: (
        *_SCHEDULER,
        "gpu_memory_utilization",
        "block_size",
        "VLLM_CPU_KVCACHE_SPACE",
        "async_scheduling",
    ),
    Preset.LATENCY: (
        *_SCHEDULER,
        "gpu_memory_utilization",
        "enforce_eager",
        "stream_interval",
        "VLLM_CPU_KVCACHE_SPACE",
    ),
    Preset.BALANCED: (
        *_SCHEDULER,
        "gpu_memory_utilization",
        "block_size",
        "enforce_eager",
        "VLLM_CPU_KVCACHE_SPACE",
    ),
    Preset.NONE: (),
}


def preset_knobs(preset: Preset, platform: Platform | None) -> dict[str, RangeKnob | ChoicesKnob]:
    """A preset's knobs with their ranges, those that ``platform`` has; ``None`` stands for ``cuda``."""
    here = platform or "cuda"
    return {name: CATALOGUE[name].domain for name in _PRESETS[preset] if here in CATALOGUE[name].platforms}


# ---------------------------------------------------------------- what a study may set

_RESERVED = frozenset(
    {
        "host",
        "port",
        "model",
        "served_model_name",
        "uds",
        "headless",
        "config",
        "root_path",
        "api_server_count",
        "grpc",
        "grpc_port",
        "device_ids",
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "data_parallel_address",
        "data_parallel_rpc_port",
        "data_parallel_supervisor_port",
    }
)
_DANGEROUS = frozenset(
    {
        "api_key",
        "hf_token",
        "trust_remote_code",
        "worker_cls",
        "worker_extension_cls",
        "scheduler_cls",
        "middleware",
        "logits_processors",
        "io_processor_plugin",
        "tool_parser_plugin",
        "reasoning_parser_plugin",
        "tool_server",
        "model_class_overrides",
        "log_config_file",
        "logging_config",
        "profiler_config",
        "otlp_traces_endpoint",
        "kv_transfer_config",
        "ec_transfer_config",
        "weight_transfer_config",
        "mm_encoder_fp8_scale_save_path",
        "allowed_local_media_path",
        "trust_request_chat_template",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_ciphers",
        "enable_ssl_refresh",
    }
)
_ENV_NAME = re.compile(r"^[A-Z][A-Z0-9_]*$")
_ENV_ALLOWED = re.compile(
    r"""^(
    VLLM_[A-Z0-9_]+ | OMP_[A-Z0-9_]+ | MKL_NUM_THREADS | NCCL_[A-Z0-9_]+ | CUDA_DEVICE_MAX_CONNECTIONS
    | PYTORCH_(CUDA_)?ALLOC_CONF | TORCHINDUCTOR_[A-Z0-9_]+ | HF_HUB_OFFLINE
    )$""",
    re.VERBOSE,
)
# Secrets; libraries, folders and files that are loaded or written; addresses; switches that open the server.
_ENV_REFUSED = re.compile(
    r"""KEY | TOKEN$ | SECRET | PASSWORD | PLUGIN | PICKLE | LIBRAR | INSECURE | DEV_MODE | RUNTIME_LORA
    | _(PATH|ROOT|DIR|FOLDER|FILE|URL|HOST|HOST_IP|PORT|SERVER)$ | ^VLLM_USE_MODELSCOPE$""",
    re.VERBOSE,
)
_SIZE = re.compile(r"^(auto|-1|\d+[kKmMgGtT]?|\d+\.\d+[kmgt])$")


_KINDS: dict[str, KnobKind] = {"int": "int", "float": "float", "bool": "bool"}


@cache
def _vllm() -> dict[str, Any]:
    text = resources.files("tuner").joinpath("vllm_flags.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def is_env(name: str) -> bool:
    """Whether a knob is an environment variable: its name is in capitals."""
    return bool(_ENV_NAME.match(name))


def kind_of(name: str) -> KnobKind:
    """Type of a vLLM argument's value, by vLLM's own parser; lists count as text."""
    kind: str = _vllm()["flags"].get(name, {}).get("kind", "str")
    return _KINDS.get(kind, "str")


def check_argument(field: str, name: str) -> None:
    """Refuse what vLLM does not know, what the worker sets itself, and what would run foreign code.

    Raises:
        FieldError: naming ``field`` and the argument meant, where one is near.
    """
    if name in _RESERVED:
        raise FieldError(
            field, name, problem=f"{name} is set by the worker or by engine.model", fix="leave it out"
        )
    if name in _DANGEROUS:
        problem = f"{name} could run foreign code or carry a secret"
        raise FieldError(
            field, name, problem=problem, fix="set it in the worker's own environment, if you must"
        )
    if name not in _vllm()["flags"]:
        near = did_you_mean(name.replace("-", "_"), [*_vllm()["flags"], *CATALOGUE])
        fix = near or "see `vllm serve --help=all` for the names, with underscores"
        raise FieldError(field, name, problem=f"vLLM {_vllm()['vllm']} has no argument {name}", fix=fix)


def check_environment(field: str, name: str) -> None:
    """Allow the environment variables that tune vLLM, and no others.

    Raises:
        FieldError: the name is not one of them, or could carry a secret or load code.
    """
    if not _ENV_ALLOWED.match(name) or _ENV_REFUSED.search(name):
        raise FieldError(
            field,
            name,
            problem=f"the environment variable {name} may not be set by a study",
            fix="use VLLM_…, OMP_…, NCCL_…, or set it in the worker's own environment",
        )


def check_value(field: str, name: str, value: ArgValue) -> None:
    """Refuse a value that vLLM's parser would refuse: another type, or none of the argument's choices.

    Raises:
        FieldError: naming the type or the choices that the argument takes.
    """
    if is_env(name):
        return
    kind = kind_of(name)
    if not _is_of_kind(kind, value):
        words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}
        raise FieldError(field, value, problem=f"{name} takes {words[kind]}", fix=f"write {words[kind]}")
    flag = _vllm()["flags"].get(name, {})
    choices = [] if flag.get("kind") == "list" else flag.get("choices", [])
    if choices and str(value) not in choices:
        near = did_you_mean(value, choices) if isinstance(value, str) else None
        fix = near or f"write one of {', '.join(choices)}"
        raise FieldError(field, value, problem=f"{name} has no such choice", fix=fix)


def _is_of_kind(kind: KnobKind, value: ArgValue) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            # vLLM's whole numbers take text too: "8K", and "auto" for max_model_len.
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole or (isinstance(value, str) and bool(_SIZE.match(value)))
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "str":
            return not isinstance(value, bool)

"""The known exceptions and what they mean: a table.

A pattern is matched at the start of an exception's message, since anything may be quoted further on; where
a library puts something variable first, the pattern says how much. The first row that fits decides, so the
order matters: memory before kernels, the host's software before its devices, the model before the
configuration, and what only names a library last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.protocol import FailureKind, Phase, Verdict

__all__ = ["FATAL", "INFEASIBLE", "RETRY", "RULES", "STANDINGS", "Rule", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What follows from a kind, unless other evidence speaks against it."""

    verdict: Verdict
    retryable: bool = False
    fatal: bool = False


INFEASIBLE = Standing(Verdict.INFEASIBLE)
RETRY = Standing(Verdict.FAILED, retryable=True)
FATAL = Standing(Verdict.FAILED, fatal=True)

STANDINGS = {
    FailureKind.OOM_DEVICE: INFEASIBLE,
    FailureKind.OOM_HOST: RETRY,
    FailureKind.KV_CACHE_TOO_SMALL: INFEASIBLE,
    FailureKind.MEMORY_BUDGET: INFEASIBLE,
    FailureKind.INVALID_CONFIG: INFEASIBLE,
    FailureKind.UNKNOWN_FLAG: FATAL,
    FailureKind.KERNEL_ERROR: INFEASIBLE,
    FailureKind.MODEL_UNAVAILABLE: FATAL,
    FailureKind.BROKEN_INSTALLATION: FATAL,
    FailureKind.DEVICE_UNAVAILABLE: FATAL,
    FailureKind.PORT_IN_USE: RETRY,
    FailureKind.STARTUP_TIMEOUT: RETRY,
    FailureKind.ENGINE_CRASH: RETRY,
    FailureKind.SERVER_OVERLOADED: INFEASIBLE,
    FailureKind.OTHER: RETRY,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One row.

    Attributes:
        types: fits the type's name without its module; ``None`` fits all.
        message: fits the beginning of the message; ``None`` fits all.
        starting_only: such a message means something else once requests are served.
    """

    kind: FailureKind
    types: re.Pattern[str] | None
    message: re.Pattern[str] | None
    starting_only: bool
    standing: Standing

    def fits(self, type_name: str, message: str, phase: Phase) -> bool:
        if self.starting_only and phase is not Phase.STARTING:
            return False
        type_fits = self.types is None or self.types.fullmatch(type_name) is not None
        return type_fits and (self.message is None or self.message.match(message) is not None)


def _rule(
    kind: FailureKind,
    *beginnings: str,
    types: str = "",
    starting_only: bool = False,
    standing: Standing | None = None,
) -> Rule:
    return Rule(
        kind,
        re.compile(types) if types else None,
        re.compile("|".join(beginnings), re.IGNORECASE) if beginnings else None,
        starting_only,
        standing or STANDINGS[kind],
    )


DEVICE = r"(?:CUDA|HIP|XPU|NPU|MPS|MUSA|HPU|GPU|device|driver)"
LINE = r"[^\n]{0,300}"
"""Anything within the first line."""

MEMORY = (
    _rule(
        FailureKind.OOM_HOST,
        r"(?:\[enforce fail at [^\n]{0,80}\] )?[^\n]{0,40}DefaultCPUAllocator: ",
        r"\[Errno 12\]",
        r"std::bad_alloc",
        r"unable to (?:mmap|allocate) [\d.]+ ",
        r"[^\n]{0,60}cannot allocate memory",
    ),
    _rule(FailureKind.OOM_HOST, types="MemoryError|_ArrayMemoryError"),
    _rule(FailureKind.OOM_HOST, rf"{LINE}node running low on memory", types="OutOfMemoryError"),
    _rule(FailureKind.OOM_DEVICE, types="OutOfMemoryError"),
    _rule(
        FailureKind.OOM_DEVICE,
        r"[\s\S]{0,1000}(?:Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:c|m)alloc)",
        types=r"DistBackendError|RuntimeError|nccl\w+Error",
    ),
    _rule(
        FailureKind.OOM_DEVICE,
        rf"{DEVICE} out of memory",
        rf"{DEVICE}(?: driver)? error(?: \w+)?: (?:out of memory|\w*OutOfMemory)",
        r"Triton Error \[\w+\]: out of memory",
        r"[^\n]{0,80}(?:CUBLAS|HIPBLAS|CUDNN|MIOPEN)_STATUS_ALLOC_FAILED",
        r"[^\n]{0,120}(?:UR_RESULT|PI|ZE_RESULT)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)",
        r"[^\n]{0,40}hipErrorOutOfMemory",
        r"Failed to load model - not enough GPU memory",
    ),
    _rule(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"No available memory for the cache blocks",
        r"To serve at least one request with the model's max seq len",
        r"The model's max seq len \(\d+\) is larger than the maximum number of tokens",
        r"Available memory on node [^\n]* requested memory for kv \(-",
    ),
    _rule(
        FailureKind.MEMORY_BUDGET,
        r"Free memory on device [^\n]* is less than",
        r"Available memory on node [^\n]* is less than",
        r"Externally held weights on device",
    ),
    _rule(FailureKind.MEMORY_BUDGET, r"Error in memory profiling", standing=RETRY),
)
KERNELS = (
    _rule(FailureKind.KERNEL_ERROR, types="OutOfResources"),
    _rule(FailureKind.KERNEL_ERROR, types="PTXASError|CompilationError|CompileTimeAssertionFailure"),
    _rule(
        FailureKind.KERNEL_ERROR,
        r"out of resource: ",
        r"[^\n]{0,60}too many resources requested for launch",
        rf"{DEVICE} error: invalid (?:configuration )?argument",
        r"Triton Error \[\w+\]: (?:invalid|too many)",
        r"FlashAttention only supports",
    ),
)
SOFTWARE = (
    _rule(
        FailureKind.BROKEN_INSTALLATION,
        types="ModuleNotFoundError|ImportError|PackageNotFoundError|DistributionNotFound|VersionConflict",
    ),
    _rule(
        FailureKind.BROKEN_INSTALLATION,
        rf"{LINE}(?:cannot open shared object file|undefined symbol)",
        rf"{LINE}(?:no kernel image is available|invalid device function|hipErrorNoBinaryForGpu)",
        rf"{LINE}(?:forward compatibility was attempted|unsupported display driver)",
        r"Torch not compiled with \w+ enabled|Ninja build failed|Error building extension",
        r"Error compiling objects for extension",
        r"operator torch\w*::\w+ does not exist",
        r"(?:module '|'_OpNamespace')[^\n]{0,80} has no attribute",
        r"Could not run '\w+::\w+' with arguments",
        r"Failed to find C compiler|Could not find nvcc|CUDA_HOME environment|Ninja is required",
        r"The NVIDIA driver on your system is too old",
        r"[^\n]{0,60}driver version is insufficient",
        r"[^\n]{0,60}unsupported toolchain",
    ),
)
DEVICES = (
    _rule(
        FailureKind.DEVICE_UNAVAILABLE,
        rf"[^\n]{{0,40}}{DEVICE}[^\n]{{0,40}}busy or unavailable",
        standing=RETRY,
    ),
    _rule(
        FailureKind.DEVICE_UNAVAILABLE,
        r"No (?:\w+ )?(?:GPUs?|devices?|accelerators?) (?:are|is|were) (?:available|found|detected)",
        r"Found no NVIDIA driver|Failed to infer device type|Device string must not be empty",
        rf"{LINE}no \w+-capable device|\w+ device count is zero",
        rf"{LINE}(?:driver initialization failed|CUDA unknown error|system not yet initialized)",
        rf"{LINE}(?:invalid device ordinal|uncorrectable ECC|fallen off the bus|GPU is lost)",
    ),
    _rule(FailureKind.DEVICE_UNAVAILABLE, types=r"NVMLError\w*|AmdSmiLibraryException"),
)
NETWORK = (
    _rule(
        FailureKind.PORT_IN_USE,
        rf"{LINE}(?:address already in use|EADDRINUSE)",
        r"\[Errno 98\]",
        r"[^\n]{0,80}server socket has failed to (?:listen|bind)",
    ),
)
MODEL = (
    _rule(
        FailureKind.MODEL_UNAVAILABLE,
        rf"{LINE}(?:HTTPS?Connection|huggingface|hf\.co|Max retries|timed out|Failed to resolve)",
        types="Connect(?:ion)?Error|(?:Connect|Read)Timeout|MaxRetryError|ProxyError",
        standing=RETRY,
    ),
    _rule(
        FailureKind.MODEL_UNAVAILABLE,
        r"[^\n]{0,40}(?:429|5\d\d)\b",
        types="HfHubHTTPError|HTTPError|HTTPStatusError",
        standing=RETRY,
    ),
    _rule(
        FailureKind.MODEL_UNAVAILABLE,
        r"We couldn't connect to|An error happened while trying to locate the file on the Hub",
        r"There was a specific connection error",
        standing=RETRY,
    ),
    _rule(
        FailureKind.MODEL_UNAVAILABLE,
        types="GatedRepoError|RepositoryNotFoundError|RevisionNotFoundError|(?:Remote|Local)?EntryNotFoundError"
        "|HFValidationError|OfflineModeIsEnabled|DisabledRepoError|SafetensorError|HfHubHTTPError",
    ),
    _rule(
        FailureKind.MODEL_UNAVAILABLE,
        r"Invalid repository ID or local directory|Could not detect config format",
        r"You are trying to access a gated|No supported config format found",
        rf"{LINE}(?:is not a local folder|does not appear to have (?:a file|files) named|no file named)",
        r"Can't load|Unable to load|Cannot find any model weights|No model weights",
        r"There is no module or parameter named",
        r"Model architectures? |The checkpoint you are trying to load has model type|Unrecognized model",
        rf"{LINE}(?:contains custom code|execute the (?:configuration|modeling) file|trust_remote_code)",
        r"Couldn't instantiate the backend tokenizer|Error while deserializing header",
    ),
    _rule(
        FailureKind.MODEL_UNAVAILABLE,
        rf"{LINE}(?:config\.json|tokenizer|\.safetensors|\.bin\b|\.gguf)",
        types="FileNotFoundError|NotADirectoryError|PermissionError",
        starting_only=True,
    ),
)
CONFIGURATION = (
    _rule(
        FailureKind.UNKNOWN_FLAG,
        r"unrecognized arguments|ambiguous option|no such option",
        types="UsageError|ArgumentError|ValueError|SystemExit",
    ),
    _rule(
        FailureKind.UNKNOWN_FLAG,
        r"\S*(?:Args|Config)\S* got an unexpected keyword argument",
        types="TypeError",
    ),
    _rule(FailureKind.INVALID_CONFIG, types="UsageError"),
    _rule(
        FailureKind.INVALID_CONFIG,
        r"\d+ validation errors? for \w*(?:Config|Args)\b",
        types="ValidationError",
        starting_only=True,
    ),
    _rule(
        FailureKind.INVALID_CONFIG,
        r"User-specified max_model_len|max_num_batched_tokens \(|Total number of attention heads",
        r"World size \(\d+\) is larger|Tensor parallel size \(\d+\) cannot be larger",
        r"please set tensor_parallel_size|The number of required \w+ exceeds",
        types="ValueError|AssertionError|RuntimeError|ValidationError",
    ),
    _rule(
        FailureKind.INVALID_CONFIG,
        rf"{LINE}(?:must|should) be (?:divisible|greater|less|smaller|at |positive|one of|between|in |<=|>=)",
        rf"{LINE}(?:is (?:greater|larger|smaller|less) than|is not divisible)",
        rf"{LINE}cannot be (?:greater|larger|less|smaller|used|set|combined)",
        rf"{LINE}(?:is|are) (?:not|only) supported|{LINE}(?:does|do) not support|{LINE}not supported for",
        rf"{LINE}(?:is not compatible|is incompatible|is not a valid|can only be)|{LINE}requires? ",
        rf"{LINE}no valid (?:\w+ )*backend|Invalid (?:\w+ )?backend|Unknown quantization|Unsupported",
        types="ValueError|NotImplementedError|AssertionError|VLLMValidationError",
        starting_only=True,
    ),
)
CRASHES = (
    _rule(FailureKind.ENGINE_CRASH, types=r"FatalPythonError|DistBackendError|NCCLError|nccl\w+Error"),
    _rule(
        FailureKind.ENGINE_CRASH,
        rf"[^\n]{{0,60}}{DEVICE} (?:kernel )?error: ",
        r"NCCL error|RCCL error|oneCCL",
        r"[^\n]{0,80}UR_RESULT_ERROR_DEVICE_LOST",
        r"[^\n]{0,40}C(?:UBLAS|UDNN)_STATUS_",
    ),
)
RULES = (*MEMORY, *KERNELS, *SOFTWARE, *DEVICES, *NETWORK, *MODEL, *CONFIGURATION, *CRASHES)

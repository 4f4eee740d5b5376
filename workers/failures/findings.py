"""What a chain of exceptions means: which of them decides, and what kind of failure that is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.protocol import FailureKind, Phase
from workers.failures.catalogue import RULES, STANDINGS, Standing
from workers.failures.tracebacks import Chain, Link, Raised

__all__ = ["RESOURCES", "Finding", "find", "is_aftermath", "is_wrapper"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The exception of a chain that decides, and what it means; ``kind`` ``None``: not a known one."""

    chain: Chain
    raised: Raised
    kind: FailureKind | None
    standing: Standing


WRAPPER = re.compile(
    r"(?:Engine core initialization failed|EngineCore encountered an issue|WorkerProc initialization failed"
    r"|Engine process failed to start|Engine core process \S+ died|Engine loop (?:is not running|has died)"
    r"|Frontend process failed|Process \S+ \(PID: \d+\) died|Background loop (?:is not running|has errored)"
    r"|Task finished unexpectedly|Executor failed|RayWorkerProc|All workers? .*died)",
    re.IGNORECASE,
)
WRAPPER_TYPES = re.compile(
    r"EngineDeadError|MQEngineDeadError|AsyncEngineDeadError|EngineGenerateError|ActorDiedError"
)
AFTERMATH = re.compile(
    r"[^\n]{0,160}(?:Connection (?:closed|reset|refused|aborted)|remote process exited|Broken pipe"
    r"|Socket closed|\bcancell?ed\b|ncclRemoteError|RPC call to \w+ timed out|Aborted due to|peer closed)",
    re.IGNORECASE,
)
AFTERMATH_TYPES = re.compile(
    r"BrokenPipeError|Connection(?:Reset|Refused|Aborted)Error|EOFError|CancelledError|KeyboardInterrupt|SystemExit|ZMQError|Again"
    r"|IncompleteReadError|ClientDisconnect|GeneratorExit"
)
INNER = (
    re.compile(r"Error in model execution(?: \(input dumped to [^)]*\))?: (?P<message>.*)", re.DOTALL),
    re.compile(r"Worker failed with error ['\"](?P<message>.*)", re.DOTALL),
    re.compile(r"[^\n]{0,120}thread terminated with exception: (?P<message>.*)", re.DOTALL),
    re.compile(r"Call to \w+ method failed: (?P<message>.*)", re.DOTALL),
    re.compile(r"backend='[^']*' raised:\s*(?P<message>.*)", re.DOTALL),
    re.compile(
        r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|OutOfResources)): (?P<message>.*)", re.DOTALL
    ),
)
PYDANTIC = re.compile(
    r"\d+ validation errors? for (?P<model>\w+)[^\n]*\n(?:[^\n]*\n)??\s+Value error, (?P<message>.*)",
    re.DOTALL,
)
TRAILER = re.compile(r"\s\[type=|\n\s+For further information|['\"], please check the stack trace")
CHECKS = re.compile(r"vllm/(?:config/|engine/arg_utils|platforms/)|vllm\\(?:config|engine|platforms)\\")
MAX_DEPTH = 4


def is_wrapper(raised: Raised) -> bool:
    """It only says that another process died, whose own exception tells why."""
    return bool(WRAPPER_TYPES.fullmatch(raised.name) or WRAPPER.match(raised.message))


def is_aftermath(raised: Raised) -> bool:
    """It follows from another process having gone, or from being told to stop."""
    return bool(AFTERMATH_TYPES.fullmatch(raised.name) or AFTERMATH.match(raised.message))


def find(chain: Chain, phase: Phase) -> Finding | None:
    """The exception of a chain that decides; ``None`` when all of them only point elsewhere.

    Running out of a resource is never an expected exception, so it decides wherever in the chain it stands.
    Otherwise the direct cause decides over what was raised from it, and what was raised while another
    exception was handled decides over that one: the handled one may have been an expected attempt.
    """
    known = [_known(chain, raised, phase) for raised in chain.raised]
    told = [finding for finding in known if finding is not None]
    if not told:
        return None
    for finding in told:
        if finding.kind in RESOURCES:
            return _more_telling(finding, told)
    named = [finding for finding in told if finding.kind is not None]
    return _by_links(chain, named or told)


RESOURCES = {
    FailureKind.OOM_DEVICE,
    FailureKind.OOM_HOST,
    FailureKind.KV_CACHE_TOO_SMALL,
    FailureKind.MEMORY_BUDGET,
    FailureKind.KERNEL_ERROR,
}


def _more_telling(finding: Finding, told: list[Finding]) -> Finding:
    """vLLM wraps an OOM of the sampler's warm-up into one of the same kind that names the knob."""
    for other in told:
        if other.kind is finding.kind and "warming up" in other.raised.message:
            return Finding(other.chain, other.raised, other.kind, other.standing)
    return finding


def _by_links(chain: Chain, findings: list[Finding]) -> Finding:
    positions = {id(finding): _position(chain, finding) for finding in findings}
    best = findings[0]
    for finding in findings[1:]:
        between = chain.links[positions[id(best)] : positions[id(finding)]]
        if Link.CONTEXT in between:
            best = finding
    return best


def _position(chain: Chain, finding: Finding) -> int:
    return next(i for i, raised in enumerate(chain.raised) if raised.numbers == finding.raised.numbers)


def _known(chain: Chain, raised: Raised, phase: Phase) -> Finding | None:
    layers = _layers(raised)
    kind, standing = _meaning(layers, phase)
    if kind in {None, FailureKind.ENGINE_CRASH} and (is_wrapper(raised) or is_aftermath(raised)):
        return None
    return Finding(chain, layers[0], kind, standing)


def _meaning(layers: Sequence[Raised], phase: Phase) -> tuple[FailureKind | None, Standing]:
    for layer in layers:
        for rule in RULES:
            if rule.fits(layer.name, layer.message, phase):
                return rule.kind, rule.standing
    if phase is Phase.STARTING and _refused_by_configuration(layers[0]):
        return FailureKind.INVALID_CONFIG, STANDINGS[FailureKind.INVALID_CONFIG]
    return None, STANDINGS[FailureKind.OTHER]


def _refused_by_configuration(raised: Raised) -> bool:
    """vLLM's own checks of its arguments raised it, in words that are not known here."""
    return (
        raised.name in {"ValueError", "NotImplementedError", "AssertionError"}
        and bool(raised.frames)
        and CHECKS.search(raised.frames[-1].file) is not None
    )


def _layers(raised: Raised) -> list[Raised]:
    """The exception and what its message quotes of another one, the innermost first."""
    layers = [raised]
    while len(layers) <= MAX_DEPTH and (inner := _inner(layers[0])) is not None:
        layers.insert(0, inner)
    return layers


def _inner(raised: Raised) -> Raised | None:
    if validation := PYDANTIC.match(raised.message):
        message = TRAILER.split(validation["message"], maxsplit=1)[0]
        return Raised("ValueError", message, raised.frames, raised.numbers)
    for pattern in INNER:
        if found := pattern.match(raised.message):
            named = found.groupdict().get("type")
            message = TRAILER.split(found["message"], maxsplit=1)[0]
            return Raised(named or raised.type, message, raised.frames, raised.numbers)
    return None

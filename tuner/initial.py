"""What is tried before the sampler: vLLM's defaults, then rules of thumb for the workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tuner.protocol import ArgValue, ClosedLoop
from tuner.space import Domain, Space
from tuner.spec import StudySpec

__all__ = ["BASELINE", "rule_points"]

BASELINE = "baseline"
"""Origin of the trial that runs vLLM's defaults."""

_USUAL: Mapping[str, ArgValue] = MappingProxyType(
    {
        "gpu_memory_utilization": 0.9,
        "block_size": 16,
        "enforce_eager": False,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "async_scheduling": True,
        "stream_interval": 1,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
    }
)


def rule_points(spec: StudySpec, space: Space) -> Iterator[tuple[str, dict[str, ArgValue]]]:
    """Rules of thumb as whole points of the space, each with its origin.

    - ``rule:every-user-runs``: as many running requests as the load can offer, and steps large enough for
      their prompts; nothing waits for a slot.
    - ``rule:seqs-follow-tokens``: ``max_num_seqs`` a little above ``max_num_batched_tokens`` divided by the
      mean prompt length, so that a step full of prefills does not leave slots idle.
    """
    if not {"max_num_seqs", "max_num_batched_tokens"} & set(space.names):
        return
    usual = {domain.name: _usual(domain) for domain in space.domains}
    prompt = spec.workload.prompts.input_tokens.mean
    users = _users(spec)
    yield (
        "rule:every-user-runs",
        space.snap(
            _numbers(space, usual, {"max_num_seqs": users, "max_num_batched_tokens": max(8192, 2 * prompt)})
        ),
    )
    tokens = max(2048, 2 * prompt)
    yield (
        "rule:seqs-follow-tokens",
        space.snap(
            _numbers(
                space,
                usual,
                {"max_num_batched_tokens": tokens, "max_num_seqs": max(8, round(1.25 * tokens / prompt))},
            )
        ),
    )


def _users(spec: StudySpec) -> float:
    """Requests in flight at once: the users of a closed loop; for open loops ten seconds of arrivals."""
    arrivals = spec.workload.arrivals
    return arrivals.concurrency if isinstance(arrivals, ClosedLoop) else 10 * arrivals.rate_per_s


def _usual(domain: Domain) -> ArgValue:
    """vLLM's usual value where the knob has it, else the first choice or the middle of the range."""
    usual = _USUAL.get(domain.name)
    if usual is not None and domain.contains(usual):
        return usual
    if domain.grid is None:
        low, high = _bounds(domain)
        return domain.snap((low + high) / 2)
    categorical = isinstance(domain.distribution, CategoricalDistribution)
    return domain.grid[0] if categorical else domain.grid[len(domain.grid) // 2]


def _bounds(domain: Domain) -> tuple[float, float]:
    """The ends of a numeric domain."""
    distribution = domain.distribution
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise TypeError(f"{domain.name} has no bounds")
    return float(distribution.low), float(distribution.high)


def _numbers(space: Space, usual: Mapping[str, ArgValue], wanted: Mapping[str, float]) -> dict[str, ArgValue]:
    """``usual`` with the wanted numbers over it, where those are knobs that take numbers."""
    point = dict(usual)
    for domain in space.domains:
        if domain.name in wanted:
            point[domain.name] = _nearest(domain, wanted[domain.name], point[domain.name])
    return point


def _nearest(domain: Domain, wanted: float, otherwise: ArgValue) -> ArgValue:
    if domain.grid is None:
        low, high = _bounds(domain)
        return domain.snap(min(high, max(low, wanted)))
    numbers = [value for value in domain.grid if isinstance(value, int | float)]
    return min(numbers, key=lambda value: abs(float(value) - wanted), default=otherwise)

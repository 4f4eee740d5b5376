"""Optuna's samplers, made to know the space."""

from __future__ import annotations

from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from tuner.space import Space
from tuner.spec import SamplerName, StudySpec

__all__ = ["SpaceTPESampler", "make_sampler"]

STARTUP_TRIALS = 6
"""Trials before TPE models anything. Optuna's default of 10 would be a third of a typical budget here."""


class SpaceTPESampler(TPESampler):
    """Multivariate TPE over the whole space, whatever parameters past trials have.

    Optuna's own takes the intersection of all past trials' parameters. The baseline runs vLLM's defaults and
    may have none, which would make that intersection empty, and every knob independent of every other one.
    """

    def __init__(self, space: Space, *, seed: int) -> None:
        super().__init__(
            seed=seed,
            multivariate=True,
            constant_liar=True,
            n_startup_trials=STARTUP_TRIALS,
        )
        self._space = space

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002 - Optuna's signature
        trial: FrozenTrial,  # noqa: ARG002 - Optuna's signature
    ) -> dict[str, BaseDistribution]:
        """All knobs that can take more than one value."""
        return {name: d for name, d in sorted(self._space.distributions().items()) if not d.single()}

    def __reduce__(self) -> Any:
        raise TypeError("a sampler is made anew for each suggestion, never stored")


def make_sampler(spec: StudySpec, space: Space, *, seed: int) -> BaseSampler:
    """The study's sampler; ``auto`` is constrained multi-objective TPE."""
    match spec.sampler:
        case SamplerName.RANDOM:
            return RandomSampler(seed=seed)
        case SamplerName.AUTO | SamplerName.TPE:
            return SpaceTPESampler(space, seed=seed)

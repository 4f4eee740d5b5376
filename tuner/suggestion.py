"""The next configuration to measure: a pure function of spec, space and history.

The sampler works on an in-memory Optuna study rebuilt from the history, so a candidate that is refused or
already known costs no trial: it is told there as pruned, and the sampler is asked again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.constraints import Violation, violations
from tuner.errors import TunerError
from tuner.initial import BASELINE, rule_points
from tuner.protocol import ArgValue
from tuner.sampler import make_sampler
from tuner.space import Space
from tuner.spec import StudySpec

__all__ = ["LEASE_ATTR", "ORIGIN_ATTR", "SpaceExhaustedError", "Suggestion", "suggest"]

ORIGIN_ATTR = "nightshift:origin"
LEASE_ATTR = "nightshift:lease_id"

MAX_ASKS = 32
"""Asks of the sampler before falling back to a uniform choice among what is untried."""
MAX_LISTED_POINTS = 200_000
MAX_DRAWS = 2_000


class SpaceExhaustedError(TunerError):
    """Every admissible point of the space has been tried.

    Attributes:
        tried: number of distinct points in the history.
    """

    def __init__(self, tried: int) -> None:
        super().__init__(f"all {tried} admissible configurations of the space have been tried")
        self.tried = tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """A configuration to measure.

    Attributes:
        params: value of each knob; empty for the baseline.
        args: all vLLM arguments, fixed ones included.
        env: all environment variables.
        knobs: names of the knobs, so that a verdict can tell a knob from a fixed argument.
        origin: ``baseline``, ``rule:<name>`` or ``sampler``.
        refused: known constraints that other candidates broke before this one was found.
    """

    params: Mapping[str, ArgValue]
    distributions: Mapping[str, BaseDistribution]
    args: Mapping[str, ArgValue]
    env: Mapping[str, str]
    knobs: tuple[str, ...]
    origin: str
    refused: tuple[Violation, ...] = ()

    def template(self, lease_id: str) -> FrozenTrial:
        """A RUNNING Optuna trial, whole, for one atomic ``create_new_trial``."""
        return create_trial(
            state=TrialState.RUNNING,
            params=dict(self.params),
            distributions={name: self.distributions[name] for name in self.params},
            user_attrs={
                ORIGIN_ATTR: self.origin,
                LEASE_ATTR: lease_id,
                "args": dict(self.args),
                "env": dict(self.env),
            },
        )


def suggest(spec: StudySpec, space: Space, history: Sequence[FrozenTrial]) -> Suggestion:
    """The next configuration. Same spec, space and history: same answer.

    Args:
        spec: the study.
        space: built from ``spec``.
        history: all trials of the study's Optuna record, running ones included, in order.

    Raises:
        SpaceExhaustedError: nothing admissible is left to try.
    """
    seen_origins = {trial.user_attrs.get(ORIGIN_ATTR) for trial in history}
    if BASELINE not in seen_origins:
        return _suggestion(space, {}, BASELINE)
    known = {_key(trial.params) for trial in history if trial.params}
    for origin, point in rule_points(spec, space):
        if origin not in seen_origins and _key(point) not in known and not _broken(space, point):
            return _suggestion(space, point, origin)
    return _sampled(spec, space, history, known)


def _sampled(spec: StudySpec, space: Space, history: Sequence[FrozenTrial], known: set[str]) -> Suggestion:
    seed = _seed(spec, len(history))
    study = _rebuilt(spec, space, history, seed=seed)
    refused: list[Violation] = []
    for _ in range(MAX_ASKS):
        trial = study.ask(dict(space.distributions()))
        point = space.snap(trial.params)
        broken = _broken(space, point)
        if not broken and _key(point) not in known:
            return _suggestion(space, point, "sampler", tuple(refused))
        refused += broken
        for violation in broken:
            trial.set_constraint(f"known:{violation.name}", violation.amount)
        study.tell(trial, state=TrialState.PRUNED)
    point = _untried(space, known, np.random.default_rng(seed))
    return _suggestion(space, point, "sampler", tuple(refused))


def _rebuilt(spec: StudySpec, space: Space, history: Sequence[FrozenTrial], *, seed: int) -> optuna.Study:
    """An in-memory study that holds what the sampler may learn from."""
    study = optuna.create_study(
        storage=optuna.storages.InMemoryStorage(),
        directions=[objective.resolved_direction.value for objective in spec.objectives],
        sampler=make_sampler(spec, space, seed=seed),
    )
    learnable = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    study.add_trials([trial for trial in history if trial.state in learnable])
    return study


def _untried(space: Space, known: set[str], rng: np.random.Generator) -> dict[str, ArgValue]:
    size = space.size()
    if size is not None and size <= MAX_LISTED_POINTS:
        left = [point for point in space.points() if _key(point) not in known and not _broken(space, point)]
        if not left:
            raise SpaceExhaustedError(len(known))
        return left[int(rng.integers(len(left)))]
    sampler = optuna.samplers.RandomSampler(seed=int(rng.integers(2**31)))
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), sampler=sampler)
    for _ in range(MAX_DRAWS):
        point = space.snap(study.ask(dict(space.distributions())).params)
        if _key(point) not in known and not _broken(space, point):
            return point
    raise SpaceExhaustedError(len(known))


def _suggestion(
    space: Space, point: Mapping[str, ArgValue], origin: str, refused: tuple[Violation, ...] = ()
) -> Suggestion:
    args, env = space.split(point)
    return Suggestion(
        params=dict(point),
        distributions=space.distributions(),
        args=args,
        env=env,
        knobs=space.names,
        origin=origin,
        refused=refused,
    )


def _broken(space: Space, point: Mapping[str, ArgValue]) -> tuple[Violation, ...]:
    return violations(space.split(point)[0])


def _key(params: Mapping[str, ArgValue]) -> str:
    """Equal for equal configurations: 0.9 and 0.90 are one, True and 1 are not."""
    return repr(
        sorted(
            (name, value if isinstance(value, bool | str) else float(value)) for name, value in params.items()
        )
    )


def _seed(spec: StudySpec, position: int) -> int:
    digest = hashlib.sha256(f"{spec.name}:{spec.seed}:{position}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31)

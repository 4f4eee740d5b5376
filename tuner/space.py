"""The space of a study: its knobs as domains, and what a point of it means for vLLM.

A point is a mapping from knob name to value. The sampler proposes values of Optuna distributions; a value
is snapped to the knob's grid before it is stored, so that the record shows what vLLM was started with.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tuner.errors import FieldError
from tuner.knobs import (
    Platform,
    check_argument,
    check_environment,
    check_value,
    is_env,
    kind_of,
    preset_knobs,
)
from tuner.protocol import ArgValue
from tuner.spec import ChoicesKnob, KnobSpec, RangeKnob, StudySpec

__all__ = ["Domain", "Params", "Space", "build_space", "platform_of"]

Params = Mapping[str, ArgValue]

MAX_GRID = 10_000
"""A grid with more values than this is treated as continuous: listing it would be slow and useless."""


@dataclass(frozen=True, slots=True)
class Domain:
    """One knob of a space.

    Attributes:
        name: vLLM argument or, in capitals, environment variable.
        distribution: what the sampler draws from.
        grid: every value, in ascending or given order; ``None`` for a continuous knob.
    """

    name: str
    distribution: BaseDistribution
    grid: tuple[ArgValue, ...] | None

    def snap(self, value: ArgValue) -> ArgValue:
        """The value of the grid next to ``value``, on the distribution's own scale."""
        if isinstance(self.distribution, CategoricalDistribution):
            return value
        if self.grid is None:
            return round(float(value)) if isinstance(self.distribution, IntDistribution) else value
        scale = math.log if getattr(self.distribution, "log", False) else float
        at = scale(float(value))
        return min(self.grid, key=lambda candidate: abs(scale(float(candidate)) - at))

    def contains(self, value: ArgValue) -> bool:
        """Whether a point of the space can have ``value`` here."""
        if self.grid is not None:
            return any(
                value == choice and isinstance(value, bool) == isinstance(choice, bool)
                for choice in self.grid
            )
        low, high = getattr(self.distribution, "low", None), getattr(self.distribution, "high", None)
        if isinstance(value, bool | str) or low is None or high is None:
            return False
        whole = isinstance(self.distribution, IntDistribution)
        return low <= value <= high and (not whole or float(value).is_integer())


@dataclass(frozen=True, slots=True)
class Space:
    """All knobs of a study, and its fixed arguments."""

    domains: tuple[Domain, ...]
    fixed_args: Mapping[str, ArgValue]
    fixed_env: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The knobs' names."""
        return tuple(domain.name for domain in self.domains)

    def distributions(self) -> dict[str, BaseDistribution]:
        """The distributions by knob, as Optuna stores them."""
        return {domain.name: domain.distribution for domain in self.domains}

    def snap(self, params: Params) -> dict[str, ArgValue]:
        """Each value moved to its knob's grid; knobs that ``params`` lacks stay out."""
        return {
            domain.name: domain.snap(params[domain.name]) for domain in self.domains if domain.name in params
        }

    def contains(self, params: Params) -> bool:
        """Whether ``params`` is a whole point of the space."""
        return params.keys() == set(self.names) and all(d.contains(params[d.name]) for d in self.domains)

    def size(self) -> int | None:
        """Number of points; ``None`` where a knob is continuous."""
        sizes = [None if domain.grid is None else len(domain.grid) for domain in self.domains]
        return None if None in sizes else math.prod(size or 0 for size in sizes)

    def points(self) -> Iterator[dict[str, ArgValue]]:
        """Every point in the order of the grid; nothing where a knob is continuous."""
        grids = [domain.grid for domain in self.domains]
        if any(grid is None for grid in grids):
            return
        for values in itertools.product(*(grid or () for grid in grids)):
            yield dict(zip(self.names, values, strict=True))

    def split(self, params: Params) -> tuple[dict[str, ArgValue], dict[str, str]]:
        """All arguments and environment variables of a trial: the fixed ones, and ``params`` over them."""
        args = {**self.fixed_args, **{name: value for name, value in params.items() if not is_env(name)}}
        env = {**self.fixed_env, **{name: _env_text(value) for name, value in params.items() if is_env(name)}}
        return args, env

    @property
    def fingerprint(self) -> str:
        """Changes when a point of the space would mean something else."""
        facts = {
            "knobs": {d.name: [repr(d.distribution), repr(d.grid)] for d in self.domains},
            "args": dict(self.fixed_args),
            "env": dict(self.fixed_env),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def platform_of(spec: StudySpec) -> Platform:
    """``cpu`` where the study asks for no GPU, else ``cuda``."""
    return "cpu" if spec.hardware.gpus == 0 else "cuda"


def build_space(spec: StudySpec, *, platform: Platform | None = None) -> Space:
    """The space of a study, checked against vLLM's arguments.

    Args:
        spec: the study.
        platform: build of vLLM that the preset's knobs are for; by default as ``spec.hardware`` says.

    Raises:
        FieldError: an unknown, refused or doubly set argument, a value of the wrong type, or no knob at all.
    """
    for name, value in spec.engine.args.items():
        check_argument(f"engine.args.{name}", name)
        check_value(f"engine.args.{name}", name, value)
    for name in spec.engine.env:
        check_environment(f"engine.env.{name}", name)
    chosen: dict[str, KnobSpec | None] = dict(preset_knobs(spec.space.preset, platform or platform_of(spec)))
    for name in (*spec.engine.args, *spec.engine.env):
        chosen.pop(name, None)  # what the study fixes, its preset does not search
    chosen.update(spec.space.knobs)
    for name in chosen:
        _check_knob(spec, name)
    domains = tuple(_domain(name, knob) for name, knob in chosen.items() if knob is not None)
    if not domains:
        raise FieldError(
            "space.knobs",
            {},
            problem="the space has no knob",
            fix="name knobs, or choose a preset such as balanced",
        )
    return Space(domains, dict(spec.engine.args), dict(spec.engine.env))


def _check_knob(spec: StudySpec, name: str) -> None:
    """Also what is taken out by ``null`` has to exist: a misspelt name would take nothing out."""
    field = f"space.knobs.{name}"
    if is_env(name):
        check_environment(field, name)
    else:
        check_argument(field, name)
    if spec.space.knobs.get(name) is not None and (name in spec.engine.args or name in spec.engine.env):
        problem = f"{name} is a knob and a fixed value of the engine at the same time"
        place = "env" if is_env(name) else "args"
        raise FieldError(field, name, problem=problem, fix=f"remove it here, or from engine.{place}")


def _domain(name: str, knob: RangeKnob | ChoicesKnob) -> Domain:
    field = f"space.knobs.{name}"
    if isinstance(knob, ChoicesKnob):
        for position, choice in enumerate(knob.choices):
            check_value(f"{field}.choices.{position}", name, choice)
        return Domain(name, CategoricalDistribution(knob.choices), knob.choices)
    return _range_domain(field, name, knob)


def _range_domain(field: str, name: str, knob: RangeKnob) -> Domain:
    kind = _env_kind(knob) if is_env(name) else kind_of(name)
    if kind not in ("int", "float"):
        problem = f"{name} is not a number, so it has no range"
        raise FieldError(
            field,
            {"low": knob.low, "high": knob.high},
            problem=problem,
            fix=f"list its values: {name}: [a, b]",
        )
    whole = kind == "int" or knob.step == "pow2"
    for bound in ("low", "high"):
        value = getattr(knob, bound)
        if whole and not float(value).is_integer():
            raise FieldError(f"{field}.{bound}", value, problem=f"{name} takes whole numbers", fix="round it")
    grid = _grid(field, knob, whole=whole)
    log = knob.log or knob.step == "pow2"
    if whole:
        low, high = (int(grid[0]), int(grid[-1])) if grid else (int(knob.low), int(knob.high))
        return Domain(name, IntDistribution(low, high, log=log), grid or _every_integer(low, high))
    ends = (float(grid[0]), float(grid[-1])) if grid else (knob.low, knob.high)
    return Domain(name, FloatDistribution(*ends, log=log), grid)


def _env_kind(knob: RangeKnob) -> Literal["int", "float"]:
    """A variable's type is not known; most are counts, so whole bounds mean whole numbers."""
    bounds = (knob.low, knob.high, knob.step if isinstance(knob.step, float) else 1.0)
    return "int" if all(float(bound).is_integer() for bound in bounds) else "float"


def _every_integer(low: int, high: int) -> tuple[ArgValue, ...] | None:
    return tuple(range(low, high + 1)) if high - low < MAX_GRID else None


def _grid(field: str, knob: RangeKnob, *, whole: bool) -> tuple[ArgValue, ...] | None:
    if knob.step is None:
        return (knob.low,) if knob.low == knob.high and not whole else None
    if knob.step == "pow2":
        powers = tuple(2**e for e in range(63) if knob.low <= 2**e <= knob.high)
        if not powers:
            problem = f"no power of two lies between {knob.low:g} and {knob.high:g}"
            raise FieldError(
                field, {"low": knob.low, "high": knob.high}, problem=problem, fix="widen the range"
            )
        return powers
    steps = (knob.high - knob.low) / knob.step + 1e-9  # infinite for the smallest of steps
    if steps >= MAX_GRID:
        problem = f"the range has more than {MAX_GRID:,} steps"
        raise FieldError(f"{field}.step", knob.step, problem=problem, fix="make the step larger")
    count = math.floor(steps) + 1
    if whole and not float(knob.step).is_integer():
        raise FieldError(
            f"{field}.step", knob.step, problem="the knob takes whole numbers", fix="use a whole step"
        )
    if whole:
        return tuple(int(knob.low) + index * int(knob.step) for index in range(count))
    # Rounded to twelve digits, so that 0.85 + 5 * 0.01 is 0.9 and not 0.9000000000000001.
    return tuple(dict.fromkeys(float(f"{knob.low + index * knob.step:.12g}") for index in range(count)))


def _env_text(value: ArgValue) -> str:
    """An environment variable's text: ``1`` and ``0`` for booleans, no decimal point on whole numbers."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)

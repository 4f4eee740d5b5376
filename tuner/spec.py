"""The study file: what a person asks for, as data.

:func:`parse_study` turns plain data (from YAML or JSON) into a :class:`StudySpec` or raises
:class:`~tuner.errors.FieldError` that names the field, the value and the fix. It checks what can be
checked field by field; what needs the catalogue of knobs is checked by :func:`tuner.space.build_space`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from tuner.errors import FieldError
from tuner.metrics import METRICS, Direction
from tuner.protocol import (
    ArgValue,
    ClosedLoop,
    EngineSpec,
    Hardware,
    Length,
    Message,
    Poisson,
    SyntheticPrompts,
    Workload,
)
from tuner.wording import did_you_mean, field_error

__all__ = [
    "Budget",
    "ChoicesKnob",
    "KnobSpec",
    "Objective",
    "Preset",
    "RangeKnob",
    "SamplerName",
    "Slo",
    "SpaceSpec",
    "StudySpec",
    "parse_study",
]

EXACT = 2**53
"""Whole numbers up to here are exact as a float, which JSON and the samplers store."""
NAME_PATTERN = re.compile(r"^[a-z0-9][a-z0-9._-]{0,99}$")


class Preset(StrEnum):
    """Named sets of knobs, in :mod:`tuner.knobs`."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    BALANCED = "balanced"
    NONE = "none"


class SamplerName(StrEnum):
    """Samplers by name; ``auto`` picks one."""

    AUTO = "auto"
    TPE = "tpe"
    RANDOM = "random"


class RangeKnob(Message):
    """A numeric knob: all multiples of ``step`` from ``low``, or all powers of two, between the bounds."""

    model_config = ConfigDict(allow_inf_nan=False)

    low: float = Field(ge=-EXACT, le=EXACT)
    high: float = Field(ge=-EXACT, le=EXACT)
    step: float | Literal["pow2"] | None = None
    log: bool = False

    @model_validator(mode="after")
    def _bounds(self) -> RangeKnob:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}; swap them")
        if self.step == "pow2" and self.low < 1:
            raise ValueError(f"low {self.low:g} is below 1, the first power of two; start at 1 or above")
        if isinstance(self.step, float) and self.step <= 0:
            raise ValueError(f"step {self.step:g} is not above 0; write a step above 0, or pow2")
        if self.log and self.low <= 0:
            raise ValueError(
                f"low {self.low:g} is not above 0, which log needs; start higher, or leave log out"
            )
        return self


class ChoicesKnob(Message):
    """A knob that takes one of the values listed."""

    model_config = ConfigDict(allow_inf_nan=False)

    choices: tuple[ArgValue, ...] = Field(min_length=1)

    @field_validator("choices")
    @classmethod
    def _distinct(cls, choices: tuple[ArgValue, ...]) -> tuple[ArgValue, ...]:
        if len(set(choices)) < len(choices):  # 1, 1.0 and true are one value to the record
            raise ValueError("a choice is listed twice; list each value once")
        return choices


def _choices_shorthand(value: object) -> object:
    """``[8, 16, 32]`` stands for ``{choices: [8, 16, 32]}``."""
    return {"choices": value} if isinstance(value, list | tuple) else value


KnobSpec = Annotated[RangeKnob | ChoicesKnob, BeforeValidator(_choices_shorthand)]


class SpaceSpec(Message):
    """Which knobs to search: a preset's, and the ones named here, which win.

    ``knobs: {name: null}`` takes a preset's knob out. Names in capitals are environment variables.
    """

    preset: Preset = Preset.BALANCED
    knobs: dict[str, KnobSpec | None] = Field(default_factory=dict)


def _known_metric(name: str) -> str:
    if name not in METRICS:
        fix = did_you_mean(name, list(METRICS)) or f"the metrics are {', '.join(METRICS)}"
        raise ValueError(f"no metric is called {name!r}; {fix}")
    return name


class Objective(Message):
    """A metric to improve; the direction defaults to the metric's natural one."""

    metric: str
    direction: Direction | None = None

    _metric = field_validator("metric")(_known_metric)

    @property
    def resolved_direction(self) -> Direction:
        """The direction given, else the metric's natural one."""
        return self.direction or METRICS[self.metric].better


class Slo(Message):
    """A bound that a recommended configuration must meet: exactly one of ``max`` and ``min``."""

    model_config = ConfigDict(allow_inf_nan=False)

    metric: str
    max: float | None = None
    min: float | None = None

    _metric = field_validator("metric")(_known_metric)

    @model_validator(mode="after")
    def _one_bound(self) -> Slo:
        if (self.max is None) == (self.min is None):
            raise ValueError("an SLO has exactly one of max and min; write a second SLO for the other")
        return self


class Budget(Message):
    """When a study ends.

    Attributes:
        trials: configurations to run, the baseline included.
        hours: wall-clock hours after which no new trial starts; ``None`` for no limit.
        attempts: tries of one trial before the environment's faults make it failed.
    """

    trials: int = Field(default=30, ge=1, le=100_000)
    hours: float | None = Field(default=None, gt=0.0, le=100_000.0)
    attempts: int = Field(default=3, ge=1, le=20)


DEFAULT_OBJECTIVES = (Objective(metric="output_tokens_per_s"), Objective(metric="e2e_p95_s"))


class StudySpec(Message):
    """One search, whole: the study file."""

    name: str
    engine: EngineSpec
    hardware: Hardware = Hardware()
    workload: Workload
    space: SpaceSpec = SpaceSpec()
    objectives: tuple[Objective, ...] = Field(default=DEFAULT_OBJECTIVES, min_length=1, max_length=4)
    slos: tuple[Slo, ...] = ()
    budget: Budget = Budget()
    sampler: SamplerName = SamplerName.AUTO
    seed: int = Field(default=0, ge=0, lt=2**32)
    startup_timeout_s: float = Field(default=1800.0, gt=0.0, le=86_400.0)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not NAME_PATTERN.match(name):
            raise ValueError(
                "is no name; write at most 100 lower-case letters, digits, '.', '_', '-', e.g. llama2-7b-chat"
            )
        return name

    @field_validator("objectives")
    @classmethod
    def _distinct_metrics(cls, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        if len({objective.metric for objective in objectives}) < len(objectives):
            raise ValueError("a metric is an objective twice; name each metric once")
        return objectives


def parse_study(data: object) -> StudySpec:
    """Turn plain data into a study.

    Raises:
        FieldError: naming the first field that is wrong, its value and what to write instead.
    """
    if not isinstance(data, Mapping):
        raise FieldError(
            "study", data, problem="is not a mapping", fix="write `name: …`, `engine: …`, `workload: …`"
        )
    try:
        return StudySpec.model_validate(_with_length_shorthand(data))
    except ValidationError as error:
        raise field_error(error, fields=_field_names()) from error


_LENGTHS = ("input_tokens", "output_tokens")


def _with_length_shorthand(data: Mapping[Any, Any]) -> dict[str, Any]:
    """``input_tokens: 512`` stands for ``input_tokens: {mean: 512}``."""
    copy = dict(data)
    workload = copy.get("workload")
    prompts = workload.get("prompts") if isinstance(workload, Mapping) else None
    if isinstance(workload, Mapping) and isinstance(prompts, Mapping):
        short = {
            key: {"mean": value} if key in _LENGTHS and isinstance(value, int) else value
            for key, value in prompts.items()
        }
        copy["workload"] = {**workload, "prompts": short}
    return copy


def _field_names() -> list[str]:
    """The names of all fields of a study file."""
    models: list[type[Message]] = [StudySpec, EngineSpec, Hardware, Workload, SyntheticPrompts, Length]
    models += [ClosedLoop, Poisson, SpaceSpec, RangeKnob, ChoicesKnob, Objective, Slo, Budget]
    return sorted({name for model in models for name in model.model_fields})

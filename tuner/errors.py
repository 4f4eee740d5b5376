"""The search core's errors.

TunerError
├── FieldError          a value that a person gave is wrong: names field, value, problem, fix
└── MissingMetricError  a measurement lacks a metric that the study needs
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FieldError", "MissingMetricError", "TunerError"]


class TunerError(Exception):
    """Base of everything that the search core raises on purpose."""


class FieldError(TunerError):
    """A value from outside is wrong.

    Attributes:
        field: dotted path of the value, e.g. ``space.knobs.max_num_seqs.low``.
        value: the value as it was given.
        problem: what is wrong with it, one clause without a full stop.
        fix: what to write instead, one clause without a full stop.
    """

    def __init__(self, field: str, value: object, *, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem} (got {value!r}); {fix}")
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix


class MissingMetricError(TunerError):
    """A measurement has no figure for a metric that an objective or SLO names.

    Attributes:
        metric: the metric that is missing.
        present: the metrics that the measurement holds.
    """

    def __init__(self, metric: str, present: Sequence[str]) -> None:
        super().__init__(
            f"the measurement has no {metric}; it holds {', '.join(sorted(present)) or 'nothing'}"
        )
        self.metric = metric
        self.present = tuple(present)

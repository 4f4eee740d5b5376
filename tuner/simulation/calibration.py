"""The efficiencies that were fitted on real measurements, and the fit itself.

The fit is a maximum a posteriori estimate in the logarithms of the efficiencies: residuals are logarithms of
simulated over measured, weighed by how far the metric can be trusted, with Huber's weights so that one odd
run does not bend the rest; the priors keep what no measurement touches at its starting value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tuner.simulation.engine import Client
from tuner.simulation.steptimes import Efficiencies

__all__ = ["PRIOR_SPREAD", "Calibration", "calibrated", "fit"]

Vector = npt.NDArray[np.float64]

FILE = Path(__file__).parent / "h200.json"
HUBER = 2.0
STEP = 0.05
"""Of the logarithm, for differences: a queue's figures move in jumps, so a smaller one measures noise."""
LONGEST_MOVE = 0.5

PRIOR_SPREAD: Mapping[str, float] = {
    "weights": 0.1,
    "kv": 0.15,
    "kv_fp8": 0.3,
    "compute": 0.2,
    "attention": 0.3,
    "step_s": 0.7,
    "sequence_s": 0.7,
    "ingest_s": 0.7,
}
"""What is fitted, with the standard deviation of its logarithm before any measurement is seen."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Efficiencies of the GPU and costs of the API server."""

    efficiencies: Efficiencies = field(default_factory=Efficiencies)
    client: Client = field(default_factory=Client)

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, float]]) -> Calibration:
        """The inverse of :meth:`to_dict`."""
        return cls(Efficiencies(**values["efficiencies"]), Client(**values["client"]))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """As plain data, four digits a figure."""
        parts = {"efficiencies": asdict(self.efficiencies), "client": asdict(self.client)}
        return {
            part: {name: float(f"{value:.4g}") for name, value in values.items()}
            for part, values in parts.items()
        }

    def figures(self) -> Vector:
        """Logarithms of what is fitted, in the order of :data:`PRIOR_SPREAD`."""
        values = asdict(self.efficiencies) | {"ingest_s": self.client.ingest_s}
        return np.log([values[name] for name in PRIOR_SPREAD])

    def with_figures(self, figures: Vector) -> Calibration:
        """This calibration with other fitted figures."""
        values = dict(zip(PRIOR_SPREAD, np.exp(figures).tolist(), strict=True))
        known = {known.name for known in fields(Efficiencies)}
        efficiencies = replace(self.efficiencies, **{name: values[name] for name in values if name in known})
        return replace(
            self, efficiencies=efficiencies, client=replace(self.client, ingest_s=values["ingest_s"])
        )


@cache
def calibrated() -> Calibration:
    """The committed calibration, fitted on an H200; benchmarks/simulator_validation.py writes it."""
    return Calibration.from_dict(json.loads(FILE.read_text())["calibration"])


Residuals = Callable[[Calibration], Sequence[Vector]]


def fit(
    residuals: Residuals,
    *,
    prior: Calibration = Calibration(),
    slopes_at: Calibration | None = None,
    rounds: int = 8,
) -> Calibration:
    """Fit by Gauss and Newton, beginning at the prior.

    Args:
        residuals: one array per measured point: logarithm of simulated over measured, over its spread.
        prior: what the figures are drawn to.
        slopes_at: where to take the slopes once and for all (chord method); anew in each round
            when not given. It bends the way, not the place where the rounds end.
        rounds: steps.
    """
    centre = prior.figures()
    spread = np.array(list(PRIOR_SPREAD.values()))

    def stacked(figures: Vector) -> Vector:
        return np.concatenate(residuals(prior.with_figures(figures)))

    figures = centre
    fixed = None if slopes_at is None else _slopes(stacked, slopes_at.figures())
    for _ in range(rounds):
        values = stacked(figures)
        slopes = _slopes(stacked, figures) if fixed is None else fixed
        trust = np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(values), 1e-12)))
        system = np.vstack([slopes * trust[:, None], np.diag(1.0 / spread)])
        wanted = -np.concatenate([values * trust, (figures - centre) / spread])
        move = np.linalg.lstsq(system, wanted, rcond=None)[0]
        figures = figures + np.clip(move, -LONGEST_MOVE, LONGEST_MOVE)
    return prior.with_figures(figures)


def _slopes(function: Callable[[Vector], Vector], at: Vector) -> Vector:
    columns = []
    for index in range(len(at)):
        offset = np.zeros_like(at)
        offset[index] = STEP
        columns.append((function(at + offset) - function(at - offset)) / (2 * STEP))
    return np.stack(columns, axis=1)

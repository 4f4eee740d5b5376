"""The answer of a study: a configuration, its figures beside the baseline's, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from optuna.trial import FrozenTrial, TrialState
from pydantic import Field

from tuner.argv import serve_line
from tuner.initial import BASELINE
from tuner.metrics import METRICS, Direction
from tuner.objectives import slo_bound, slo_violation
from tuner.pareto import pareto_front
from tuner.protocol import ArgValue, Message
from tuner.spec import StudySpec
from tuner.suggestion import ORIGIN_ATTR

__all__ = ["Figures", "Recommendation", "SloResult", "recommend"]

_SHOWN = (
    "output_tokens_per_s",
    "requests_per_s",
    "ttft_p95_s",
    "tpot_p95_s",
    "itl_p95_s",
    "e2e_p95_s",
    "startup_s",
)
_ONE_RUN = (
    "Each figure is from one measurement: differences of a few per cent are within what two runs of the same"
    " configuration show."
)


class Figures(Message):
    """One metric of the recommended configuration and of the baseline.

    Attributes:
        ratio: recommended over baseline; ``None`` where either is missing or the baseline's is zero.
    """

    recommended: float | None
    baseline: float | None
    ratio: float | None


class SloResult(Message):
    """One SLO and whether the recommended configuration met it; ``bound`` is for people, e.g. ``<= 2``."""

    metric: str
    bound: str
    value: float | None
    met: bool


class Recommendation(Message):
    """What a study recommends, or why it recommends nothing.

    Attributes:
        trial_number: the trial that proved it; ``None`` when no trial met the SLOs.
        args: all vLLM arguments of it.
        env: all environment variables of it.
        serve_line: a line for a shell.
        config_yaml: content of a file for ``vllm serve --config``.
        figures: objectives, SLO metrics and the usual ones, by metric.
        pareto: numbers of the feasible trials that no other feasible one beats in every objective.
        reason: why there is no recommendation.
        confirmed: whether the figures were measured again since the search.
        note: how sure they are.
    """

    trial_number: int | None
    is_baseline: bool = False
    args: dict[str, ArgValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    serve_line: str = ""
    config_yaml: str = ""
    figures: dict[str, Figures] = Field(default_factory=dict)
    slos: tuple[SloResult, ...] = ()
    pareto: tuple[int, ...] = ()
    reason: str = ""
    confirmed: bool = False
    note: str = ""


def recommend(spec: StudySpec, trials: Sequence[FrozenTrial]) -> Recommendation:
    """The best trial that met every SLO: the first objective decides, the others break ties.

    Args:
        spec: the study.
        trials: all trials of its Optuna record.
    """
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE and _is_ours(trial)]
    feasible = [trial for trial in complete if _is_feasible(spec, trial)]
    baseline = next((t for t in complete if t.user_attrs.get(ORIGIN_ATTR) == BASELINE), None)
    if not feasible:
        return Recommendation(trial_number=None, reason=_why_none(spec, trials, complete))
    directions = [objective.resolved_direction for objective in spec.objectives]
    best = max(feasible, key=lambda trial: (_gains(trial, directions), -trial.number))
    front = pareto_front([trial.values for trial in feasible], directions)
    args, env = dict(best.user_attrs["args"]), dict(best.user_attrs["env"])
    metrics = _metrics(best)
    return Recommendation(
        trial_number=best.number,
        is_baseline=best is baseline,
        args=args,
        env=env,
        serve_line=serve_line(spec.engine.model, args, env),
        config_yaml=_config_yaml(spec.engine.model, args, env),
        figures=_figures(spec, metrics, _metrics(baseline) if baseline else {}),
        slos=tuple(
            SloResult(
                metric=slo.metric,
                bound=slo_bound(slo),
                value=metrics.get(slo.metric),
                met=slo.metric in metrics and slo_violation(slo, metrics[slo.metric]) <= 0,
            )
            for slo in spec.slos
        ),
        pareto=tuple(feasible[position].number for position in front),
        note=_note(best, baseline),
    )


def _is_ours(trial: FrozenTrial) -> bool:
    """Whether we ran it: others may add trials to an Optuna study that say nothing about vLLM's arguments."""
    return {"args", "env", "metrics"} <= trial.user_attrs.keys()


def _is_feasible(spec: StudySpec, trial: FrozenTrial) -> bool:
    """By its constraints and by its figures: a figure that is missing meets no SLO."""
    return all(value <= 0 for value in trial.constraints.values()) and all(
        slo.metric in _metrics(trial) and slo_violation(slo, _metrics(trial)[slo.metric]) <= 0
        for slo in spec.slos
    )


def _gains(trial: FrozenTrial, directions: Sequence[Direction]) -> list[float]:
    return [v if d is Direction.MAXIMIZE else -v for v, d in zip(trial.values, directions, strict=True)]


def _metrics(trial: FrozenTrial) -> Mapping[str, float]:
    metrics: dict[str, float] = trial.user_attrs.get("metrics", {})
    return metrics


def _figures(spec: StudySpec, ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, Figures]:
    wanted = [*(o.metric for o in spec.objectives), *(s.metric for s in spec.slos), *_SHOWN]
    names = [name for name in dict.fromkeys(wanted) if name in ours or name in theirs]
    return {name: _compared(ours.get(name), theirs.get(name)) for name in names if name in METRICS}


def _compared(ours: float | None, theirs: float | None) -> Figures:
    ratio = ours / theirs if ours is not None and theirs else None
    return Figures(recommended=ours, baseline=theirs, ratio=ratio)


def _config_yaml(model: str, args: Mapping[str, ArgValue], env: Mapping[str, str]) -> str:
    """vLLM's ``--config`` reads the arguments by their names with hyphens; the environment is a comment."""
    document: dict[str, Any] = {
        "model": model,
        **{name.replace("_", "-"): _plain(value) for name, value in args.items()},
    }
    text: str = yaml.safe_dump(document, sort_keys=False)
    return "".join([*(f"# in the environment: {name}={value!r}\n" for name, value in env.items()), text])


def _plain(value: ArgValue) -> ArgValue:
    """``8192.0`` as ``8192``: vLLM's integer arguments refuse a decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _note(best: FrozenTrial, baseline: FrozenTrial | None) -> str:
    if baseline is None:
        return f"vLLM's defaults were not measured, so there is no comparison. {_ONE_RUN}"
    if best is baseline:
        return f"No configuration did better than vLLM's defaults. {_ONE_RUN}"
    return _ONE_RUN


def _why_none(spec: StudySpec, trials: Sequence[FrozenTrial], complete: Sequence[FrozenTrial]) -> str:
    if complete:
        missed = {
            slo.metric: min(slo_violation(slo, _metrics(trial)[slo.metric]) for trial in complete)
            for slo in spec.slos
            if all(slo.metric in _metrics(trial) for trial in complete)
        }
        nearest = ", ".join(f"{name} by at least {gap:.0%}" for name, gap in missed.items() if gap > 0)
        hint = f" (missed everywhere: {nearest})" if nearest else ""
        what = f"none of the {len(complete)} measured configurations met every SLO{hint}"
        return f"{what}; relax an SLO or lower the load"
    kinds = sorted({str(trial.user_attrs["failure"]) for trial in trials if "failure" in trial.user_attrs})
    why = ", ".join(kinds) or "no trial ended"
    return f"no configuration could be measured ({why}); see the trials' messages"

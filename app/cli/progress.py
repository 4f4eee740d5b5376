"""Shows a study while it runs: a live table on a terminal, one line per change elsewhere."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.cli.output import figure
from app.client import Study, Trial
from tuner.metrics import METRICS, Direction
from tuner.spec import Objective, Slo, StudySpec

__all__ = ["FINAL_STUDY_STATES", "Snapshot", "View", "best_trial", "changes", "eta_s", "live_view", "render"]

FINAL_STUDY_STATES = frozenset({"completed", "cancelled", "failed"})
ENDED = frozenset({"completed", "infeasible", "pruned_early", "failed"})
ROWS_SHOWN = 12
BAR_WIDTH = 30
MESSAGE_WIDTH = 160
"""vLLM's own messages run to several sentences; all of them are in the trial's JSON."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A study at one moment.

    Attributes:
        elapsed_s: seconds since the command began to watch.
        ended_before: trials that had ended when it began, so that their time is not counted.
    """

    study: Study
    trials: Sequence[Trial]
    elapsed_s: float
    ended_before: int = 0

    @property
    def ended(self) -> int:
        """Number of trials that have ended."""
        return sum(trial.state in ENDED for trial in self.trials)

    @property
    def infeasible(self) -> int:
        """Number of trials whose configuration cannot run here."""
        return sum(trial.state == "infeasible" for trial in self.trials)


def eta_s(snapshot: Snapshot) -> float | None:
    """Seconds until the budget is used up at the pace so far; ``None`` before the first trial ended."""
    done = snapshot.ended - snapshot.ended_before
    if done < 1:
        return None
    left = max(0, snapshot.study.spec.budget.trials - snapshot.ended)
    return left * snapshot.elapsed_s / done


def best_trial(spec: StudySpec, trials: Sequence[Trial]) -> Trial | None:
    """The completed trial that is best by the first objective among those that meet every SLO."""
    objective = spec.objectives[0]
    candidates = [
        trial
        for trial in trials
        if trial.state == "completed"
        and objective.metric in trial.metrics
        and meets(spec.slos, trial.metrics)
    ]
    sign = -1.0 if objective.resolved_direction is Direction.MINIMIZE else 1.0
    return max(candidates, key=lambda trial: sign * trial.metrics[objective.metric], default=None)


def meets(slos: Sequence[Slo], metrics: Mapping[str, float]) -> bool:
    """Whether the metrics keep every bound; one that is missing keeps none."""
    for slo in slos:
        value = metrics.get(slo.metric)
        if (
            value is None
            or (slo.max is not None and value > slo.max)
            or (slo.min is not None and value < slo.min)
        ):
            return False
    return True


# ---------------------------------------------------------------- words


def knobs_of(trial: Trial) -> str:
    """The values that the search chose, on one line; the baseline has none."""
    if trial.origin == "baseline":
        return "vLLM's defaults"
    chosen: dict[str, object] = {**trial.args, **trial.env}
    named = {name: chosen[name] for name in trial.knobs if name in chosen} if trial.knobs else chosen
    return " ".join(f"{name}={value}" for name, value in named.items()) or "no knobs"


def figures_of(objectives: Sequence[Objective], metrics: Mapping[str, float]) -> str:
    """The objectives' figures with their units, e.g. ``512 tokens/s, e2e_p95_s 0.31 s``."""
    shown = []
    for objective in objectives:
        metric = METRICS[objective.metric]
        value = figure(metrics.get(metric.name))
        shown.append(
            f"{value} {metric.unit}" if metric.unit == "tokens/s" else f"{metric.name} {value} {metric.unit}"
        )
    return ", ".join(shown)


def outcome_of(spec: StudySpec, trial: Trial) -> str:
    """How a trial ended, or what it does now."""
    match trial.state:
        case "completed":
            slo = "" if meets(spec.slos, trial.metrics) else ", misses an SLO"
            return f"{figures_of(spec.objectives, trial.metrics)}{slo}"
        case "infeasible" | "failed" if trial.failure is not None:
            message = textwrap.shorten(trial.failure.message, MESSAGE_WIDTH, placeholder=" …").rstrip(".")
            advice = f". {trial.failure.advice}" if trial.failure.advice else ""
            return f"{trial.failure.kind.value}: {message}{advice}"
        case "running":
            partial = trial.partial.get("output_tokens_per_s")
            pace = f", {figure(partial)} tokens/s" if partial is not None else ""
            attempt = f", attempt {trial.attempt}" if trial.attempt > 1 else ""
            return f"{(trial.phase or 'starting').replace('_', ' ')}{pace}{attempt}"
        case _:
            return trial.reason or ""


def duration(seconds: float | None) -> str:
    """Seconds as people say them: ``45 s``, ``3 min 20 s``, ``2 h 5 min``; ``-`` when unknown."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


def standing(snapshot: Snapshot) -> tuple[str, str]:
    """How far and how long; how good."""
    spec = snapshot.study.spec
    best = best_trial(spec, snapshot.trials)
    best_text = f"trial {best.number}: {figures_of(spec.objectives, best.metrics)}" if best else "none yet"
    ended = f"{snapshot.ended} of {spec.budget.trials} trials ended, {snapshot.infeasible} infeasible"
    return f"{ended}, ETA {duration(eta_s(snapshot))}", f"best so far {best_text}"


# ---------------------------------------------------------------- lines for a pipe or a log


def changes(before: Snapshot | None, now: Snapshot) -> Iterator[str]:
    """One line for each trial whose state, phase or attempt is another than before."""
    known = {trial.number: trial for trial in before.trials} if before else {}
    spec = now.study.spec
    for trial in now.trials:
        old = known.get(trial.number)
        if old and (old.state, old.phase, old.attempt) == (trial.state, trial.phase, trial.attempt):
            continue
        if before is None and trial.state in ENDED:
            continue
        name = f"[{trial.number + 1}/{spec.budget.trials}] trial {trial.number}"
        if old is None:
            yield f"{name}: {knobs_of(trial)}"
        yield f"{name} {trial.state}: {outcome_of(spec, trial)}".removesuffix(": ")
        if trial.state in ENDED:
            yield "; ".join(standing(now))


# ---------------------------------------------------------------- the table on a terminal

STYLES = {
    "completed": "green",
    "infeasible": "yellow",
    "pruned_early": "yellow",
    "failed": "red",
    "running": "cyan",
}


def render(snapshot: Snapshot) -> RenderableType:
    """The study as a table of its latest trials, a bar and the summary."""
    spec = snapshot.study.spec
    best = best_trial(spec, snapshot.trials)
    table = Table("trial", "configuration", "state", "outcome", box=None, pad_edge=False, expand=True)
    table.columns[1].ratio, table.columns[3].ratio = 3, 4
    for trial in snapshot.trials[-ROWS_SHOWN:]:
        mark = " *" if best is not None and trial.number == best.number else ""
        table.add_row(
            f"{trial.number}{mark}",
            Text(knobs_of(trial), overflow="fold"),
            Text(trial.state, style=STYLES.get(trial.state, "")),
            Text(outcome_of(spec, trial), overflow="fold"),
        )
    ended, best_so_far = standing(snapshot)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=spec.budget.trials, completed=snapshot.ended, width=BAR_WIDTH), ended)
    title = Text(f"study {spec.name}: {snapshot.study.state}", style="bold")
    return Group(title, table, Text(), bar, Text(best_so_far))


class View(Protocol):
    """Something that shows one snapshot after another."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the study as it is now."""


@dataclass(slots=True)
class LineView:
    """Prints a line for each change."""

    last: Snapshot | None = field(default=None)

    def show(self, snapshot: Snapshot) -> None:
        """Print what has changed since the last snapshot."""
        for line in changes(self.last, snapshot):
            typer.echo(line)
        sys.stdout.flush()
        self.last = snapshot


@dataclass(frozen=True, slots=True)
class LiveView:
    """Redraws the table in place."""

    live: Live

    def show(self, snapshot: Snapshot) -> None:
        """Redraw."""
        self.live.update(render(snapshot), refresh=True)


@contextmanager
def live_view() -> Iterator[View]:
    """A live table where standard output is a terminal, lines elsewhere."""
    if not sys.stdout.isatty():
        yield LineView()
        return
    with Live(console=Console(), auto_refresh=False, vertical_overflow="visible") as live:
        yield LiveView(live)

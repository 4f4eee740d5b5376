"""Prints a recommendation and writes its files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from app.cli.output import figure, print_table
from app.client import Study, Trial
from tuner.argv import render_args
from tuner.metrics import METRICS
from tuner.recommend import Recommendation

__all__ = ["Answer", "print_recommendation", "study_document", "write_files"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished study with all that is known about it."""

    study: Study
    trials: Sequence[Trial]
    recommendation: Recommendation


def study_document(
    study: Study, trials: Sequence[Trial], recommendation: Recommendation | None
) -> dict[str, object]:
    """What ``study show --json`` prints and ``study.json`` holds."""
    return {
        **study.model_dump(mode="json"),
        "trials": [trial.model_dump(mode="json") for trial in trials],
        "recommendation": recommendation.model_dump(mode="json") if recommendation else None,
    }


def print_recommendation(recommendation: Recommendation) -> None:
    """The serve line and its figures beside the baseline's, or why there is none."""
    if recommendation.trial_number is None:
        typer.echo(f"No recommendation: {recommendation.reason}")
        return
    typer.echo(f"Recommended (trial {recommendation.trial_number}):\n\n  {recommendation.serve_line}\n")
    rows = [
        (
            name,
            METRICS[name].unit if name in METRICS else "",
            figure(figures.recommended),
            figure(figures.baseline),
            f"{figures.ratio:.2f}x" if figures.ratio is not None else "-",
        )
        for name, figures in recommendation.figures.items()
    ]
    print_table(("metric", "unit", "recommended", "vLLM's defaults", "ratio"), rows, empty="")
    for slo in recommendation.slos:
        typer.echo(f"SLO {slo.metric} {slo.bound}: {figure(slo.value)}, {'met' if slo.met else 'missed'}")
    if recommendation.note:
        typer.echo(recommendation.note)


def write_files(answer: Answer, folder: Path, interpreter: Path) -> list[Path]:
    """Write ``study.json`` and, where something is recommended, ``recommended.yaml`` and ``serve.sh``.

    Returns:
        The files written.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = study_document(answer.study, answer.trials, answer.recommendation)
    contents = {"study.json": json.dumps(document, indent=2, ensure_ascii=False) + "\n"}
    if answer.recommendation.trial_number is not None:
        contents["recommended.yaml"] = answer.recommendation.config_yaml
        contents["serve.sh"] = serve_script(answer, interpreter)
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    script = folder / "serve.sh"
    if script.exists():
        script.chmod(0o755)
    return [folder / name for name in contents]


def serve_script(answer: Answer, interpreter: Path) -> str:
    """A script that serves the recommended configuration with the interpreter that proved it.

    It names the module, not the console script ``vllm``, which the CPU build of vLLM does not have.
    """
    recommendation = answer.recommendation
    model = answer.study.spec.engine.model
    command = [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        *render_args(recommendation.args),
    ]
    environment = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in recommendation.env.items()
    )
    return (
        "#!/bin/sh\n"
        f"# Recommended by the Nightshift study {answer.study.name}, trial {recommendation.trial_number}.\n"
        "# Arguments are passed on, e.g.: ./serve.sh --host 0.0.0.0 --port 8000\n"
        "set -eu\n"
        f"{environment}"
        f'exec "${{NIGHTSHIFT_VLLM_PYTHON:-{interpreter}}}" {shlex.join(command)} "$@"\n'
    )

"""``nightshift study …``: create, run, look at and steer studies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from app.cli.local import LocalRun, run_study
from app.cli.options import (
    HomeOption,
    JsonOption,
    PortOption,
    ServerOption,
    TokenOption,
    VllmPythonOption,
    local_settings,
    show_help,
    vllm_python,
)
from app.cli.output import print_json, print_pairs, print_table, when
from app.cli.plane import connected
from app.cli.progress import FINAL_STUDY_STATES, Snapshot, knobs_of, live_view, outcome_of
from app.cli.recommendation import print_recommendation, study_document
from app.cli.study_file import key_for, load_study
from app.client import ControlPlaneClient, ProblemError, Study, Trial
from tuner.recommend import Recommendation
from tuner.space import build_space

__all__ = ["app"]

WATCH_POLL_S = 1.0

app = typer.Typer(
    help="Create, run, look at and steer studies.", callback=show_help, invoke_without_command=True
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A study file; - reads standard input.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a study.")]


@app.command()
def validate(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a study file and run nothing.

    \b
    Example:
      nightshift study validate study.yaml
    """
    spec = load_study(file)
    space = build_space(spec)
    if as_json:
        print_json({"valid": True, "name": spec.name, "configurations": space.size(), "spec": spec})
    else:
        size = space.size()
        configurations = "endless" if size is None else f"{size:,}"
        typer.echo(f"{spec.name}: fine; {configurations} configurations, {spec.budget.trials} trials")


@app.command()
def create(
    file: FileArgument,
    start: Annotated[
        bool, typer.Option("--start/--draft", help="Let workers claim its trials at once.")
    ] = True,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a study for the workers of a control plane; creating the same one twice is harmless.

    \b
    Examples:
      nightshift study create study.yaml --server http://tuner:8765
      nightshift study create study.yaml --draft
    """
    spec = load_study(file)
    with connected(server, token) as client:
        study = client.create_study(spec, start=start, idempotency_key=key_for(spec))
    tell(study, as_json=as_json)


@app.command()
def run(
    file: FileArgument,
    port: PortOption = None,
    python: VllmPythonOption = None,
    home: HomeOption = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
) -> None:
    """Run a study here from its start, or from where it stopped, to its recommendation.

    Needs no server: it starts a control plane on the local database and one worker per GPU, or one for the
    CPU. Ctrl-C pauses the study; the same command goes on with it.

    \b
    Examples:
      nightshift study run study.yaml
      NIGHTSHIFT_VLLM_PYTHON=/opt/vllm/bin/python nightshift study run study.yaml --output ./results
    """
    settings = local_settings(home)
    run_study(
        load_study(file),
        LocalRun(settings=settings, port=port, interpreter=vllm_python(python), output=output),
    )


@app.command("list")
def list_studies(server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the studies.

    \b
    Example:
      nightshift study list --json
    """
    with connected(server, token) as client:
        studies = client.studies()
    if as_json:
        print_json(studies)
        return
    rows = [
        (
            study.name,
            study.state,
            f"{ended(study)}/{study.spec.budget.trials}",
            study.spec.engine.model,
            when(study.created_at),
        )
        for study in studies
    ]
    print_table(("name", "state", "trials", "model", "created"), rows, empty="There is no study yet.")


@app.command()
def show(
    name: NameArgument, server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Show a study with its trials and its recommendation.

    \b
    Example:
      nightshift study show quickstart --json
    """
    with connected(server, token) as client:
        study, trials, recommendation = (
            client.study(name),
            client.trials(name),
            recommendation_of(client, name),
        )
    if as_json:
        print_json(study_document(study, trials, recommendation))
        return
    tell(study, as_json=False)
    print_trials(study, trials)
    if recommendation is not None:
        typer.echo()
        print_recommendation(recommendation)


@app.command()
def trials(
    name: NameArgument, server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """List a study's trials with their configuration and outcome.

    \b
    Example:
      nightshift study trials quickstart
    """
    with connected(server, token) as client:
        study, found = client.study(name), client.trials(name)
    if as_json:
        print_json(found)
    else:
        print_trials(study, found)


@app.command()
def watch(name: NameArgument, server: ServerOption = None, token: TokenOption = None) -> None:
    """Follow a study until it has ended; Ctrl-C stops watching, not the study.

    \b
    Example:
      nightshift study watch llama2-7b-chat --server http://tuner:8765
    """
    began = time.monotonic()
    with connected(server, token) as client, live_view() as view:
        study = client.study(name)
        before = ended(study)
        while True:
            view.show(Snapshot(study, client.trials(name), time.monotonic() - began, before))
            if study.state in FINAL_STUDY_STATES:
                break
            time.sleep(WATCH_POLL_S)
            study = client.study(name)
    if study.state == "failed":
        raise typer.Exit(1)


@app.command()
def recommend(
    name: NameArgument, server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Print the best configuration so far as a `vllm serve` line, with its figures.

    \b
    Examples:
      nightshift study recommend quickstart
      nightshift study recommend quickstart --json
    """
    with connected(server, token) as client:
        recommendation = Recommendation.model_validate(client.recommendation(name))
    if as_json:
        print_json(recommendation)
    else:
        print_recommendation(recommendation)


@app.command()
def pause(
    name: NameArgument, server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Let no worker claim more of a study's trials; running ones go on.

    \b
    Example:
      nightshift study pause llama2-7b-chat
    """
    move(name, "pause", server=server, token=token, as_json=as_json)


@app.command()
def resume(
    name: NameArgument, server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Go on with a paused study, or start a draft.

    \b
    Example:
      nightshift study resume llama2-7b-chat
    """
    with connected(server, token) as client:
        draft = client.study(name).state == "draft"
        study = client.move_study(name, "start" if draft else "resume")
    tell(study, as_json=as_json)


@app.command()
def cancel(
    name: NameArgument, server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """End a study for good; running trials are stopped.

    \b
    Example:
      nightshift study cancel llama2-7b-chat
    """
    move(name, "cancel", server=server, token=token, as_json=as_json)


# ---------------------------------------------------------------- shared by the commands


def move(name: str, action: str, *, server: str | None, token: str | None, as_json: bool) -> None:
    """Ask for one change of state and tell the new one."""
    with connected(server, token) as client:
        study = client.move_study(name, action)
    tell(study, as_json=as_json)


def tell(study: Study, *, as_json: bool) -> None:
    """Print one study."""
    if as_json:
        print_json(study)
        return
    print_pairs(
        [
            ("study", study.name),
            ("state", study.state),
            ("reason", study.reason or ""),
            ("model", study.spec.engine.model),
            ("trials", f"{ended(study)} of {study.spec.budget.trials} ended"),
            ("created", when(study.created_at)),
        ]
    )


def ended(study: Study) -> int:
    """Number of a study's trials that have ended."""
    return sum(number for state, number in study.counts.items() if state not in {"waiting", "running"})


def print_trials(study: Study, found: Sequence[Trial]) -> None:
    """Print a table of trials."""
    rows = [
        (str(trial.number), trial.state, trial.origin or "", knobs_of(trial), outcome_of(study.spec, trial))
        for trial in found
    ]
    print_table(
        ("trial", "state", "origin", "configuration", "outcome"), rows, empty="No trial has begun yet."
    )


def recommendation_of(client: ControlPlaneClient, name: str) -> Recommendation | None:
    """The recommendation, or ``None`` while there is none."""
    try:
        return Recommendation.model_validate(client.recommendation(name))
    except ProblemError as problem:
        if problem.status not in {404, 409}:
            raise
        return None

"""Runs a study on this machine: control plane in a thread, workers as processes, progress, recommendation."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from app.cli.fleet import Fleet, FleetError, FleetPlan, gpu_groups
from app.cli.options import DEFAULT_PORT
from app.cli.output import complain, note
from app.cli.plane import local_plane
from app.cli.progress import FINAL_STUDY_STATES, Snapshot, View, live_view
from app.cli.recommendation import Answer, print_recommendation, write_files
from app.cli.study_file import check_model_folder, key_for
from app.client import ClientError, ControlPlaneClient, ProblemError, Study
from app.settings import Settings
from tuner.errors import FieldError
from tuner.recommend import Recommendation
from tuner.spec import StudySpec
from workers.gpu import owned_gpus

__all__ = ["LocalRun", "run_study"]

POLL_S = 0.5
"""Pause between two looks at the study, in seconds."""
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRun:
    """Where and how a local run works.

    Attributes:
        port: of the control plane; ``None`` takes the usual one, or a free one when that is taken.
        interpreter: starts vLLM.
        output: folder for the results; ``None`` takes ``results/<study>`` in the home folder.
    """

    settings: Settings
    port: int | None
    interpreter: Path
    output: Path | None = None


def run_study(spec: StudySpec, run: LocalRun) -> None:
    """Create or take up the study, run it to its end, and print and write its recommendation.

    Ctrl-C pauses the study and drains the workers; the same call goes on where it stopped.

    Raises:
        FieldError: the model's folder, the GPUs or the port are not to be had, or a study of the same name
            asks for something else.
        typer.Exit: 1 when the study failed or no worker can run it, 130 when it was interrupted.
    """
    check_model_folder(spec)
    groups = gpu_groups(spec, [gpu.index for gpu in owned_gpus(None)])
    with local_plane(run.settings, run.port) as client:
        study = take_up(client, spec)
        if study.state not in FINAL_STUDY_STATES:
            typer.echo(f"Dashboard while it runs: {client.url}/dashboard/\n")
            note_others(client, spec.name)
            plan = FleetPlan(
                url=client.url,
                token=client.token,
                interpreter=run.interpreter,
                home=run.settings.home,
                groups=groups,
            )
            work(client, spec, plan)
        else:
            note(f"Study {spec.name} has ended already; give another one another name.")
        conclude(client, spec.name, run)


def take_up(client: ControlPlaneClient, spec: StudySpec) -> Study:
    """Create the study, or go on with the one of that name if it asks for the same.

    Raises:
        FieldError: a study of that name asks for something else.
    """
    study = find(client, spec.name)
    if study is None:
        return client.create_study(spec, start=True, idempotency_key=key_for(spec))
    if study.spec != spec:
        raise FieldError(
            "name",
            spec.name,
            problem="a study of this name asks for something else",
            fix="give the new one another name",
        )
    match study.state:
        case "draft":
            return client.move_study(spec.name, "start")
        case "paused":
            return client.move_study(spec.name, "resume")
        case _:
            return study


def note_others(client: ControlPlaneClient, name: str) -> None:
    """Say which other studies the workers will run too: a worker claims from every running one."""
    for study in client.studies():
        if study.state == "running" and study.name != name:
            note(f"Study {study.name} runs too; `nightshift study pause {study.name}` keeps its trials away.")


def find(client: ControlPlaneClient, name: str) -> Study | None:
    """The study of that name, if there is one."""
    try:
        return client.study(name)
    except ProblemError as problem:
        if problem.status != 404:
            raise
        return None


def work(client: ControlPlaneClient, spec: StudySpec, plan: FleetPlan) -> None:
    """Run workers until the study has ended.

    Raises:
        typer.Exit: 130 when it was interrupted, 1 when no worker can go on.
    """
    try:
        with (
            sigterm_interrupts(),
            paused_unless_ended(client, spec.name),
            Fleet(plan) as fleet,
            live_view() as view,
            drain_noted(),
        ):
            watch(client, spec.name, fleet, view)
    except KeyboardInterrupt as error:
        complain(f"interrupted; study {spec.name} is paused, and the same command goes on with it")
        raise typer.Exit(INTERRUPTED) from error
    except FleetError as error:
        complain(str(error))
        raise typer.Exit(1) from error


@contextmanager
def paused_unless_ended(client: ControlPlaneClient, name: str) -> Iterator[None]:
    """Pause the study when the block stops early, so that its state says that nothing runs it."""
    try:
        yield
    except BaseException:
        with suppress(ClientError):
            client.move_study(name, "pause")  # refused for one that has ended, rightly
        raise


@contextmanager
def drain_noted() -> Iterator[None]:
    """Say that an interrupt was heard: the draining that follows takes some seconds."""
    try:
        yield
    except KeyboardInterrupt:
        note("Letting the workers stop their engines; once more kills them.")
        raise


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM, which supervisors send, do what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def watch(client: ControlPlaneClient, name: str, fleet: Fleet, view: View) -> None:
    """Show the study until it has ended, and keep the workers alive.

    Raises:
        FleetError: every worker was set aside, or one dies again and again.
    """
    began = time.monotonic()
    ended_before: int | None = None
    while True:
        study, trials = client.study(name), client.trials(name)
        snapshot = Snapshot(study, trials, time.monotonic() - began, ended_before or 0)
        if ended_before is None:
            ended_before = snapshot.ended
        view.show(snapshot)
        if study.state in FINAL_STUDY_STATES:
            return
        fleet.tend()
        refuse_set_aside(client, fleet)
        time.sleep(POLL_S)


def refuse_set_aside(client: ControlPlaneClient, fleet: Fleet) -> None:
    """Give up when no worker of the fleet may claim any more.

    Raises:
        FleetError: with the reason of the first one.
    """
    ours = [worker for worker in client.workers() if worker.name in fleet.names]
    aside = [worker for worker in ours if worker.state == "quarantined"]
    if aside and len(aside) == len(fleet.names):
        raise FleetError(f"worker {aside[0].name} was set aside: {aside[0].reason}")


def conclude(client: ControlPlaneClient, name: str, run: LocalRun) -> None:
    """Print how the study ended and write its files.

    Raises:
        typer.Exit: 1 when it has not completed.
    """
    study = client.study(name)
    if study.state != "completed":
        complain(f"study {name} has {study.state}: {study.reason or 'no reason was given'}")
        raise typer.Exit(1)
    recommendation = Recommendation.model_validate(client.recommendation(name))
    answer = Answer(study, client.trials(name), recommendation)
    typer.echo()
    print_recommendation(recommendation)
    files = write_files(answer, run.output or run.settings.home / "results" / name, run.interpreter)
    typer.echo("\nFiles:")
    for file in files:
        typer.echo(f"  {file}")
    typer.echo(f"Dashboard: run `{serve_command(run)}`, then open http://127.0.0.1:{DEFAULT_PORT}/dashboard/")


def serve_command(run: LocalRun) -> str:
    """The command that serves the database of this run, as it can be typed here."""
    called = Path(sys.argv[0])
    on_path = shutil.which("nightshift")
    by_path = called.name == "nightshift" and called.exists()
    by_path = by_path and (on_path is None or not called.samefile(on_path))
    home = (
        ""
        if run.settings.home == Settings().home
        else f"NIGHTSHIFT_HOME={shlex.quote(str(run.settings.home))} "
    )
    return f"{home}{called if by_path else 'nightshift'} serve"

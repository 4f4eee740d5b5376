"""The command ``nightshift``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from app.cli import db, study, token
from app.cli.diagnose import diagnose
from app.cli.doctor import doctor
from app.cli.options import show_help
from app.cli.output import complain
from app.cli.quickstart import quickstart
from app.cli.serve import serve
from app.cli.tune import tune
from app.cli.worker import worker, worker_list
from app.client import ClientError
from app.errors import AppError
from tuner.errors import TunerError

__all__ = ["app", "main", "run"]

BAD_INPUT = 2

app = typer.Typer(
    name="nightshift",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    invoke_without_command=True,
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Finds the best vLLM configuration for a model, a GPU and a workload.

    \b
    Start here:
      nightshift doctor                    is this machine fit?
      nightshift quickstart                the whole way on a tiny model
      nightshift tune MODEL                tune a model, no file needed
      nightshift study run FILE            run a study file on this machine
      nightshift serve, nightshift worker  the same on many machines
    """
    if version:
        typer.echo(installed_version())
        raise typer.Exit
    show_help(context)


def installed_version() -> str:
    """Version of the installed distribution."""
    try:
        return distribution_version("vllm-nightshift")
    except PackageNotFoundError:
        return "not installed"


GROUPS = {
    name: {command.name or getattr(command.callback, "__name__", "") for command in group.registered_commands}
    for name, group in (("study", study.app), ("token", token.app), ("db", db.app))
}
"""The commands of each group by name."""

app.command()(tune)
app.command()(quickstart)
app.add_typer(study.app, name="study")
app.command()(serve)
app.command()(worker)
app.command("worker-list")(worker_list)
app.add_typer(token.app, name="token")
app.add_typer(db.app, name="db")
app.command()(doctor)
app.command()(diagnose)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 it ran and failed, 2 bad input, 130 interrupted."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code. Whatever a person can mend is one line on standard error.
    """
    try:
        code = app(args=arguments, prog_name="nightshift", standalone_mode=False)
    except typer.TyperException as error:
        complain(f"{error.format_message().rstrip('.')}; see `{help_for(arguments)}`")
        return BAD_INPUT
    except ValidationError as error:
        complain(setting_problem(error))
        return BAD_INPUT
    except (TunerError, ClientError, AppError) as error:
        complain(str(error))
        return BAD_INPUT
    except OSError as error:
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def help_for(arguments: Sequence[str] | None) -> str:
    """The command whose help says how the command line in question is written."""
    words = list(sys.argv[1:] if arguments is None else arguments)[:2]
    commands = GROUPS.get(words[0], set()) if words else set()
    known = [words[0]] if words and not words[0].startswith("-") else []
    return " ".join(["nightshift", *known, *(word for word in words[1:] if word in commands), "--help"])


def setting_problem(error: ValidationError) -> str:
    """One line for a setting from the environment that is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = "NIGHTSHIFT_" + "_".join(str(part) for part in first["loc"]).upper()
    return f"{name}: {first['msg'].removeprefix('Value error, ')}; mend the environment variable"

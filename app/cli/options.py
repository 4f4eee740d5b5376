"""Options that several commands share, and what they mean."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.settings import DEFAULT_PORT, Settings
from tuner.errors import FieldError

__all__ = [
    "DEFAULT_PORT",
    "GpusOption",
    "HomeOption",
    "HostOption",
    "JsonOption",
    "PortOption",
    "ServerOption",
    "TokenOption",
    "VllmPythonOption",
    "local_settings",
    "read_token",
    "show_help",
    "vllm_python",
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="NIGHTSHIFT_SERVER",
        help="Address of a control plane. Without it the command works on the local database.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="NIGHTSHIFT_TOKEN", show_envvar=True, help="Token for the control plane."),
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of the control plane.  [default: 8765, or a free one]"),
]
GpusOption = Annotated[
    int | None,
    typer.Option(min=0, help="GPUs per trial; 0 is the CPU build.  [default: what the machine has]"),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(envvar="NIGHTSHIFT_HOME", help="Folder for the database, models, logs and results."),
]
VllmPythonOption = Annotated[
    Path | None,
    typer.Option(
        "--vllm-python",
        envvar="NIGHTSHIFT_VLLM_PYTHON",
        help="Interpreter of the environment that has vLLM.",
    ),
]


def vllm_python(given: Path | None) -> Path:
    """The interpreter that starts vLLM.

    The one given; else our own where it has vLLM; else the one of a ``.venv-vllm`` beside our environment,
    which ``make quickstart`` makes; else our own, whose lack of vLLM the worker then reports.
    """
    if given is not None:
        return given
    own = Path(sys.executable)
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    if importlib.util.find_spec("vllm") is None and beside.exists():
        return beside
    return own


def read_token(given: str | None) -> str | None:
    """The token given, else the content of the file that ``NIGHTSHIFT_TOKEN_FILE`` names.

    Raises:
        FieldError: the file cannot be read.
    """
    named = os.environ.get("NIGHTSHIFT_TOKEN_FILE")
    if given is not None or named is None:
        return given
    try:
        return Path(named).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise FieldError(
            "NIGHTSHIFT_TOKEN_FILE",
            named,
            problem=f"cannot be read: {error.strerror}",
            fix="name a file that holds the token",
        ) from error


def local_settings(home: Path | None) -> Settings:
    """The settings from the environment, with the home folder that an option names."""
    return Settings() if home is None else Settings(home=home.expanduser().resolve())


def show_help(context: typer.Context) -> None:
    """Print a group's help when it is called without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())

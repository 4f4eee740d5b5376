"""``nightshift serve``: the control plane as a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DEFAULT_PORT, HostOption
from app.main import serve as run_server
from app.settings import Settings

__all__ = ["serve"]


def serve(
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = DEFAULT_PORT,
    port_file: Annotated[
        Path | None, typer.Option(help="Write the port to this file once the server listens.")
    ] = None,
) -> None:
    """Serve the control plane: REST interface, Optuna dashboard, background loops.

    Brings its database up to date by itself. NIGHTSHIFT_DATABASE_URL names the database; without it, it is
    a file in NIGHTSHIFT_HOME. On another address than loopback a token must exist first.

    \b
    Examples:
      nightshift serve
      nightshift token create --name me --scope admin && nightshift serve --host 0.0.0.0
      NIGHTSHIFT_DATABASE_URL=postgresql+psycopg://tuner@db/tuner nightshift serve
    """
    run_server(Settings(), host=host, port=port, port_file=port_file)

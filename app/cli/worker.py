"""``nightshift worker`` and ``nightshift worker-list``."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

import typer

from app.cli.options import (
    HomeOption,
    JsonOption,
    ServerOption,
    TokenOption,
    VllmPythonOption,
    vllm_python,
)
from app.cli.output import print_json, print_table, when
from app.cli.plane import connected
from workers.agent import run as run_agent
from workers.settings import WorkerSettings

__all__ = ["worker", "worker_list"]


def worker(
    server: Annotated[
        str | None,
        typer.Option(help="Address of the control plane.  [default: http://127.0.0.1:8765]"),
    ] = None,
    token: Annotated[str | None, typer.Option(help="Token of scope worker.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Unique, stable across restarts.  [default: host and GPUs]")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs to own, e.g. 0,1; none is a CPU worker.  [default: all]")
    ] = None,
    python: VllmPythonOption = None,
    home: HomeOption = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Exit after so many attempts.  [default: no limit]")
    ] = None,
) -> None:
    """Run trials for a control plane with the GPUs of this machine.

    Every option is also an environment variable: NIGHTSHIFT_SERVER, NIGHTSHIFT_TOKEN or
    NIGHTSHIFT_TOKEN_FILE, NIGHTSHIFT_WORKER_NAME, NIGHTSHIFT_GPUS, NIGHTSHIFT_VLLM_PYTHON,
    NIGHTSHIFT_HOME. SIGTERM and Ctrl-C drain: the engine is stopped and its trial given back; a second one
    ends the worker at once. No engine outlives it either way.

    \b
    Examples:
      nightshift worker --server http://tuner:8765 --gpus 0
      NIGHTSHIFT_TOKEN_FILE=/run/secrets/token nightshift worker --server http://tuner:8765
    """
    given: dict[str, Any] = {
        "server": server,
        "token": token,
        "worker_name": name,
        "gpus": gpus,
        "vllm_python": vllm_python(python),
        "home": home,
        "max_attempts": max_attempts,
    }
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every heartbeat
    settings = WorkerSettings(**{field: value for field, value in given.items() if value is not None})
    asyncio.run(run_agent(settings))


def worker_list(server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the workers, with the reason of one that was set aside.

    \b
    Example:
      nightshift worker-list --server http://tuner:8765 --json
    """
    with connected(server, token) as client:
        workers = client.workers()
    if as_json:
        print_json(workers)
        return
    rows = [
        (
            w.name,
            w.state,
            w.gpu or "CPU" if w.gpus < 2 else f"{w.gpus} × {w.gpu}",
            w.vllm_version or "none",
            when(w.seen_at),
            w.reason or "",
        )
        for w in workers
    ]
    print_table(
        ("name", "state", "hardware", "vLLM", "last seen", "reason"),
        rows,
        empty="No worker has come yet; start one with `nightshift worker`.",
    )

"""Puts the control plane together and serves it: as a process, or in a thread of the command line."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import optuna
import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.responses import RedirectResponse
from starlette.routing import Route

from app.api import errors, events, health, leases, studies, workers
from app.api import tokens as tokens_api
from app.background.loop import BackgroundLoop
from app.dashboard import GuardedDashboard
from app.neighbours import is_loopback
from app.services import tokens
from app.services.plane import ControlPlane, open_control_plane
from app.settings import Settings
from tuner.errors import FieldError

__all__ = ["ServerThread", "build", "create_app", "serve"]

GRACE_S = 5
"""How long requests under way may take once the server is told to stop."""
LOCAL_TOKEN_TTL_S = 30 * 24 * 3600.0


def installed_version() -> str:
    """Version of this distribution."""
    try:
        return version("vllm-nightshift")
    except PackageNotFoundError:
        return "0+unknown"


def create_app(plane: ControlPlane, *, open_without_tokens: bool = True) -> FastAPI:
    """The web application on a control plane; its background loops run while it does.

    Args:
        plane: an open control plane; whoever made it closes it.
        open_without_tokens: whether everyone may do everything while no token exists.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop = BackgroundLoop(plane)
        loop.start()
        yield
        app.state.stopping.set()
        loop.stop()

    app = FastAPI(
        title="Nightshift",
        version=installed_version(),
        summary="Finds the best vLLM configuration for a model, a GPU and a workload.",
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url="/api/v1/docs",
        redoc_url=None,
        responses={"default": errors.DOCUMENTED},
    )
    app.state.plane = plane
    app.state.open_without_tokens = open_without_tokens
    app.state.stopping = threading.Event()
    errors.install(app)
    api = APIRouter(prefix="/api/v1")
    for module in (health, studies, leases, workers, events, tokens_api):
        api.include_router(module.router)
    app.include_router(api)

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/dashboard/")

    app.router.routes.append(Route("/api/v1{path:path}", errors.UnknownPath(), include_in_schema=False))
    app.mount("/", GuardedDashboard(plane, open_without_tokens=open_without_tokens))
    return app


def build(settings: Settings, *, open_without_tokens: bool = True) -> tuple[FastAPI, ControlPlane]:
    """The application and the control plane it serves, on an up-to-date database.

    Raises:
        FieldError: the database's URL is wrong.
        DatabaseError: it cannot be reached, or is newer than this version.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plane = open_control_plane(settings)
    return create_app(plane, open_without_tokens=open_without_tokens), plane


class Server(uvicorn.Server):
    """uvicorn's server, which tells waiting claims to end as soon as it is told to."""

    def __init__(self, app: FastAPI, *, access_log: bool) -> None:
        config = uvicorn.Config(
            app,
            log_level="info" if access_log else "warning",
            access_log=access_log,
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
        )
        super().__init__(config)
        self._stopping: threading.Event = app.state.stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """A signal: end the long polls, then the server; at once if asked a second time.

        uvicorn's own raises the signal again at the end, which would kill this process before it has closed
        the database.
        """
        self.force_exit = self.should_exit
        self.stop()

    def stop(self) -> None:
        """End the long polls, then the server."""
        self._stopping.set()
        self.should_exit = True


def serve(settings: Settings, *, host: str, port: int, port_file: Path | None = None) -> None:
    """Serve until a signal ends it.

    Raises:
        FieldError: the port is in use, the host is no address of this machine, or anyone could come in.
        DatabaseError: the database cannot be used.
    """
    listener = listen(host, port)
    with listener:
        app, plane = build(settings, open_without_tokens=is_loopback(host))
        try:
            _refuse_open_door(plane, host)
            bound = listener.getsockname()[1]
            if port_file is not None:
                _write_atomically(port_file, f"{bound}\n")
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            logging.getLogger("app").info("Nightshift serves at %s", url_of(host, bound))
            Server(app, access_log=False).run(sockets=[listener])
        finally:
            plane.close()


def _refuse_open_door(plane: ControlPlane, host: str) -> None:
    if not is_loopback(host) and not tokens.any_usable(plane):
        raise FieldError(
            "--host",
            host,
            problem="is open to other machines, and no token exists",
            fix="make one first: nightshift token create --name me --scope admin",
        )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything else is started, so that a taken port costs nothing.

    Raises:
        FieldError: it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror) or error.errno == 99:  # EADDRNOTAVAIL
            problem, fix = "is no address of this machine", "use 127.0.0.1, or 0.0.0.0 for all addresses"
            raise FieldError("--host", host, problem=problem, fix=fix) from error
        problem = f"cannot be used: {error.strerror}"
        raise FieldError(
            "--port", port, problem=problem, fix="choose another, or stop what listens there"
        ) from error
    return listener


def url_of(host: str, port: int) -> str:
    """The address to open."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


def _write_atomically(file: Path, content: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(content, encoding="utf-8")
    beside.replace(file)


class ServerThread:
    """The control plane in a thread of this process, on loopback; a context manager.

    Args:
        settings: of the control plane.
        port: to listen on; 0 takes a free one.

    Attributes:
        url: address of the server.
        token: for its API, where the database holds tokens already; else ``None``.

    Raises:
        FieldError: the port is in use.
        DatabaseError: the database cannot be used.
    """

    def __init__(self, settings: Settings, *, port: int = 0) -> None:
        self._settings = settings
        self._port = port
        self.url = ""
        self.token: str | None = None
        self._token_name = f"local-{os.getpid()}-{secrets.token_hex(4)}"

    def __enter__(self) -> Self:
        self._listener = listen("127.0.0.1", self._port)
        try:
            app, self._plane = build(self._settings)
        except BaseException:
            self._listener.close()
            raise
        if tokens.any_made(self._plane):
            made = tokens.create(self._plane, self._token_name, tokens.Scope.ADMIN, ttl_s=LOCAL_TOKEN_TTL_S)
            self.token = made.token
        self.url = url_of("127.0.0.1", self._listener.getsockname()[1])
        self._server = Server(app, access_log=False)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._listener]},
            name="nightshift-server",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self._thread.join()
        if self.token is not None:
            tokens.revoke(self._plane, self._token_name)
        self._plane.close()
        self._listener.close()

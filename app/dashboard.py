"""The Optuna dashboard, guarded by our tokens.

Its routes are absolute (``/dashboard``, ``/api/studies``, ``/static``, …), so it is the fallback at the root
and our API lives under ``/api/v1``. It can also create, delete and finish studies and trials; that is refused
here, because Nightshift's own record would not know. Notes and artifacts may be written.
"""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from http import HTTPStatus
from typing import Any, cast

from a2wsgi import WSGIMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import AppError, ForbiddenError, UnauthorizedError
from app.neighbours import refuse_strangers
from app.services import tokens
from app.services.plane import ControlPlane

__all__ = ["GuardedDashboard"]

READS = frozenset({"GET", "HEAD", "OPTIONS"})
ALLOWED_WRITES = re.compile(r"^/api/(studies/\d+/(\d+/)?note|artifacts/.*|llm/.*)$")


class GuardedDashboard:
    """An ASGI application.

    Args:
        plane: the control plane whose storage it shows.
        open_without_tokens: whether anyone may look while no token exists.
    """

    def __init__(self, plane: ControlPlane, *, open_without_tokens: bool) -> None:
        self._plane = plane
        self._open = open_without_tokens
        self._loading = threading.Lock()
        self._loaded: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = await run_in_threadpool(self._refusal, scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        dashboard = self._loaded if self._loaded is not None else await run_in_threadpool(self._load)
        await dashboard(_with_accept_encoding(scope), receive, send)

    def _load(self) -> ASGIApp:
        """The dashboard itself, made at the first request for it.

        Importing it brings in plotting and statistics libraries, seconds that no other command should wait.
        """
        with self._loading:
            if self._loaded is None:
                wsgi: Any = importlib.import_module("optuna_dashboard").wsgi(self._plane.storage)
                # Its plots of importance warn of studies with few trials, on a console that nobody watches.
                warnings.filterwarnings("ignore", module=r"optuna\.importance\.")
                # Its own types of ASGI messages are narrower than Starlette's.
                self._loaded = cast(ASGIApp, WSGIMiddleware(wsgi))
            return self._loaded

    def _refusal(self, scope: Scope) -> Response | None:
        """Why this request is not for the dashboard; ``None`` when it is."""
        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
        except UnauthorizedError as error:
            # A browser asks its user: any name, and the token as the password.
            return _problem(
                HTTPStatus.UNAUTHORIZED, error, {"WWW-Authenticate": 'Basic realm="Nightshift token"'}
            )
        except ForbiddenError as error:
            return _problem(HTTPStatus.FORBIDDEN, error)
        return None

    def _check(self, method: str, path: str, headers: Headers) -> None:
        reads = method in READS
        if not reads and not ALLOWED_WRITES.match(path):
            raise ForbiddenError(
                "studies and trials are created and ended by Nightshift",
                field="path",
                value=path,
                fix="use /api/v1 or the command line",
            )
        if self._open and not tokens.any_made(self._plane):
            refuse_strangers(headers)
            return
        needed = tokens.Scope.VIEWER if reads else tokens.Scope.OPERATOR
        tokens.authorize(self._plane, tokens.presented(headers.get("authorization")), needed)


def _problem(status: HTTPStatus, error: AppError, headers: dict[str, str] | None = None) -> Response:
    told = {"field": error.field, "value": error.value, "fix": error.fix}
    body = {
        "type": f"urn:nightshift:{type(error).__name__.removesuffix('Error')}",
        "title": status.phrase,
        "status": status.value,
        "detail": str(error),
        **{name: value for name, value in told.items() if value not in (None, "")},
    }
    return JSONResponse(body, status.value, headers=headers, media_type="application/problem+json")


def _with_accept_encoding(scope: Scope) -> Scope:
    """The dashboard answers 500 to a client that sends no Accept-Encoding header."""
    if any(name == b"accept-encoding" for name, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (b"accept-encoding", b"identity")]}

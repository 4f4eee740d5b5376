"""Every error as problem+json (RFC 9457), with the field, its value and the fix where there are any.

One table says what each error means over HTTP; nothing below this layer knows of status codes.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Receive, Scope, Send

from app import errors
from app.api.requests import MAX_INTEGER
from tuner.errors import FieldError

__all__ = ["DOCUMENTED", "PROBLEM_MEDIA_TYPE", "UnknownPath", "install"]

PROBLEM_MEDIA_TYPE = "application/problem+json"
DOCUMENTED: dict[str, Any] = {
    "description": "What is wrong, as RFC 9457 has it; `field`, `value` and `fix` where there are any.",
    "content": {
        PROBLEM_MEDIA_TYPE: {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "field": {"type": "string"},
                    "value": {},
                    "fix": {"type": "string"},
                },
            }
        }
    },
}
"""How the OpenAPI document describes every answer that is an error."""
logger = logging.getLogger(__name__)

STATUS: tuple[tuple[type[errors.AppError], HTTPStatus], ...] = (
    (errors.NotFoundError, HTTPStatus.NOT_FOUND),
    (errors.ConflictError, HTTPStatus.CONFLICT),
    (errors.StateError, HTTPStatus.CONFLICT),
    (errors.StaleLeaseError, HTTPStatus.CONFLICT),
    (errors.UnauthorizedError, HTTPStatus.UNAUTHORIZED),
    (errors.ForbiddenError, HTTPStatus.FORBIDDEN),
    (errors.DatabaseError, HTTPStatus.SERVICE_UNAVAILABLE),
)


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem document."""
    app.add_exception_handler(errors.AppError, _app_error)
    app.add_exception_handler(FieldError, _field_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def problem(
    status: HTTPStatus,
    detail: str,
    *,
    kind: str = "about:blank",
    headers: dict[str, str] | None = None,
    **more: Any,
) -> JSONResponse:
    """A problem document; members that are empty are left out."""
    body = {
        "type": kind,
        "title": status.phrase,
        "status": status.value,
        "detail": _text(detail),
        **{name: _plain(value) for name, value in more.items() if value not in (None, "")},
    }
    return JSONResponse(body, status.value, headers=headers, media_type=PROBLEM_MEDIA_TYPE)


async def _app_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.AppError)  # noqa: S101 - the registration says so
    status = next(
        (status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR
    )
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else None
    name = type(error).__name__.removesuffix("Error")
    kind = f"urn:nightshift:{name}"
    return problem(
        status,
        str(error),
        kind=kind,
        headers=headers,
        field=error.field,
        value=error.value,
        fix=error.fix,
    )


async def _field_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, FieldError)  # noqa: S101 - the registration says so
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        str(error),
        kind="urn:nightshift:Field",
        field=error.field,
        value=error.value,
        fix=error.fix,
    )


async def _invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - the registration says so
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path", "header"))
    message = str(first["msg"]).removeprefix("Value error, ")
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{field or 'body'}: {message}",
        kind="urn:nightshift:Field",
        field=field or "body",
        value=first.get("input"),
        fix="see /api/v1/docs for what this request takes",
    )


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - the registration says so
    headers = dict(error.headers) if error.headers else None
    return problem(HTTPStatus(error.status_code), str(error.detail), headers=headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = "the server met an error that it did not expect; its log has the details"
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def _plain(value: object) -> object:
    """A value as JSON can hold it; long ones are cut."""
    if isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < MAX_INTEGER):
        return value
    text = _text(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 500 else f"{text[:500]}…"


def _text(text: str) -> str:
    """The text as UTF-8 can hold it: an answer that names a bad character must not hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class UnknownPath:
    """The ASGI application behind all paths and methods that the API does not have."""

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        routes = [route for route in scope["app"].router.routes if not _takes_everything(route)]
        methods = sorted(
            method
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
            if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
        )
        path = scope["path"]
        if not methods:
            raise errors.NotFoundError(
                f"the API has no path {path}", field="path", value=path, fix="see /api/v1/docs"
            )
        allow = {"Allow": ", ".join(methods)}
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {allow['Allow']}", allow)


def _takes_everything(route: BaseRoute) -> bool:
    return isinstance(route, Mount) or (isinstance(route, Route) and isinstance(route.app, UnknownPath))

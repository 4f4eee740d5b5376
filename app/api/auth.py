"""Who may call what. While no token exists, a server on loopback is open; with one, every call needs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.errors import UnauthorizedError
from app.neighbours import refuse_strangers
from app.services import tokens
from app.services.plane import ControlPlane
from app.services.tokens import Scope

__all__ = ["Plane", "needs", "plane_of"]


def plane_of(request: Request) -> ControlPlane:
    """The control plane that the application serves."""
    plane: ControlPlane = request.app.state.plane
    return plane


BEARER = HTTPBearer(
    scheme_name="token", description="A token of `nightshift token create`.", auto_error=False
)
"""Only documents how a token is sent; :func:`needs` reads it, also where a browser sent it as a password."""
Plane = Annotated[ControlPlane, Depends(plane_of)]


def needs(scope: Scope) -> Callable[..., None]:
    """A dependency that lets a request pass only with a token that allows ``scope``."""

    def check(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]) -> None:
        plane = plane_of(request)
        if request.app.state.open_without_tokens and not tokens.any_made(plane):
            refuse_strangers(request.headers)
            return
        authorization = request.headers.get("authorization")
        if request.method != "GET":
            _refuse_password(authorization)
        tokens.authorize(plane, tokens.presented(authorization), scope)

    return check


def _refuse_password(authorization: str | None) -> None:
    """A browser repeats the password that it was given for the dashboard whichever page asks it to.

    So a page of another site could change something here; it cannot make a browser send a bearer token.
    """
    if (authorization or "").lower().startswith("basic"):
        raise UnauthorizedError(
            "a token sent as a password may look, but change nothing",
            field="Authorization",
            value="(hidden)",
            fix="send it as `Authorization: Bearer …`",
        )

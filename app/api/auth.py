"""Who may call what. While no token exists, a server on loopback is open; with one, every call needs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

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
        tokens.authorize(plane, tokens.presented(request.headers.get("authorization")), scope)

    return check

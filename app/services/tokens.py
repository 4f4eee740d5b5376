"""Tokens: who may do what. A token is shown once; its hash is kept."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

from app.db import leases, tokens
from app.db.tokens import TokenRow
from app.errors import ForbiddenError, NotFoundError, UnauthorizedError
from app.services.plane import ControlPlane
from tuner.errors import FieldError

__all__ = [
    "NewToken",
    "Scope",
    "any_made",
    "any_usable",
    "authorize",
    "create",
    "page",
    "presented",
    "revoke",
]

PREFIX = "ns_"
"""Begins every token, so that secret scanners find a leaked one."""
MAX_TTL_S = 100 * 365.25 * 24 * 3600
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class Scope(StrEnum):
    """What a token allows."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    WORKER = "worker"
    ADMIN = "admin"


ALLOWS = {
    Scope.VIEWER: frozenset({Scope.VIEWER}),
    Scope.OPERATOR: frozenset({Scope.VIEWER, Scope.OPERATOR}),
    Scope.WORKER: frozenset({Scope.WORKER}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token just made, with its secret."""

    row: TokenRow
    token: str


def create(plane: ControlPlane, name: str, scope: str, *, ttl_s: float | None = None) -> NewToken:
    """Make a token.

    Args:
        plane: the control plane.
        name: unique.
        scope: one of :class:`Scope`.
        ttl_s: lifetime in seconds; ``None`` never expires.

    Raises:
        FieldError: the name or scope is none, or the lifetime is not above zero or too long.
        ConflictError: a token of that name exists.
    """
    if not _NAME.match(name):
        raise FieldError(
            "name", name, problem="is no name", fix="use letters, digits, '.', '_' and '-', at most 100"
        )
    if scope not in set(Scope):
        raise FieldError("scope", scope, problem="is no scope", fix=f"use one of {', '.join(Scope)}")
    if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:
        fix = "give seconds above 0, at most a hundred years, or leave it out"
        raise FieldError("ttl_s", ttl_s, problem="is no lifetime", fix=fix)
    token = PREFIX + secrets.token_urlsafe(32)
    with plane.database.write() as connection:
        tokens.add(connection, name, scope, leases.hash_token(token), ttl_s)
        row = tokens.by_name(connection, name)
    if row is None:
        raise RuntimeError(f"token {name} vanished in its own transaction")
    return NewToken(row, token)


def authorize(plane: ControlPlane, token: str | None, needed: Scope) -> TokenRow:
    """The token's row, if it allows ``needed``. The look-up is by hash, so timing tells nothing of it.

    Raises:
        UnauthorizedError: there is no token, or it is unknown, expired or revoked.
        ForbiddenError: its scope does not allow this.
    """
    fix = "make one with `nightshift token create`, and send it as `Authorization: Bearer …`"
    if not token:
        raise UnauthorizedError("a token is needed", field="Authorization", fix=fix)
    with plane.database.read() as connection:
        row = tokens.by_hash(connection, leases.hash_token(token))
    if row is None:
        raise UnauthorizedError("the token is unknown", field="Authorization", value="(hidden)", fix=fix)
    if not row.usable:
        why = "was revoked" if row.revoked_at is not None else "has expired"
        raise UnauthorizedError(f"token {row.name} {why}", field="Authorization", value="(hidden)", fix=fix)
    if needed not in ALLOWS[Scope(row.scope)]:
        raise ForbiddenError(
            f"token {row.name} has the scope {row.scope}",
            field="Authorization",
            value=row.scope,
            fix=f"use a token with the scope {needed.value} or admin",
        )
    return row


def presented(authorization: str | None) -> str | None:
    """The token of an ``Authorization`` header: a bearer token, or the password that a browser asked for."""
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip() or None
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def any_made(plane: ControlPlane) -> bool:
    """Whether a token was ever made: from then on a server is not open, even if all tokens have ended."""
    with plane.database.read() as connection:
        return tokens.any_made(connection)


def any_usable(plane: ControlPlane) -> bool:
    """Whether some token would be accepted."""
    with plane.database.read() as connection:
        return tokens.any_usable(connection)


def page(plane: ControlPlane, *, after: str = "", limit: int = 100) -> list[TokenRow]:
    """Tokens with a name behind ``after``, in order."""
    with plane.database.read() as connection:
        return tokens.page(connection, after=after, limit=limit)


def revoke(plane: ControlPlane, name: str) -> None:
    """Make a token useless from now on.

    Raises:
        NotFoundError: there is none of that name.
    """
    with plane.database.write() as connection:
        if tokens.by_name(connection, name) is None:
            raise NotFoundError(
                f"no token is named {name}",
                field="name",
                value=name,
                fix="`nightshift token list` names them",
            )
        tokens.revoke(connection, name)

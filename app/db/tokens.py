"""Rows of ``ns_tokens``: only hashes are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.db import events
from app.db.clock import db_now
from app.db.tables import tokens
from app.errors import ConflictError

__all__ = ["TokenRow", "add", "any_made", "any_usable", "by_hash", "by_name", "page", "revoke"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token; ``usable`` is judged on the database's clock."""

    name: str
    scope: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    usable: bool


_USABLE = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at.is_(None) | (tokens.c.expires_at > db_now()))
_COLUMNS = (
    tokens.c.name,
    tokens.c.scope,
    tokens.c.created_at,
    tokens.c.expires_at,
    tokens.c.revoked_at,
    _USABLE.label("usable"),
)


def _row(values: Any) -> TokenRow:
    found = dict(values._mapping)
    return TokenRow(**{**found, "usable": bool(found["usable"])})


def add(connection: Connection, name: str, scope: str, token_hash: str, ttl_s: float | None) -> None:
    """Insert a token.

    Raises:
        ConflictError: one has that name.
    """
    expires = None if ttl_s is None else db_now() + ttl_s
    values = {"name": name, "scope": scope, "hash": token_hash, "expires_at": expires}
    try:
        connection.execute(insert(tokens).values(**values, created_at=db_now()))
    except IntegrityError as error:
        raise ConflictError(
            f"a token named {name} exists", field="name", value=name, fix="choose another name"
        ) from error
    events.record(connection, "token.created", token=name, scope=scope)


def by_hash(connection: Connection, token_hash: str) -> TokenRow | None:
    """The token with that hash."""
    found = connection.execute(select(*_COLUMNS).where(tokens.c.hash == token_hash)).one_or_none()
    return None if found is None else _row(found)


def by_name(connection: Connection, name: str) -> TokenRow | None:
    """The token of that name."""
    found = connection.execute(select(*_COLUMNS).where(tokens.c.name == name)).one_or_none()
    return None if found is None else _row(found)


def page(connection: Connection, *, after: str, limit: int) -> list[TokenRow]:
    """Tokens with a name behind ``after``, in order."""
    query = select(*_COLUMNS).where(tokens.c.name > after).order_by(tokens.c.name).limit(limit)
    return [_row(found) for found in connection.execute(query)]


def any_usable(connection: Connection) -> bool:
    """Whether some token would be accepted."""
    return bool(connection.scalar(select(func.count()).select_from(tokens).where(_USABLE)))


def any_made(connection: Connection) -> bool:
    """Whether a token was ever made; one that is of no use any more counts."""
    return bool(connection.scalar(select(func.count()).select_from(tokens)))


def revoke(connection: Connection, name: str) -> None:
    """Make a token useless."""
    connection.execute(update(tokens).where(tokens.c.name == name).values(revoked_at=db_now()))
    events.record(connection, "token.revoked", token=name)

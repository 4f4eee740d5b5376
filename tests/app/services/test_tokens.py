"""Tokens: what each scope allows, and what makes one useless."""

from __future__ import annotations

import base64

import pytest
from sqlalchemy import select, update

from app.db.tables import tokens as table
from app.errors import ConflictError, ForbiddenError, NotFoundError, UnauthorizedError
from app.services import tokens
from app.services.plane import ControlPlane
from app.services.tokens import Scope
from tuner.errors import FieldError


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope.VIEWER, {Scope.VIEWER}),
        (Scope.OPERATOR, {Scope.VIEWER, Scope.OPERATOR}),
        (Scope.WORKER, {Scope.WORKER}),
        (Scope.ADMIN, set(Scope)),
    ],
)
def test_scope_allows_what_it_says(plane: ControlPlane, scope: Scope, allowed: set[Scope]) -> None:
    token = tokens.create(plane, "mine", scope.value).token
    for needed in Scope:
        if needed in allowed:
            assert tokens.authorize(plane, token, needed).name == "mine"
        else:
            with pytest.raises(ForbiddenError, match=needed.value):
                tokens.authorize(plane, token, needed)


def test_only_the_hash_is_stored(plane: ControlPlane) -> None:
    token = tokens.create(plane, "mine", "admin").token
    with plane.database.read() as connection:
        [row] = connection.execute(select(table)).all()
    assert token not in str(row)


@pytest.mark.parametrize("token", [None, "", "ns_wrong"])
def test_no_token_and_a_wrong_one_are_refused(plane: ControlPlane, token: str | None) -> None:
    with pytest.raises(UnauthorizedError, match="nightshift token create"):
        tokens.authorize(plane, token, Scope.VIEWER)


def test_expired_token_is_named(plane: ControlPlane) -> None:
    token = tokens.create(plane, "mine", "admin", ttl_s=60.0).token
    with plane.database.write() as connection:
        connection.execute(update(table).values(expires_at=1.0))
    with pytest.raises(UnauthorizedError, match="token mine has expired"):
        tokens.authorize(plane, token, Scope.VIEWER)
    assert not tokens.any_usable(plane)


def test_revoked_token_is_named(plane: ControlPlane) -> None:
    token = tokens.create(plane, "mine", "admin").token
    tokens.revoke(plane, "mine")
    with pytest.raises(UnauthorizedError, match="token mine was revoked"):
        tokens.authorize(plane, token, Scope.VIEWER)


def test_name_is_unique(plane: ControlPlane) -> None:
    tokens.create(plane, "mine", "admin")
    with pytest.raises(ConflictError):
        tokens.create(plane, "mine", "viewer")


def test_unknown_name_cannot_be_revoked(plane: ControlPlane) -> None:
    with pytest.raises(NotFoundError):
        tokens.revoke(plane, "nobody")


@pytest.mark.parametrize(
    ("name", "scope", "ttl_s"), [("a b", "admin", None), ("a", "root", None), ("a", "admin", 0.0)]
)
def test_bad_input_is_refused(plane: ControlPlane, name: str, scope: str, ttl_s: float | None) -> None:
    with pytest.raises(FieldError):
        tokens.create(plane, name, scope, ttl_s=ttl_s)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer ns_x", "ns_x"),
        ("bearer  ns_x ", "ns_x"),
        ("Basic " + base64.b64encode(b"anyone:ns_x").decode(), "ns_x"),
        ("Basic !!", None),
        ("Digest x", None),
        ("", None),
        (None, None),
    ],
)
def test_token_of_a_header(header: str | None, token: str | None) -> None:
    assert tokens.presented(header) == token

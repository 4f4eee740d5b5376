"""``/api/v1/tokens``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, status

from app.api.auth import Plane, needs
from app.api.paging import Cursor, Limit, decode, encode
from app.api.requests import CheckedRoute
from app.api.schemas import NewTokenRequest, Page, Token, TokenWithSecret
from app.services import tokens
from app.services.tokens import Scope

__all__ = ["router"]

router = APIRouter(
    prefix="/tokens", tags=["tokens"], dependencies=[Depends(needs(Scope.ADMIN))], route_class=CheckedRoute
)


@router.post("", status_code=status.HTTP_201_CREATED)
def create(plane: Plane, body: NewTokenRequest) -> TokenWithSecret:
    """Make a token; its secret is in this answer and nowhere else."""
    made = tokens.create(plane, body.name, body.scope, ttl_s=body.ttl_s)
    return TokenWithSecret.made(made.row, made.token)


@router.get("")
def list_tokens(plane: Plane, limit: Limit = 100, cursor: Cursor = None) -> Page[Token]:
    """Tokens by name, without their secrets."""
    after = decode(cursor, str)[0] if cursor else ""
    rows = tokens.page(plane, after=after, limit=limit + 1)
    items = [Token.of(row) for row in rows[:limit]]
    return Page(items=items, next=encode(items[-1].name) if len(rows) > limit else None)


@router.delete("/{name}", status_code=status.HTTP_204_NO_CONTENT)
def revoke(plane: Plane, name: str) -> None:
    """Make a token useless from now on."""
    tokens.revoke(plane, name)

"""Cursors of paged lists: opaque to the caller, position in the list to us."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any

from fastapi import Query

from app.api.requests import unkeepable
from tuner.errors import FieldError

__all__ = ["Cursor", "Limit", "decode", "decode_newest_first", "encode"]

Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=500)]


def encode(*position: object) -> str:
    """A cursor that stands for a position."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def decode(cursor: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """The position that a cursor stands for.

    Raises:
        FieldError: it is no cursor of this list.
    """
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        position = None
    if not _fits(position, kinds):
        raise FieldError(
            "cursor", cursor, problem="is no cursor of this list", fix="take the `next` of an earlier answer"
        )
    return list(position)


def decode_newest_first(cursor: str | None) -> tuple[float, str] | None:
    """The position (created_at, id) in a list whose newest part comes first; ``None`` at its start.

    Raises:
        FieldError: the cursor is none of such a list.
    """
    if not cursor:
        return None
    at, row_id = decode(cursor, (int, float), str)
    return float(at), row_id


def _fits(position: object, kinds: tuple[type | tuple[type, ...], ...]) -> bool:
    if not isinstance(position, list) or len(position) != len(kinds):
        return False
    return all(
        isinstance(part, kind) and not isinstance(part, bool) and unkeepable(part) is None
        for part, kind in zip(position, kinds, strict=True)
    )

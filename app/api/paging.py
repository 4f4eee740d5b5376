"""Cursors of paged lists: opaque to the caller, position in the list to us."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any

from fastapi import Query

from tuner.errors import FieldError

__all__ = ["Cursor", "Limit", "decode", "encode"]

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
    fits = isinstance(position, list) and len(position) == len(kinds)
    if not fits or not all(isinstance(part, kind) for part, kind in zip(position, kinds, strict=True)):
        raise FieldError(
            "cursor", cursor, problem="is no cursor of this list", fix="take the `next` of an earlier answer"
        )
    return list(position)

"""What every request is checked for before anything else reads it: its size, and values that cannot be kept.

Two databases stand behind the API, and neither keeps every JSON value: PostgreSQL has no text with a NUL
character, UTF-8 no half of a surrogate pair, 64 bits no greater number, and JSON itself no NaN.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from tuner.errors import FieldError

__all__ = ["MAX_BODY_BYTES", "MAX_INTEGER", "CheckedRoute", "refuse_unkeepable", "unkeepable"]

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Far above any study or report; without a limit one request could take all memory."""
MAX_INTEGER = 2**63
"""First whole number that neither database keeps."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_TYPE = re.compile(r"application/([\w.+-]+\+)?json\s*(;.*)?", re.IGNORECASE)


class CheckedRoute(APIRoute):
    """A route whose handler sees only requests that pass these checks."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Put the checks in front of the handler."""
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def checked(request: Request) -> Response:
            refuse_unkeepable({**request.path_params, **request.query_params})
            bounded = BoundedRequest(request.scope, request.receive)
            if takes_body:
                await _check_body(bounded)
            return await handle(bounded)

        return checked


class BoundedRequest(Request):
    """A request whose body is read no further than the limit."""

    async def body(self) -> bytes:
        """The body.

        Raises:
            HTTPException: it is too large.
        """
        if not hasattr(self, "_body"):
            parts, size = [], 0
            async for part in self.stream():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    detail = f"the body is larger than {MAX_BODY_BYTES} bytes"
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
                parts.append(part)
            self._body = b"".join(parts)
        return self._body


async def _check_body(request: BoundedRequest) -> None:
    body = await request.body()
    kind = request.headers.get("content-type", "")
    if body and not _JSON_TYPE.fullmatch(kind):
        detail = f"the body is {kind or 'of no type'}; send JSON, with Content-Type: application/json"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    fix = "send one JSON object; /api/v1/docs shows which"
    try:
        content = await request.json()
    except RecursionError as error:
        raise FieldError("body", "(too long to show)", problem="is nested too deeply", fix=fix) from error
    except json.JSONDecodeError as error:
        shown = body[:100].decode("utf-8", errors="replace")
        raise FieldError("body", shown, problem=f"is no JSON: {error}", fix=fix) from error
    except ValueError as error:  # bytes that are no text, or a number of thousands of digits
        raise FieldError("body", "(cannot be shown)", problem=f"is no JSON: {error}", fix=fix) from error
    refuse_unkeepable(content)


def refuse_unkeepable(content: object) -> None:
    """Refuse values that JSON can spell and that cannot be kept.

    Raises:
        FieldError: there is one, at the dotted path that it names.
    """
    pending = [("", content)]  # not recursive: a body may be nested deeper than Python's stack
    while pending:
        place, value = pending.pop()
        problem = unkeepable(value)
        if problem is not None:
            raise FieldError(place or "body", value, problem=problem, fix="send another value")
        if isinstance(value, list):
            pending += [(f"{place}.{number}".lstrip("."), below) for number, below in enumerate(value)]
        elif isinstance(value, dict):
            pending += [(place, name) for name in value]
            pending += [(f"{place}.{name}".lstrip("."), below) for name, below in value.items()]


def unkeepable(value: object) -> str | None:
    """Why a value cannot be kept; ``None`` where it can. Does not look into lists and objects."""
    if isinstance(value, str) and "\0" in value:
        return "holds a NUL character"
    if isinstance(value, str) and _SURROGATE.search(value):
        return "holds half of a surrogate pair, which is no character"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        return "does not fit into 64 bits"
    return None

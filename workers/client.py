"""The worker's side of the lease protocol, over HTTP.

ControlPlaneError
├── UnreachableError   no answer, or the server's own fault (5xx): asking again may help
├── StaleLeaseError    409: the lease is no longer ours; nothing that we say changes anything
└── RefusedError       any other 4xx: asking again does not help
"""

from __future__ import annotations

from typing import Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import tenacity
from pydantic import BaseModel, ValidationError

from tuner.protocol import (
    Assignment,
    ClaimRequest,
    Heartbeat,
    HeartbeatAnswer,
    Release,
    Report,
    WorkerDescription,
)

__all__ = [
    "ControlPlaneClient",
    "ControlPlaneError",
    "RefusedError",
    "StaleLeaseError",
    "UnreachableError",
    "patiently",
]

TIMEOUT_S = 10.0
LONG_POLL_SLACK_S = 10.0
NO_CONTENT, CONFLICT, SERVER_ERROR = 204, 409, 500
TOO_MANY, REQUEST_TIMEOUT = 429, 408

M = TypeVar("M", bound=BaseModel)


class ControlPlaneError(Exception):
    """Base of what talking to the control plane may raise."""


class UnreachableError(ControlPlaneError):
    """No answer that says anything about the request."""


class StaleLeaseError(ControlPlaneError):
    """The lease has expired, was ended, or is another's."""


class RefusedError(ControlPlaneError):
    """The server refuses the request itself.

    Attributes:
        status: HTTP status.
        unauthorised: whether it is about who asks (401, 403).
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.unauthorised = status in (401, 403)


def patiently(within_s: float | None) -> tenacity.AsyncRetrying:
    """Asks again while the server is unreachable: jittered pauses, at most 10 s; for ever with ``None``."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(UnreachableError),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10.0),
        stop=tenacity.stop_never if within_s is None else tenacity.stop_before_delay(within_s),
        reraise=True,
    )


class ControlPlaneClient:
    """One control plane; an async context manager. Each call asks once: retrying is the caller's affair.

    Args:
        server: its address.
        token: bearer token, if it wants one.
        transport: another way to reach it, for tests.
    """

    def __init__(
        self, server: str, token: str | None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        loopback = urlsplit(server).hostname in ("127.0.0.1", "::1", "localhost")
        self._http = httpx.AsyncClient(
            base_url=f"{server.rstrip('/')}/api/v1",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=TIMEOUT_S,
            transport=transport,
            trust_env=not loopback,  # a proxy is never the way to this machine
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def register(self, worker: WorkerDescription) -> None:
        """Introduce the worker."""
        await self._post("/workers", worker)

    async def claim(self, request: ClaimRequest) -> Assignment | None:
        """Long poll for the next attempt; ``None`` if there was none in the time."""
        answer = await self._post("/leases/claim", request, timeout_s=request.wait_s + LONG_POLL_SLACK_S)
        return None if answer.status_code == NO_CONTENT else _parse(Assignment, answer)

    async def heartbeat(self, lease_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Say that the attempt goes on; hear whether it should."""
        return _parse(HeartbeatAnswer, await self._post(f"/leases/{_part(lease_id)}/heartbeat", heartbeat))

    async def report(self, lease_id: str, report: Report) -> None:
        """Hand in the outcome; saying it again is harmless."""
        await self._post(f"/leases/{_part(lease_id)}/report", report)

    async def release(self, lease_id: str, release: Release) -> None:
        """Give the attempt back unfinished."""
        await self._post(f"/leases/{_part(lease_id)}/release", release)

    async def _post(self, path: str, message: BaseModel, *, timeout_s: float = TIMEOUT_S) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        content = message.model_dump_json().encode()
        try:
            answer = await self._http.post(path, content=content, headers=headers, timeout=timeout_s)
        except httpx.TransportError as error:
            raise UnreachableError(f"{self._http.base_url.host}: {type(error).__name__}: {error}") from error
        _raise_for(answer)
        return answer


def _part(text: str) -> str:
    return quote(text, safe="")


def _raise_for(answer: httpx.Response) -> None:
    status = answer.status_code
    if status < 300:
        return
    message = _problem(answer)
    if status >= SERVER_ERROR or status in (TOO_MANY, REQUEST_TIMEOUT):
        raise UnreachableError(message)
    if status == CONFLICT:
        raise StaleLeaseError(message)
    raise RefusedError(status, message)


def _problem(answer: httpx.Response) -> str:
    """One line from a problem+json body, or the status alone."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    parts = [body.get(key) for key in ("title", "detail", "fix")] if isinstance(body, dict) else []
    return "; ".join(str(part) for part in parts if part) or f"HTTP {answer.status_code}"


def _parse(kind: type[M], answer: httpx.Response) -> M:
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        # Another server listens there, or one of a version that says more than we understand.
        raise RefusedError(
            answer.status_code, f"no {kind.__name__} in the answer: {error.errors()[0]}"
        ) from error

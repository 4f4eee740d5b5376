"""A typed client of the control plane's REST interface, as the command line uses it.

    ClientError
    ├── ServerUnreachableError   no answer: the address is wrong, or nothing runs there
    └── ProblemError             the server's problem+json, with its status, field, value and fix

What a command needs of an answer is declared here; the rest is kept and printed with ``--json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field

from tuner.protocol import ArgValue, Failure
from tuner.spec import StudySpec

__all__ = [
    "ClientError",
    "ControlPlaneClient",
    "NewToken",
    "ProblemError",
    "ServerUnreachableError",
    "Study",
    "Token",
    "Trial",
    "Worker",
]

PAGE_SIZE = 200


class ClientError(Exception):
    """Base of what the client raises; the text is one line for people."""


class ServerUnreachableError(ClientError):
    """The server did not answer.

    Attributes:
        url: the address that was tried.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"--server: no control plane answers at {url} ({reason}); "
            "start `nightshift serve`, or mend the address"
        )
        self.url = url


class ProblemError(ClientError):
    """The server refused a request.

    Attributes:
        status: HTTP status.
        title: what kind of problem it is.
        detail: what is wrong here.
        field: dotted path of the value that is wrong, where there is one.
        value: that value.
        fix: what to do instead.
    """

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.title = str(body.get("title") or f"HTTP {status}")
        self.detail = str(body.get("detail") or self.title)
        self.field: str | None = body.get("field")
        self.value: object = body.get("value")
        self.fix: str | None = body.get("fix")
        super().__init__(self._line())

    def _line(self) -> str:
        named = self.field is None or self.field in self.detail
        text = self.detail if named else f"{self.field}: {self.detail} (got {self.value!r})"
        return text if not self.fix or self.fix in text else f"{text}; {self.fix}"


# ---------------------------------------------------------------- what the server answers


class Answer(BaseModel):
    """Base of all answers: immutable, and fields that are not declared are kept as they came."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Study(Answer):
    """A study as the server shows it.

    Attributes:
        reason: why it is in its state, where that needs saying; for a failed study what to do.
        counts: number of trials by state.
    """

    name: str
    state: str
    reason: str | None = None
    spec: StudySpec
    counts: dict[str, int] = Field(default_factory=dict)
    created_at: str | float | None = None
    started_at: str | float | None = None
    ended_at: str | float | None = None


class Trial(Answer):
    """One trial as the server shows it; ``partial`` holds the metrics that heartbeats brought so far."""

    number: int
    state: str
    origin: str | None = None
    args: dict[str, ArgValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    knobs: tuple[str, ...] = ()
    phase: str | None = None
    attempt: int = 1
    worker: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    partial: dict[str, float] = Field(default_factory=dict)
    failure: Failure | None = None
    reason: str | None = None
    started_at: str | float | None = None
    ended_at: str | float | None = None


class Worker(Answer):
    """One worker as the server shows it; ``reason`` says why it was set aside."""

    name: str
    state: str
    reason: str | None = None
    host: str = ""
    gpus: int = 0
    gpu: str | None = None
    vllm_version: str | None = None
    seen_at: str | float | None = None


class Token(Answer):
    """A token without its secret."""

    name: str
    scope: str
    created_at: str | float | None = None
    expires_at: str | float | None = None
    revoked_at: str | float | None = None


class NewToken(Token):
    """A token just made; ``token`` is shown this once."""

    token: str


Answered = TypeVar("Answered", bound=Answer)


class ControlPlaneClient:
    """One connection to a control plane; use it as a context manager.

    Args:
        url: the server's address, e.g. ``http://127.0.0.1:8765``.
        token: sent as a bearer token.
        timeout_s: bound on each request.
        transport: replaces the network in tests.

    Raises:
        ServerUnreachableError: the address is none, here and in every method.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.token = token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(
                base_url=f"{self.url}/api/v1", headers=headers, timeout=timeout_s, transport=transport
            )
        except httpx.InvalidURL as error:
            raise ServerUnreachableError(self.url, str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    # ------------------------------------------------------------ studies

    def create_study(self, spec: StudySpec, *, start: bool, idempotency_key: str | None = None) -> Study:
        """Create a study; ``start`` lets workers claim its trials at once.

        Raises:
            ProblemError: the spec is refused, or another study has the name.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        body = {"spec": spec.model_dump(mode="json"), "start": start}
        return Study.model_validate(self._call("POST", "/studies", json=body, headers=headers))

    def validate_study(self, spec: StudySpec) -> dict[str, Any]:
        """What the server makes of a spec: the size of its space and the knobs."""
        answer: dict[str, Any] = self._call("POST", "/studies/validate", json=spec.model_dump(mode="json"))
        return answer

    def study(self, name: str) -> Study:
        """One study by its name."""
        return Study.model_validate(self._call("GET", f"/studies/{quote(name, safe='')}"))

    def studies(self) -> list[Study]:
        """All studies, newest first as the server orders them."""
        return list(self._pages("/studies", Study))

    def move_study(self, name: str, move: str) -> Study:
        """``start``, ``pause``, ``resume`` or ``cancel`` a study."""
        return Study.model_validate(self._call("POST", f"/studies/{quote(name, safe='')}/{move}"))

    def trials(self, name: str) -> list[Trial]:
        """All trials of a study by number."""
        return list(self._pages(f"/studies/{quote(name, safe='')}/trials", Trial))

    def recommendation(self, name: str) -> dict[str, Any]:
        """The recommendation of a study, as :class:`tuner.recommend.Recommendation` in JSON."""
        answer: dict[str, Any] = self._call("GET", f"/studies/{quote(name, safe='')}/recommendation")
        return answer

    # ------------------------------------------------------------ workers and tokens

    def workers(self) -> list[Worker]:
        """All workers that ever registered."""
        return list(self._pages("/workers", Worker))

    def create_token(self, name: str, scope: str, ttl_s: float | None) -> NewToken:
        """Make a token; ``ttl_s`` of ``None`` never expires."""
        body = {"name": name, "scope": scope, "ttl_s": ttl_s}
        return NewToken.model_validate(self._call("POST", "/tokens", json=body))

    def tokens(self) -> list[Token]:
        """All tokens, without their secrets."""
        return list(self._pages("/tokens", Token))

    def revoke_token(self, name: str) -> None:
        """Make a token useless from now on."""
        self._call("DELETE", f"/tokens/{quote(name, safe='')}")

    # ------------------------------------------------------------ plumbing

    def _pages(self, path: str, kind: type[Answered]) -> Iterator[Answered]:
        cursor: str | None = None
        while True:
            params = {"limit": PAGE_SIZE, **({"cursor": cursor} if cursor else {})}
            page = self._call("GET", path, params=params)
            yield from (kind.model_validate(item) for item in page["items"])
            cursor = page.get("next")
            if not cursor:
                return

    def _call(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise ServerUnreachableError(self.url, str(error) or type(error).__name__) from error
        if response.is_success:
            return response.json() if response.content else None
        raise ProblemError(response.status_code, _problem_body(response))


def _problem_body(response: httpx.Response) -> dict[str, Any]:
    """The problem document, or what can be said of an answer that is none, e.g. a proxy's."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    return {"detail": f"{response.request.url} answered {response.status_code} {response.reason_phrase}"}

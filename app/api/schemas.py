"""What the API answers. Times are ISO 8601 in UTC; everything else is as in the services."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from app.db.events import EventRow
from app.db.leases import LeaseRow
from app.db.studies import StudyRow
from app.db.tokens import TokenRow
from app.db.workers import WorkerRow
from app.services.trials import TrialView
from tuner.protocol import ArgValue, Failure, Measurement
from tuner.spec import StudySpec

__all__ = [
    "Event",
    "Lease",
    "NewStudy",
    "NewTokenRequest",
    "Page",
    "SpaceSummary",
    "Study",
    "Token",
    "TokenWithSecret",
    "Trial",
    "Worker",
]

Item = TypeVar("Item")


class View(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True)


class Page(View, Generic[Item]):
    """Part of a list; ``next`` is the cursor of the next part, ``null`` at the end."""

    items: list[Item]
    next: str | None = None


class NewStudy(BaseModel):
    """A study to create; ``start`` lets workers claim its trials at once."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any]
    start: bool = False


class SpaceSummary(View):
    """What a spec's space comes to; ``size`` is ``null`` where a knob is continuous."""

    name: str
    knobs: dict[str, Any]
    size: int | None
    refused: int | None


class Study(View):
    """A study."""

    name: str
    state: str
    reason: str | None
    spec: StudySpec
    counts: dict[str, int]
    created_at: str
    started_at: str | None
    deadline_at: str | None
    ended_at: str | None

    @classmethod
    def of(cls, row: StudyRow, counts: dict[str, int]) -> Study:
        """As the API shows it."""
        return cls(
            name=row.name,
            state=row.state.value,
            reason=row.reason,
            spec=row.spec,
            counts=counts,
            created_at=_iso(row.created_at),
            started_at=_iso_or_none(row.started_at),
            deadline_at=_iso_or_none(row.deadline_at),
            ended_at=_iso_or_none(row.ended_at),
        )


class Trial(View):
    """A trial; ``metrics`` is empty where nothing was measured."""

    study: str
    number: int
    state: str
    origin: str
    args: dict[str, ArgValue]
    env: dict[str, str]
    knobs: list[str]
    attempt: int
    worker: str | None
    phase: str | None
    elapsed_s: float | None
    partial: dict[str, float]
    metrics: dict[str, float]
    measurement: Measurement | None
    failure: Failure | None
    reason: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None

    @classmethod
    def of(cls, view: TrialView) -> Trial:
        """As the API shows it."""
        return cls(
            study=view.study,
            number=view.number,
            state=view.state.value,
            origin=view.origin,
            args=dict(view.args),
            env=dict(view.env),
            knobs=list(view.knobs),
            attempt=view.attempt,
            worker=view.worker,
            phase=view.phase,
            elapsed_s=view.elapsed_s,
            partial=dict(view.partial),
            metrics=dict(view.metrics),
            measurement=view.measurement,
            failure=view.failure,
            reason=view.reason,
            created_at=_iso(view.created_at),
            started_at=_iso_or_none(view.started_at),
            ended_at=_iso_or_none(view.ended_at),
        )


class Lease(View):
    """A lease, without its token."""

    id: str
    trial_number: int | None
    attempt: int
    worker: str
    state: str
    phase: str | None
    reason: str | None
    created_at: str
    expires_at: str
    ended_at: str | None

    @classmethod
    def of(cls, row: LeaseRow) -> Lease:
        """As the API shows it."""
        return cls(
            id=row.id,
            trial_number=row.trial_number,
            attempt=row.attempt,
            worker=row.worker,
            state=row.state.value,
            phase=row.phase,
            reason=row.reason,
            created_at=_iso(row.created_at),
            expires_at=_iso(row.expires_at),
            ended_at=_iso_or_none(row.ended_at),
        )


class Worker(View):
    """A worker; ``reason`` says why it is set aside."""

    name: str
    state: str
    reason: str | None
    host: str
    pid: int | None
    gpus: int
    gpu: str | None
    gpu_memory_bytes: int | None
    vllm_version: str | None
    nightshift_version: str
    labels: dict[str, str]
    registered_at: str
    seen_at: str

    @classmethod
    def of(cls, row: WorkerRow) -> Worker:
        """As the API shows it."""
        known = row.description.model_dump(exclude={"name", "protocol_version"})
        return cls(
            name=row.name,
            state=row.state,
            reason=row.reason,
            registered_at=_iso(row.registered_at),
            seen_at=_iso(row.seen_at),
            **known,
        )


class NewTokenRequest(BaseModel):
    """A token to make; without ``ttl_s`` it never expires."""

    model_config = ConfigDict(extra="forbid")

    name: str
    scope: str
    ttl_s: Annotated[float | None, Field(allow_inf_nan=False)] = None


class Token(View):
    """A token, without its secret."""

    name: str
    scope: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None

    @classmethod
    def of(cls, row: TokenRow) -> Token:
        """As the API shows it."""
        return cls(**_token_fields(row))


class TokenWithSecret(Token):
    """A token just made; its secret is shown this once."""

    token: str

    @classmethod
    def made(cls, row: TokenRow, token: str) -> TokenWithSecret:
        """As the API shows it once."""
        return cls(**_token_fields(row), token=token)


def _token_fields(row: TokenRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "scope": row.scope,
        "created_at": _iso(row.created_at),
        "expires_at": _iso_or_none(row.expires_at),
        "revoked_at": _iso_or_none(row.revoked_at),
    }


class Event(View):
    """Something that happened; ``id`` is where a listener goes on from."""

    id: int
    study: str | None
    kind: str
    data: dict[str, Any]
    at: str

    @classmethod
    def of(cls, row: EventRow) -> Event:
        """As the API shows it."""
        return cls(id=row.id, study=row.study, kind=row.kind, data=dict(row.data), at=_iso(row.at))


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _iso_or_none(at: float | None) -> str | None:
    return None if at is None else _iso(at)

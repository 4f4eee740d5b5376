"""``/api/v1/studies`` and the trials below it."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, status

from app.api.auth import Plane, needs
from app.api.paging import Cursor, Limit, decode, decode_newest_first, encode
from app.api.requests import CheckedRoute
from app.api.schemas import NewStudy, Page, SpaceSummary, Study, Trial
from app.db.studies import StudyRow
from app.lifecycle.study import StudyState
from app.services import studies, trials
from app.services.plane import ControlPlane
from app.services.tokens import Scope
from tuner.constraints import violations
from tuner.recommend import Recommendation
from tuner.space import build_space
from tuner.spec import parse_study

__all__ = ["router"]

router = APIRouter(prefix="/studies", tags=["studies"], route_class=CheckedRoute)

Viewer = Depends(needs(Scope.VIEWER))
Operator = Depends(needs(Scope.OPERATOR))
Name = Annotated[str, Path(max_length=100)]

MAX_LISTED = 20_000
MAX_NUMBER = 2**31 - 1
"""Greatest trial number that the database's column holds."""


@router.post("", status_code=status.HTTP_201_CREATED, dependencies=[Operator])
def create(
    plane: Plane,
    body: NewStudy,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Study:
    """Create a study. The same request with the same ``Idempotency-Key`` gives the same study again."""
    row = studies.create(plane, parse_study(body.spec), start=body.start, idempotency_key=idempotency_key)
    return shown(plane, row)


@router.post("/validate", dependencies=[Viewer])
def validate(body: Annotated[dict[str, Any], Body()]) -> SpaceSummary:
    """Check a spec without creating anything: its knobs, the size of its space, how much of it is refused."""
    spec = parse_study(body)
    space = build_space(spec)
    size = space.size()
    refused = None
    if size is not None and size <= MAX_LISTED:
        refused = sum(1 for point in space.points() if violations(space.split(point)[0]))
    knobs = {d.name: list(d.grid) if d.grid is not None else repr(d.distribution) for d in space.domains}
    return SpaceSummary(name=spec.name, knobs=knobs, size=size, refused=refused)


@router.get("", dependencies=[Viewer])
def list_studies(
    plane: Plane, state: StudyState | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[Study]:
    """Studies, newest first."""
    rows = studies.page(plane, state=state, before=decode_newest_first(cursor), limit=limit + 1)
    more = rows[limit - 1] if len(rows) > limit else None
    items = [shown(plane, row) for row in itertools.islice(rows, limit)]
    return Page(items=items, next=encode(more.created_at, more.id) if more else None)


@router.get("/{name}", dependencies=[Viewer])
def show(plane: Plane, name: Name) -> Study:
    """One study."""
    return shown(plane, studies.get(plane, name))


@router.post("/{name}/start", dependencies=[Operator])
def start(plane: Plane, name: Name) -> Study:
    """Let workers claim its trials."""
    return shown(plane, studies.start(plane, name))


@router.post("/{name}/pause", dependencies=[Operator])
def pause(plane: Plane, name: Name) -> Study:
    """Grant no new trial; those that run go on."""
    return shown(plane, studies.pause(plane, name))


@router.post("/{name}/resume", dependencies=[Operator])
def resume(plane: Plane, name: Name) -> Study:
    """Go on after a pause."""
    return shown(plane, studies.resume(plane, name))


@router.post("/{name}/cancel", dependencies=[Operator])
def cancel(plane: Plane, name: Name) -> Study:
    """End it; workers stop at their next heartbeat."""
    return shown(plane, studies.cancel(plane, name))


@router.get("/{name}/recommendation", dependencies=[Viewer])
def recommendation(plane: Plane, name: Name) -> Recommendation:
    """The answer of a completed study, else what its trials so far recommend."""
    return studies.recommendation(plane, name)


@router.get("/{name}/trials", dependencies=[Viewer])
def list_trials(plane: Plane, name: Name, limit: Limit = 100, cursor: Cursor = None) -> Page[Trial]:
    """Its trials by number."""
    after = min(decode(cursor, int)[0], MAX_NUMBER) if cursor else -1
    views = trials.page(plane, name, after=after, limit=limit + 1)
    items = [Trial.of(view) for view in itertools.islice(views, limit)]
    return Page(items=items, next=encode(items[-1].number) if len(views) > limit else None)


@router.get("/{name}/trials/{number}", dependencies=[Viewer])
def show_trial(plane: Plane, name: Name, number: Annotated[int, Path(ge=0, le=MAX_NUMBER)]) -> Trial:
    """One trial."""
    return Trial.of(trials.get(plane, name, number))


def shown(plane: ControlPlane, row: StudyRow) -> Study:
    """A study with the number of its trials by state."""
    return Study.of(row, studies.counts(plane, row))

"""A control plane in memory that speaks the lease protocol, for tests of workers alone."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tuner.protocol import (
    Action,
    Assignment,
    ClaimRequest,
    Heartbeat,
    HeartbeatAnswer,
    Outcome,
    Phase,
    Release,
    Report,
    WorkerDescription,
)


@dataclass
class Granted:
    """One lease as the server sees it."""

    assignment: Assignment
    heartbeats: list[Heartbeat] = field(default_factory=list)
    outcome: asyncio.Future[Outcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    released: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    expired: bool = False
    stop: str | None = None

    def phases(self) -> list[Phase]:
        """The phases seen, each once, in order."""
        return list(dict.fromkeys(beat.phase for beat in self.heartbeats))


class LeaseServer:
    """Grants what is offered, one at a time; an async context manager that listens on a free port.

    Attributes:
        silent: answers 503 to everything.
        refuses: kind of outcome that it does not take.
        token: bearer token it wants, if any.
    """

    def __init__(self, *, ttl_s: float = 6.0, token: str | None = None) -> None:
        self.ttl_s = ttl_s
        self.token = token
        self.silent = False
        self.refuses: str | None = None
        self.workers: list[WorkerDescription] = []
        self.granted: list[Granted] = []
        self.url = ""
        self._offers: asyncio.Queue[Assignment] = asyncio.Queue()
        self._beats = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard], client_max_size=16 * 1024**2)
        app.router.add_post("/api/v1/workers", self._register)
        app.router.add_post("/api/v1/leases/claim", self._claim)
        app.router.add_post("/api/v1/leases/{id}/heartbeat", self._heartbeat)
        app.router.add_post("/api/v1/leases/{id}/report", self._report)
        app.router.add_post("/api/v1/leases/{id}/release", self._release)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def offer(self, assignment: Assignment) -> None:
        """Grant it to the next claim, with a token and this server's time to live."""
        token = secrets.token_urlsafe()
        self._offers.put_nowait(assignment.model_copy(update={"token": token, "ttl_s": self.ttl_s}))

    async def worker(self) -> WorkerDescription:
        """The worker that introduced itself last, once one has."""
        async with self._beats:
            await self._beats.wait_for(lambda: len(self.workers) > 0)
        return self.workers[-1]

    async def lease(self, number: int = 0) -> Granted:
        """The lease that was granted as the so-many-th, once it is."""
        async with self._beats:
            await self._beats.wait_for(lambda: len(self.granted) > number)
        return self.granted[number]

    async def phase(self, phase: Phase, number: int = 0) -> Granted:
        """The lease, once a heartbeat of that phase has come."""
        lease = await self.lease(number)
        async with self._beats:
            await self._beats.wait_for(lambda: phase in lease.phases())
        return lease

    async def beats(self, count: int, number: int = 0) -> Granted:
        """The lease, once so many more heartbeats have come."""
        lease = await self.lease(number)
        until = len(lease.heartbeats) + count
        async with self._beats:
            await self._beats.wait_for(lambda: len(lease.heartbeats) >= until)
        return lease

    # ------------------------------------------------------------ routes

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.silent:
            return web.Response(status=503)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            body = {"title": "The token is not known", "status": 401, "fix": "make a new one"}
            return web.json_response(body, status=401, content_type="application/problem+json")
        answer: web.StreamResponse = await handler(request)
        async with self._beats:
            self._beats.notify_all()
        return answer

    async def _register(self, request: web.Request) -> web.Response:
        self.workers.append(WorkerDescription.model_validate_json(await request.read()))
        return web.json_response({}, status=201)

    async def _claim(self, request: web.Request) -> web.Response:
        claim = ClaimRequest.model_validate_json(await request.read())
        try:
            assignment = await asyncio.wait_for(self._offers.get(), claim.wait_s)
        except TimeoutError:
            return web.Response(status=204)
        self.granted.append(Granted(assignment))
        return web.json_response(text=assignment.model_dump_json())

    def _held(self, request: web.Request, token: str) -> Granted:
        lease = next(each for each in self.granted if each.assignment.lease_id == request.match_info["id"])
        if token != lease.assignment.token or lease.expired or lease.released.done():
            raise web.HTTPConflict(text="{}", content_type="application/problem+json")
        return lease

    async def _heartbeat(self, request: web.Request) -> web.Response:
        beat = Heartbeat.model_validate_json(await request.read())
        lease = self._held(request, beat.token)
        lease.heartbeats.append(beat)
        action = Action.CONTINUE if lease.stop is None else Action.STOP
        answer = HeartbeatAnswer(action=action, reason=lease.stop or "", ttl_s=self.ttl_s)
        return web.json_response(text=answer.model_dump_json())

    async def _report(self, request: web.Request) -> web.Response:
        report = Report.model_validate_json(await request.read())
        lease = self._held(request, report.token)
        if report.outcome.kind == self.refuses:
            return web.json_response({"detail": "the report does not please"}, status=422)
        if not lease.outcome.done():
            lease.outcome.set_result(report.outcome)
        return web.json_response({})

    async def _release(self, request: web.Request) -> web.Response:
        release = Release.model_validate_json(await request.read())
        self._held(request, release.token).released.set_result(release.reason)
        return web.json_response({})

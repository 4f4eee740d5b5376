"""The lease protocol over HTTP: what each answer means."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tuner.protocol import ClaimRequest, Release, WorkerDescription
from workers.client import (
    ControlPlaneClient,
    RefusedError,
    StaleLeaseError,
    UnreachableError,
    patiently,
)

Answer = Callable[[httpx.Request], httpx.Response]
CLAIM = ClaimRequest(worker=WorkerDescription(name="w"), wait_s=0.0)
RELEASE = Release(token="t", reason="r")


def client(answer: Answer, token: str | None = None) -> ControlPlaneClient:
    return ControlPlaneClient("http://127.0.0.1:8765/", token, transport=httpx.MockTransport(answer))


def status(code: int, **problem: object) -> Answer:
    return lambda _: httpx.Response(code, json=problem)


async def test_no_content_is_no_assignment() -> None:
    async with client(lambda _: httpx.Response(204)) as plane:
        assert await plane.claim(CLAIM) is None


async def test_requests_go_where_the_api_is_and_carry_the_token() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    async with client(answer, token="secret") as plane:
        await plane.release("a/b", RELEASE)
    assert seen[0].url.raw_path == b"/api/v1/leases/a%2Fb/release"
    assert seen[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (409, StaleLeaseError),
        (500, UnreachableError),
        (503, UnreachableError),
        (429, UnreachableError),
        (401, RefusedError),
        (422, RefusedError),
    ],
)
async def test_each_status_has_its_meaning(code: int, error: type[Exception]) -> None:
    async with client(status(code, title="No", detail="because", fix="do this")) as plane:
        with pytest.raises(error, match="No; because; do this"):
            await plane.release("lease", RELEASE)


async def test_only_who_asks_is_a_matter_of_the_token() -> None:
    for code, unauthorised in ((401, True), (403, True), (404, False)):
        async with client(status(code)) as plane:
            with pytest.raises(RefusedError) as caught:
                await plane.claim(CLAIM)
        assert caught.value.unauthorised is unauthorised


async def test_an_answer_that_is_no_assignment_is_refused() -> None:
    async with client(status(200, hello="world")) as plane:
        with pytest.raises(RefusedError, match="no Assignment"):
            await plane.claim(CLAIM)


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with ControlPlaneClient("http://127.0.0.1:9", None) as plane:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
            await plane.claim(CLAIM)


async def test_patience_asks_again_until_there_is_an_answer() -> None:
    answers = [httpx.Response(503), httpx.Response(502), httpx.Response(204)]
    async with client(lambda _: answers.pop(0)) as plane:
        assert await patiently(None)(plane.claim, CLAIM) is None
    assert answers == []


async def test_patience_ends() -> None:
    async with client(status(503)) as plane:
        with pytest.raises(UnreachableError):
            await patiently(0.0)(plane.claim, CLAIM)

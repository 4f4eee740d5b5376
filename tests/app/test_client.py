"""What the client makes of a server's answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import httpx
import pytest

from app.client import ControlPlaneClient, ProblemError, ServerUnreachableError

Handler = Callable[[httpx.Request], httpx.Response]


def client_of(handler: Handler, token: str | None = None) -> ControlPlaneClient:
    return ControlPlaneClient("http://server:8765/", token, transport=httpx.MockTransport(handler))


class TestControlPlaneClient:
    def test_follows_the_pages_of_a_listing(self) -> None:
        pages = {
            None: {"items": [{"name": "a", "state": "idle"}], "next": "one"},
            "one": {"items": [{"name": "b", "state": "idle"}], "next": None},
        }
        client = client_of(lambda request: httpx.Response(200, json=pages[request.url.params.get("cursor")]))
        assert [worker.name for worker in client.workers()] == ["a", "b"]

    def test_sends_its_token(self) -> None:
        seen: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append(request.headers["authorization"])
            return httpx.Response(200, json={"items": []})

        client_of(answer, "secret").studies()
        assert seen == ["Bearer secret"]

    def test_fields_that_no_command_needs_are_kept(self) -> None:
        worker = {"name": "a", "state": "idle", "mood": "fine"}
        client = client_of(lambda _: httpx.Response(200, json={"items": [worker]}))
        assert client.workers()[0].model_dump()["mood"] == "fine"

    def test_names_are_quoted(self) -> None:
        seen: list[str] = []

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append(request.url.raw_path.decode())
            return httpx.Response(200, json={"items": []})

        client_of(answer).trials("a/../b")
        assert seen[0].startswith("/api/v1/studies/a%2F..%2Fb/trials")

    def test_lifetime_of_a_token_is_sent_in_seconds(self) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            assert json.loads(request.content)["ttl_s"] == 60.0
            return httpx.Response(201, json={"name": "n", "scope": "worker", "token": "t"})

        assert client_of(answer).create_token("n", "worker", 60.0).token == "t"


class TestProblem:
    def test_line_names_field_value_and_fix(self) -> None:
        body = {
            "title": "Bad value",
            "detail": "is unknown",
            "field": "space.knobs.x",
            "value": 1,
            "fix": "write y",
        }
        with pytest.raises(ProblemError) as caught:
            client_of(lambda _: httpx.Response(422, json=body)).studies()
        assert str(caught.value) == "space.knobs.x: is unknown (got 1); write y"
        assert caught.value.status == 422

    def test_line_does_not_repeat_what_the_detail_says(self) -> None:
        body = {
            "detail": "space.knobs.x: is unknown (got 1); write y",
            "field": "space.knobs.x",
            "fix": "write y",
        }
        with pytest.raises(ProblemError, match=r"^space\.knobs\.x: is unknown \(got 1\); write y$"):
            client_of(lambda _: httpx.Response(422, json=body)).studies()

    def test_answer_that_is_no_problem_document_is_told_as_it_is(self) -> None:
        with pytest.raises(ProblemError, match="answered 502 Bad Gateway"):
            client_of(lambda _: httpx.Response(502, text="<html>")).studies()


class TestServerUnreachable:
    def test_nothing_listens(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            with pytest.raises(ServerUnreachableError, match="no control plane answers at"):
                ControlPlaneClient(url).studies()

    @pytest.mark.parametrize("url", ["ftp://server", "server", "http://", "http://server:port"])
    def test_address_that_is_none(self, url: str) -> None:
        with (
            pytest.raises(ServerUnreachableError, match="mend the address"),
            ControlPlaneClient(url) as client,
        ):
            client.studies()

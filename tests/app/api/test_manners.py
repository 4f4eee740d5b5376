"""How the server answers what is wrong, who may come in, and how it starts and stops."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine, update

from app.db.tables import tokens as token_table
from app.main import ServerThread, build, listen, serve
from app.neighbours import is_loopback
from app.services import tokens
from app.services.plane import ControlPlane
from app.settings import Settings
from tests.app.api.test_leases import claim
from tests.app.api.test_studies import body, create
from tuner.errors import FieldError


class TestProblems:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/nothing", 404),
            ("PUT", "/studies", 405),
            ("DELETE", "/healthz", 405),
            ("GET", "/leases/claim", 405),
        ],
    )
    def test_unknown_path_and_wrong_method(
        self, lite: httpx.Client, method: str, path: str, status: int
    ) -> None:
        answer = lite.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        if status == 405:
            assert answer.headers["allow"]

    @pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xfe"])
    def test_body_that_is_no_json(self, lite: httpx.Client, content: bytes) -> None:
        answer = lite.post("/studies", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        assert answer.json()["detail"]

    def test_database_that_is_gone_is_unavailable(self, postgres_url: str, tmp_path: Path) -> None:
        settings = Settings(database_url=SecretStr(postgres_url), home=tmp_path)
        with ServerThread(settings) as server, httpx.Client(base_url=f"{server.url}/api/v1") as http:
            assert http.get("/readyz").status_code == 200
            server._plane.database.engine.dispose()
            object.__setattr__(server._plane.database, "engine", unreachable_engine())
            answer = http.get("/readyz")
            assert answer.status_code == 503
            assert answer.json()["field"] == "NIGHTSHIFT_DATABASE_URL"
            assert http.get("/healthz").status_code == 200


def unreachable_engine() -> Any:
    """An engine to a port that nobody listens on."""
    return create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")


class TestTokens:
    def bearer(self, plane: ControlPlane, scope: str, **more: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {tokens.create(plane, f'a-{scope}', scope, **more).token}"}

    def test_server_is_open_until_there_is_one(self, lite: httpx.Client) -> None:
        assert lite.get("/studies").status_code == 200
        made = lite.post("/tokens", json={"name": "me", "scope": "admin"})
        assert made.status_code == 201
        answer = lite.get("/studies")
        assert answer.status_code == 401
        assert "nightshift token create" in answer.json()["fix"]
        assert (
            lite.get("/studies", headers={"Authorization": f"Bearer {made.json()['token']}"}).status_code
            == 200
        )

    def test_server_does_not_open_again_when_the_last_token_is_revoked(self, lite: httpx.Client) -> None:
        token = lite.post("/tokens", json={"name": "me", "scope": "admin"}).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        assert lite.delete("/tokens/me", headers=headers).status_code == 204
        assert lite.get("/studies").status_code == 401
        assert lite.get("/studies", headers=headers).status_code == 401

    def test_scopes(self, lite: httpx.Client, plane_of_lite: ControlPlane) -> None:
        headers = {
            scope: self.bearer(plane_of_lite, scope) for scope in ("viewer", "operator", "worker", "admin")
        }

        def statuses(method: str, path: str, json: object = None) -> list[int]:
            return [
                lite.request(method, path, json=json, headers=given).status_code for given in headers.values()
            ]

        assert statuses("GET", "/studies") == [200, 200, 403, 200]
        assert statuses("POST", "/leases/claim", {"worker": {"name": "w"}, "wait_s": 0}) == [
            403,
            403,
            204,
            204,
        ]
        assert statuses("GET", "/tokens") == [403, 403, 403, 200]
        assert statuses("POST", "/studies", body("one"))[:3] == [403, 201, 403]

    def test_expired_and_revoked_tokens_are_named(
        self, lite: httpx.Client, plane_of_lite: ControlPlane
    ) -> None:
        old, admin = self.bearer(plane_of_lite, "viewer", ttl_s=60.0), self.bearer(plane_of_lite, "admin")
        with plane_of_lite.database.write() as connection:
            connection.execute(
                update(token_table).where(token_table.c.name == "a-viewer").values(expires_at=1.0)
            )
        answer = lite.get("/studies", headers=old)
        assert answer.status_code == 401
        assert "token a-viewer has expired" in answer.json()["detail"]
        assert answer.headers["www-authenticate"] == "Bearer"
        assert lite.delete("/tokens/a-viewer", headers=admin).status_code == 204
        assert "was revoked" in lite.get("/studies", headers=old).json()["detail"]

    def test_secret_is_shown_once(self, lite: httpx.Client, plane_of_lite: ControlPlane) -> None:
        admin = self.bearer(plane_of_lite, "admin")
        made = lite.post("/tokens", json={"name": "w", "scope": "worker", "ttl_s": 60}, headers=admin).json()
        listed = lite.get("/tokens", headers=admin).text
        assert made["token"] not in listed
        assert '"w"' in listed

    def test_dashboard_asks_for_one_too(self, lite: httpx.Client, plane_of_lite: ControlPlane) -> None:
        token = tokens.create(plane_of_lite, "me", "viewer").token
        root = str(lite.base_url).removesuffix("/api/v1/")
        refused = httpx.get(f"{root}/dashboard/")
        assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        assert httpx.get(f"{root}/dashboard/", auth=("anyone", token)).status_code == 200


class TestDashboard:
    def test_root_leads_there(self, lite: httpx.Client) -> None:
        answer = httpx.get(str(lite.base_url).removesuffix("/api/v1/") + "/")
        assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard/")

    def test_shows_our_studies(self, lite: httpx.Client) -> None:
        create(lite)
        summaries = httpx.get(str(lite.base_url).removesuffix("/api/v1/") + "/api/studies").json()[
            "study_summaries"
        ]
        assert [summary["study_name"] for summary in summaries] == ["study"]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/api/studies"),
            ("DELETE", "/api/studies/1"),
            ("POST", "/api/studies/1/rename"),
            ("POST", "/api/trials/1/tell"),
        ],
    )
    def test_may_not_change_what_our_record_holds(self, lite: httpx.Client, method: str, path: str) -> None:
        answer = httpx.request(method, str(lite.base_url).removesuffix("/api/v1/") + path)
        assert answer.status_code == 403

    def test_client_without_accept_encoding_gets_its_files(self, lite: httpx.Client) -> None:
        address = (lite.base_url.host, lite.base_url.port or 0)
        with socket.create_connection(address, timeout=10) as raw:
            raw.sendall(b"GET /static/bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert raw.recv(64).startswith(b"HTTP/1.1 200")


class TestEvents:
    def read(self, lite: httpx.Client, count: int, **more: Any) -> list[str]:
        ids = []
        with lite.stream("GET", "/events", **more) as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    ids.append(line.removeprefix("event: "))
                if len(ids) == count:
                    return ids
        raise AssertionError("the stream ended")

    def test_tell_what_happened(self, lite: httpx.Client) -> None:
        create(lite, start=True)
        claim(lite)
        kinds = self.read(lite, 5, params={"study": "study"})
        assert kinds == ["study.created", "study.running", "lease.reserved", "trial.created", "lease.granted"]

    def test_go_on_from_the_last_one_seen(self, lite: httpx.Client) -> None:
        create(lite, start=True)
        assert self.read(lite, 1, headers={"Last-Event-ID": "1"}) == ["study.running"]


class TestStart:
    def test_port_in_use_is_named(self, settings_on_sqlite: Settings) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(
                FieldError, match=f"--port: cannot be used: Address already in use \\(got {port}\\)"
            ):
                serve(settings_on_sqlite, host="127.0.0.1", port=port)

    def test_other_machines_need_a_token_first(self, settings_on_sqlite: Settings) -> None:
        with pytest.raises(FieldError, match="nightshift token create"):
            serve(settings_on_sqlite, host="0.0.0.0", port=0)

    def test_address_of_another_machine(self) -> None:
        with pytest.raises(FieldError, match="--host: is no address of this machine"):
            listen("203.0.113.7", 0)

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [
            ("127.0.0.1", True),
            ("localhost", True),
            ("::1", True),
            ("0.0.0.0", False),
            ("::", False),
            ("db", False),
        ],
    )
    def test_loopback(self, host: str, loopback: bool) -> None:
        assert is_loopback(host) is loopback

    def test_stops_while_a_claim_waits(self, settings_on_sqlite: Settings) -> None:
        answers: list[int] = []
        with ServerThread(settings_on_sqlite) as server:
            asked = threading.Event()

            def wait_long() -> None:
                with httpx.Client(base_url=f"{server.url}/api/v1", timeout=60) as http:
                    asked.set()
                    answers.append(claim(http, wait_s=60.0).status_code)

            waiting = threading.Thread(target=wait_long)
            waiting.start()
            assert asked.wait(5)
        waiting.join(timeout=20)
        assert not waiting.is_alive()

    def test_every_operation_is_described(self, settings_on_sqlite: Settings) -> None:
        app, plane = build(settings_on_sqlite)
        document = app.openapi()
        plane.close()
        operations = [
            (path, verb, op) for path, item in document["paths"].items() for verb, op in item.items()
        ]
        assert len(operations) >= 20
        assert [(path, verb) for path, verb, op in operations if not op.get("description")] == []

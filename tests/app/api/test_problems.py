"""How the API answers what is wrong: always with a problem document that names it."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import make_url

from app.api.requests import MAX_BODY_BYTES
from app.main import ServerThread
from app.settings import Settings
from tests.app.api.test_leases import claim
from tests.app.api.test_studies import body, create
from tests.conftest import POSTGRES_URL
from tests.contracts.conftest import failed

JSON = {"Content-Type": "application/json"}
NUL, HALF_A_PAIR = r"\u0000", r"\ud800"


def cursor(*position: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def is_problem(answer: httpx.Response) -> bool:
    return answer.headers["content-type"] == "application/problem+json" and (
        answer.json()["status"] == answer.status_code
    )


def with_labels(spelt: str) -> str:
    """A claim of a worker with these labels, as it is spelt in JSON."""
    return f'{{"worker": {{"name": "w", "labels": {spelt}}}}}'


class TestUnknownPathsAndMethods:
    @pytest.mark.parametrize("path", ["/nothing", "/studies/", "", "/"])
    def test_unknown_path(self, lite: httpx.Client, path: str) -> None:
        answer = httpx.get(str(lite.base_url).rstrip("/") + path)
        assert (answer.status_code, answer.json()["field"]) == (404, "path")
        assert is_problem(answer)

    @pytest.mark.parametrize(
        ("method", "path", "allow"),
        [
            ("PUT", "/studies", "GET, POST"),
            ("HEAD", "/studies", "GET, POST"),
            ("OPTIONS", "/studies", "GET, POST"),
            ("BREW", "/studies/validate", "GET, POST"),
            ("DELETE", "/healthz", "GET"),
            ("GET", "/leases/claim", "POST"),
            ("PATCH", "/studies/any/trials/0", "GET"),
        ],
    )
    def test_wrong_method_hears_the_right_ones(
        self, lite: httpx.Client, method: str, path: str, allow: str
    ) -> None:
        answer = lite.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        assert method == "HEAD" or is_problem(answer)


class TestBodies:
    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "is no JSON"),
            (b"{", "line 1 column 2"),
            (b"\xff\xff\xff", "is no JSON"),
            (b"[" * 100_000, "nested too deeply"),
            (b"9" * 5000, "is no JSON"),
            (b"null", "body: "),
        ],
    )
    def test_what_is_no_json(self, lite: httpx.Client, content: bytes, says: str) -> None:
        answer = lite.post("/studies", content=content, headers=JSON)
        assert (answer.status_code, answer.json()["field"]) == (422, "body")
        assert says in answer.json()["detail"]

    @pytest.mark.parametrize("kind", [{}, {"Content-Type": "text/plain"}])
    def test_what_does_not_say_that_it_is_json(self, lite: httpx.Client, kind: dict[str, str]) -> None:
        answer = lite.post("/studies", content=json.dumps(body()), headers=kind)
        assert answer.status_code == 415
        assert "Content-Type: application/json" in answer.json()["detail"]
        assert is_problem(answer)

    def test_what_is_too_large(self, lite: httpx.Client) -> None:
        answer = lite.post("/studies", content=b" " * (MAX_BODY_BYTES + 1), headers=JSON)
        assert answer.status_code == 413
        assert is_problem(answer)

    def test_field_that_does_not_exist(self, lite: httpx.Client) -> None:
        answer = lite.post("/studies", json={**body(), "colour": "red"})
        assert (answer.status_code, answer.json()["field"], answer.json()["value"]) == (422, "colour", "red")

    @pytest.mark.parametrize(
        ("spelt", "says"),
        [
            ("NaN", "finite"),
            ("-Infinity", "finite"),
            ("1e999", "finite"),
            ("9" * 400, "64 bits"),
            (f'"{NUL}"', "NUL"),
            (f'"{HALF_A_PAIR}"', "surrogate"),
        ],
    )
    def test_value_that_no_database_keeps(self, lite: httpx.Client, spelt: str, says: str) -> None:
        answer = lite.post("/leases/claim", content=with_labels(f'{{"deep": [{spelt}]}}'), headers=JSON)
        assert (answer.status_code, answer.json()["field"]) == (422, "worker.labels.deep.0")
        assert says in answer.json()["detail"]

    def test_name_of_a_field_that_no_database_keeps(self, lite: httpx.Client) -> None:
        answer = lite.post("/leases/claim", content=with_labels(f'{{"{HALF_A_PAIR}": 1}}'), headers=JSON)
        assert (answer.status_code, answer.json()["field"]) == (422, "worker.labels")

    def test_log_with_garbage_is_reported_all_the_same(self, http: httpx.Client) -> None:
        create(http, start=True)
        assignment = claim(http).json()
        outcome = failed(excerpt=("a\0b",)).model_dump(mode="json")
        told = {"token": assignment["token"], "outcome": outcome}
        answer = http.post(f"/leases/{assignment['lease_id']}/report", json=told)
        assert answer.status_code == 204, answer.text
        assert outcome["failure"]["excerpt"] == ["a\N{REPLACEMENT CHARACTER}b"]


HOSTILE: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/studies/%00", {}),
    ("GET", "/studies/%ff", {}),
    ("GET", f"/studies/{'a' * 101}", {}),
    ("POST", "/studies/%00/start", {}),
    ("GET", "/studies/study/trials/99999999999999999999", {}),
    ("GET", "/studies/study/trials/-1", {}),
    ("GET", "/studies/study/trials/1e3", {}),
    ("GET", "/studies/study/trials/7", {}),
    ("GET", f"/studies/study/trials?cursor={cursor(10**30)}", {}),
    ("GET", f"/studies/study/trials?cursor={cursor(*[True])}", {}),
    ("GET", f"/studies?cursor={cursor(1.0, chr(0))}", {}),
    ("GET", f"/studies?cursor={cursor(float('nan'), 'x')}", {}),
    ("GET", f"/leases?cursor={cursor('x', 1.0)}", {}),
    ("GET", f"/workers?cursor={cursor(chr(0))}", {}),
    ("GET", f"/tokens?cursor={cursor(chr(0xD800))}", {}),
    ("GET", "/leases?study=%00", {}),
    ("GET", "/leases?limit=0", {}),
    ("GET", "/leases?live=perhaps", {}),
    ("POST", "/leases/%00/heartbeat", {"json": {"token": "x", "phase": "measuring", "elapsed_s": 1}}),
    ("GET", "/events?after=99999999999999999999", {}),
    ("GET", "/events?after=-1", {}),
    ("GET", "/events", {"headers": {"Last-Event-ID": b"\xb2"}}),
    ("GET", "/events", {"headers": {"Last-Event-ID": "9" * 30}}),
    ("POST", "/studies", {"json": body(), "headers": {"Idempotency-Key": "k" * 201}}),
    ("POST", "/studies", {"json": {"spec": {}}}),
    ("POST", "/studies", {"json": {"spec": None}}),
    ("POST", "/studies/validate", {"json": []}),
    ("POST", "/tokens", {"json": {"name": "../x", "scope": "viewer"}}),
    ("POST", "/tokens", {"json": {"name": "x", "scope": "emperor"}}),
    ("POST", "/tokens", {"json": {"name": "x", "scope": "viewer", "ttl_s": 1e300}}),
    ("POST", "/tokens", {"json": {"name": "x", "scope": "viewer", "ttl_s": 0}}),
    ("DELETE", "/tokens/%00", {}),
    ("DELETE", "/tokens/none", {}),
]


def test_hostile_requests_are_refused_and_named(http: httpx.Client) -> None:
    create(http)
    answers = {f"{method} {path}": http.request(method, path, **more) for method, path, more in HOSTILE}
    assert {
        request: answer.text
        for request, answer in answers.items()
        if answer.status_code not in (404, 409, 422) or not is_problem(answer) or not answer.json()["field"]
    } == {}


def test_cursor_behind_the_last_possible_trial_is_the_end(http: httpx.Client) -> None:
    create(http)
    page = http.get("/studies/study/trials", params={"cursor": cursor(10**12)}).json()
    assert page == {"items": [], "next": None}


def test_database_that_is_gone(postgres_url: str, settings_on_sqlite: Settings) -> None:
    settings = settings_on_sqlite.model_copy(
        update={"database_url": SecretStr(postgres_url), "loop_interval_s": 600.0}
    )
    with ServerThread(settings) as server, httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as http:
        assert http.get("/readyz").json() == {"status": "ready"}
        shut(postgres_url)
        for answer in (http.get("/readyz"), http.get("/studies"), claim(http)):
            assert (answer.status_code, answer.json()["field"]) == (503, "NIGHTSHIFT_DATABASE_URL")
            assert "start the database" in answer.json()["fix"]
        assert http.get("/healthz").json() == {"status": "ok"}


def shut(url: str) -> None:
    """Let nobody connect to a database any more, and end who is connected."""
    name = make_url(url).database or ""
    server = make_url(POSTGRES_URL).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(server, autocommit=True) as connection:
        forbid = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name))
        connection.execute(forbid)
        query = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        connection.execute(query, [name])

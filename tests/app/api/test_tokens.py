"""Who may come in, over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.db.tables import tokens as token_table
from app.services import tokens
from app.services.plane import ControlPlane
from tests.app.api.test_studies import body

Holders = dict[str, dict[str, str]]
CLAIM = {"worker": {"name": "w"}, "wait_s": 0}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def holders(plane_of_lite: ControlPlane) -> Holders:
    """The headers of who holds a token, by its scope; each token is named after its scope."""
    return {scope: bearer(tokens.create(plane_of_lite, scope, scope).token) for scope in tokens.Scope}


class TestOpenServer:
    def test_closes_with_the_first_token(self, lite: httpx.Client) -> None:
        assert lite.get("/studies").status_code == 200
        made = lite.post("/tokens", json={"name": "me", "scope": "admin"})
        assert made.status_code == 201
        answer = lite.get("/studies")
        assert answer.status_code == 401
        assert "nightshift token create" in answer.json()["fix"]
        assert lite.get("/studies", headers=bearer(made.json()["token"])).status_code == 200

    def test_stays_closed_when_the_last_one_is_revoked(self, lite: httpx.Client) -> None:
        headers = bearer(lite.post("/tokens", json={"name": "me", "scope": "admin"}).json()["token"])
        assert lite.delete("/tokens/me", headers=headers).status_code == 204
        assert lite.get("/studies").status_code == 401
        assert lite.get("/studies", headers=headers).status_code == 401

    @pytest.mark.parametrize(
        ("header", "value"),
        [("Origin", "https://evil.example"), ("Origin", "null"), ("Host", "rebound.example:8765")],
    )
    def test_is_not_open_to_pages_of_others(self, lite: httpx.Client, header: str, value: str) -> None:
        for path in ("/api/v1/studies", "/dashboard/"):
            answer = httpx.get(lite.base_url.join(path), headers={header: value})
            assert answer.status_code == 403
            assert value.removeprefix("https://") in answer.json()["detail"]

    def test_is_open_to_its_own_pages(self, lite: httpx.Client) -> None:
        own = f"http://{lite.base_url.netloc.decode()}"
        assert lite.get("/studies", headers={"Origin": own}).status_code == 200


class TestTokens:
    @pytest.mark.parametrize(
        ("method", "path", "json", "allowed"),
        [
            ("GET", "/studies", None, {"viewer", "operator", "admin"}),
            ("GET", "/leases", None, {"viewer", "operator", "admin"}),
            ("POST", "/studies", body(), {"operator", "admin"}),
            ("POST", "/leases/claim", CLAIM, {"worker", "admin"}),
            ("POST", "/workers", CLAIM["worker"], {"worker", "admin"}),
            ("GET", "/tokens", None, {"admin"}),
            ("POST", "/tokens", {"name": "new", "scope": "admin"}, {"admin"}),
            ("DELETE", "/tokens/viewer", None, {"admin"}),
            ("GET", "/readyz", None, set(tokens.Scope)),
        ],
    )
    def test_scopes(
        self,
        lite: httpx.Client,
        holders: Holders,
        method: str,
        path: str,
        json: Any,
        allowed: set[str],
    ) -> None:
        answers = {who: lite.request(method, path, json=json, headers=h) for who, h in holders.items()}
        refused = {who: answer.json() for who, answer in answers.items() if answer.status_code == 403}
        assert {who for who, answer in answers.items() if answer.status_code < 500} == set(tokens.Scope)
        assert set(refused) == set(tokens.Scope) - allowed
        assert all("use a token with the scope" in problem["fix"] for problem in refused.values())

    def test_expired_and_revoked_ones_are_named(
        self, lite: httpx.Client, plane_of_lite: ControlPlane, holders: Holders
    ) -> None:
        with plane_of_lite.database.write() as connection:
            expired = update(token_table).where(token_table.c.name == "viewer").values(expires_at=1.0)
            connection.execute(expired)
        answer = lite.get("/studies", headers=holders["viewer"])
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "token viewer has expired" in answer.json()["detail"]
        assert lite.delete("/tokens/viewer", headers=holders["admin"]).status_code == 204
        assert "was revoked" in lite.get("/studies", headers=holders["viewer"]).json()["detail"]

    @pytest.mark.parametrize("given", ["Bearer", "Bearer ns_unknown", "Basic !!!", "Basic Og==", "Digest x"])
    def test_what_is_no_token(self, lite: httpx.Client, holders: Holders, given: str) -> None:
        assert holders
        answer = lite.get("/studies", headers={"Authorization": given})
        assert (answer.status_code, answer.json()["field"]) == (401, "Authorization")

    def test_may_come_as_a_password(self, lite: httpx.Client, holders: Holders) -> None:
        token = holders["viewer"]["Authorization"].removeprefix("Bearer ")
        assert lite.get("/studies", auth=("anyone", token)).status_code == 200

    @pytest.mark.parametrize(
        ("method", "path", "json"),
        [
            ("POST", "/studies/study/cancel", None),
            ("POST", "/leases/claim", CLAIM),
            ("DELETE", "/tokens/viewer", None),
        ],
    )
    def test_as_a_password_change_nothing_for_a_browser_sends_it_for_any_page(
        self, lite: httpx.Client, holders: dict[str, dict[str, str]], method: str, path: str, json: Any
    ) -> None:
        token = holders["admin"]["Authorization"].removeprefix("Bearer ")
        answer = lite.request(method, path, json=json, auth=("anyone", token))
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer" in answer.json()["fix"]
        assert token not in answer.text

    def test_are_shown_once(self, lite: httpx.Client, holders: Holders) -> None:
        new = {"name": "w", "scope": "worker", "ttl_s": 60}
        made = lite.post("/tokens", json=new, headers=holders["admin"]).json()
        listed = lite.get("/tokens", headers=holders["admin"])
        assert made["token"] not in listed.text
        assert "w" in [token["name"] for token in listed.json()["items"]]

    def test_two_of_one_name_made_at_once(self, http: httpx.Client) -> None:
        made = http.post("/tokens", json={"name": "me", "scope": "admin"}).json()
        new = {"json": {"name": "same", "scope": "viewer"}, "headers": bearer(made["token"])}
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: http.post("/tokens", **new), range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]

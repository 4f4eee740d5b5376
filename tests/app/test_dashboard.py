"""The Optuna dashboard behind our guard, over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from app.services import tokens
from app.services.plane import ControlPlane
from tests.app.api.test_studies import create


@pytest.fixture
def root(lite: httpx.Client) -> str:
    """The address of the server."""
    return f"http://{lite.base_url.netloc.decode()}"


@pytest.fixture
def browser(root: str) -> Iterator[httpx.Client]:
    """A client of what lies outside the API; the first request loads the dashboard, which takes seconds."""
    with httpx.Client(base_url=root, timeout=60) as client:
        yield client


def test_root_leads_there(browser: httpx.Client) -> None:
    answer = browser.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard/")


def test_shows_our_studies(lite: httpx.Client, browser: httpx.Client) -> None:
    create(lite)
    summaries = browser.get("/api/studies").json()["study_summaries"]
    assert [summary["study_name"] for summary in summaries] == ["study"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/studies"),
        ("DELETE", "/api/studies/1"),
        ("POST", "/api/studies/1/rename"),
        ("POST", "/api/trials/1/tell"),
        ("PUT", "/api/studies/1/directions"),
    ],
)
def test_may_not_change_what_our_record_holds(browser: httpx.Client, method: str, path: str) -> None:
    answer = browser.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    assert (answer.json()["field"], answer.json()["value"]) == ("path", path)
    assert "/api/v1" in answer.json()["fix"]


def test_notes_may_be_written(lite: httpx.Client, browser: httpx.Client) -> None:
    create(lite)
    study_id = browser.get("/api/studies").json()["study_summaries"][0]["study_id"]
    note = {"body": "promising", "version": 1}
    assert browser.put(f"/api/studies/{study_id}/note", json=note).status_code == 204


def test_client_that_names_no_encoding_gets_its_files(lite: httpx.Client) -> None:
    request = b"GET /static/bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with socket.create_connection((lite.base_url.host, lite.base_url.port or 0), timeout=60) as raw:
        raw.sendall(request)
        assert raw.recv(64).startswith(b"HTTP/1.1 200")


def test_asks_for_a_token_once_there_is_one(browser: httpx.Client, plane_of_lite: ControlPlane) -> None:
    viewer = tokens.create(plane_of_lite, "viewer", "viewer").token
    worker = tokens.create(plane_of_lite, "worker", "worker").token
    refused = browser.get("/dashboard/")
    assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic")
    assert "nightshift token create" in refused.json()["fix"]
    assert browser.get("/dashboard/", auth=("anyone", worker)).status_code == 403
    assert browser.get("/dashboard/", auth=("anyone", viewer)).status_code == 200
    assert browser.put("/api/studies/1/note", auth=("anyone", viewer)).status_code == 403

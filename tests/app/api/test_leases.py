"""The lease protocol over HTTP, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from app.services import leases
from app.services.plane import ControlPlane
from tests.app.api.test_studies import create
from tests.contracts.conftest import measured
from tuner.protocol import Assignment, ClaimRequest

WORKER = {"name": "host-cpu", "pid": 1}


def claim(http: httpx.Client, wait_s: float = 0.0, **worker: Any) -> httpx.Response:
    return http.post("/leases/claim", json={"worker": {**WORKER, **worker}, "wait_s": wait_s})


def report(http: httpx.Client, assignment: dict[str, Any], value: float = 100.0) -> httpx.Response:
    outcome = measured(value).model_dump(mode="json")
    return http.post(
        f"/leases/{assignment['lease_id']}/report", json={"token": assignment["token"], "outcome": outcome}
    )


def beat(http: httpx.Client, assignment: dict[str, Any], token: str | None = None) -> httpx.Response:
    body = {"token": token or assignment["token"], "phase": "measuring", "elapsed_s": 1.0}
    return http.post(f"/leases/{assignment['lease_id']}/heartbeat", json=body)


def wait_until_seen(http: httpx.Client) -> None:
    """Until a claim has reached the services; it cannot miss what happens from then on."""
    pause, deadline = threading.Event(), time.monotonic() + 30
    while not http.get("/workers").json()["items"]:
        assert time.monotonic() < deadline
        pause.wait(0.02)


def test_from_claim_to_recommendation(http: httpx.Client) -> None:
    create(http, start=True, trials=2)
    for number in range(2):
        assignment = claim(http).json()
        assert assignment["trial_number"] == number
        assert beat(http, assignment).json()["action"] == "continue"
        assert http.get(f"/studies/study/trials/{number}").json()["phase"] == "measuring"
        assert report(http, assignment, 100.0 + number).status_code == 204
    assert claim(http).status_code == 204
    study = http.get("/studies/study").json()
    assert (study["state"], study["counts"]) == ("completed", {"completed": 2})
    assert http.get("/studies/study/recommendation").json()["trial_number"] == 1


def test_stale_token_is_a_conflict_and_changes_nothing(http: httpx.Client) -> None:
    create(http, start=True)
    assignment = claim(http).json()
    answer = beat(http, assignment, token="expired")
    assert (answer.status_code, answer.json()["field"]) == (409, "token")
    assert "claim again" in answer.json()["fix"]
    assert http.get("/studies/study/trials/0").json()["phase"] == "starting"


def test_same_report_twice_counts_once(http: httpx.Client) -> None:
    create(http, start=True)
    assignment = claim(http).json()
    assert [report(http, assignment).status_code for _ in range(2)] == [204, 204]
    assert report(http, assignment, 7.0).status_code == 409
    assert http.get("/studies/study").json()["counts"] == {"completed": 1}


def test_released_trial_is_claimed_again(http: httpx.Client) -> None:
    create(http, start=True)
    assignment = claim(http).json()
    body = {"token": assignment["token"], "reason": "drains"}
    assert http.post(f"/leases/{assignment['lease_id']}/release", json=body).status_code == 204
    assert claim(http).json()["trial_number"] == 0


def test_waiting_claim_wakes_when_a_study_starts(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.leases.RECHECK_S", 60.0)  # so that it does not find the study by itself
    create(http)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, http, wait_s=60.0)
        wait_until_seen(http)
        http.post("/studies/study/start")
        assert waiting.result(timeout=25).json()["trial_number"] == 0


def test_claim_that_waits_in_vain_ends(lite: httpx.Client) -> None:
    assert claim(lite, wait_s=0.2).status_code == 204


def test_client_that_hangs_up_keeps_no_lease(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/leases/claim", json={"worker": WORKER, "wait_s": 20.0}, timeout=0.3)
    create(http, start=True)
    assert claim(http, wait_s=10.0, name="another").json()["trial_number"] == 0
    live = http.get("/leases", params={"live": True}).json()["items"]
    assert [lease["worker"] for lease in live] == ["another"]


def test_client_that_hangs_up_before_the_grant_reaches_it_keeps_no_lease(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted, go_on = threading.Event(), threading.Event()
    real_claim = leases.claim

    def claim_slowly(plane: ControlPlane, request: ClaimRequest) -> Assignment | None:
        assignment = real_claim(plane, request)
        granted.set()
        assert go_on.wait(30)
        return assignment

    create(http, start=True)
    monkeypatch.setattr("app.services.leases.claim", claim_slowly)
    with httpx.Client(base_url=http.base_url, timeout=0.1) as impatient, pytest.raises(httpx.ReadTimeout):
        claim(impatient)
    assert granted.wait(30)
    http.get("/healthz")  # an answer after the hang-up: the server has noticed that, too
    go_on.set()
    monkeypatch.undo()
    assert claim(http, wait_s=20.0, name="another").json()["trial_number"] == 0
    items = http.get("/leases").json()["items"]
    assert [(lease["worker"], lease["state"]) for lease in items] == [
        ("another", "held"),
        ("host-cpu", "released"),
    ]


def test_leases_in_pages(http: httpx.Client) -> None:
    create(http, start=True, trials=5)
    made = [claim(http).json()["lease_id"] for _ in range(5)]
    seen, cursor = [], None
    for _ in range(3):
        page = http.get("/leases", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [lease["id"] for lease in page["items"]]
        cursor = page["next"]
    assert (seen, cursor) == (made[::-1], None)


def test_leases_show_no_token(lite: httpx.Client) -> None:
    create(lite, start=True)
    assignment = claim(lite).json()
    shown = lite.get("/leases").text
    assert assignment["lease_id"] in shown
    assert assignment["token"] not in shown


def test_worker_of_another_protocol_is_told_the_fix(lite: httpx.Client) -> None:
    answer = claim(lite, protocol_version=99)
    assert (answer.status_code, answer.json()["field"]) == (422, "worker.protocol_version")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "worker"),
        ({"worker": {"name": ""}}, "worker.name"),
        ({"worker": WORKER, "wait_s": -1}, "wait_s"),
        ([], "body"),
    ],
)
def test_bad_claim(lite: httpx.Client, body: object, field: str) -> None:
    answer = lite.post("/leases/claim", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_workers_are_listed(lite: httpx.Client) -> None:
    claim(lite)
    claim(lite, name="gpu-host", gpus=1, gpu="NVIDIA H200")
    items = lite.get("/workers").json()["items"]
    assert [(item["name"], item["state"], item["gpu"]) for item in items] == [
        ("gpu-host", "active", "NVIDIA H200"),
        ("host-cpu", "active", None),
    ]

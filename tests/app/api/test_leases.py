"""The lease protocol over HTTP, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.app.api.test_studies import create
from tests.contracts.conftest import measured

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


def test_waiting_claim_wakes_when_a_study_starts(http: httpx.Client) -> None:
    asked = threading.Event()

    def wait_for_work() -> httpx.Response:
        asked.set()
        return claim(http, wait_s=20.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for_work)
        assert asked.wait(5)
        create(http, start=True)
        assert waiting.result(timeout=15).json()["trial_number"] == 0


def test_claim_that_waits_in_vain_ends(lite: httpx.Client) -> None:
    assert claim(lite, wait_s=0.2).status_code == 204


def test_client_that_hangs_up_keeps_no_lease(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/leases/claim", json={"worker": WORKER, "wait_s": 20.0}, timeout=0.3)
    create(http, start=True)
    assert claim(http, wait_s=10.0, name="another").json()["trial_number"] == 0
    live = http.get("/leases", params={"live": True}).json()["items"]
    assert [lease["worker"] for lease in live] == ["another"]


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

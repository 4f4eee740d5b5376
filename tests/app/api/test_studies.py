"""Studies over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contracts.conftest import study_spec


def body(name: str = "study", *, start: bool = False, **more: Any) -> dict[str, Any]:
    return {"spec": study_spec(name, **more).model_dump(mode="json"), "start": start}


def create(http: httpx.Client, name: str = "study", **more: Any) -> httpx.Response:
    return http.post("/studies", json=body(name, **more))


class TestCreate:
    def test_answers_with_the_study(self, http: httpx.Client) -> None:
        answer = create(http)
        assert answer.status_code == 201
        assert (answer.json()["name"], answer.json()["state"]) == ("study", "draft")
        assert http.get("/studies/study").json() == answer.json()

    def test_starts_it_when_asked(self, http: httpx.Client) -> None:
        assert create(http, start=True).json()["state"] == "running"

    def test_same_key_gives_the_same_study(self, http: httpx.Client) -> None:
        answers = [http.post("/studies", json=body(), headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert answers[0].json() == answers[1].json()
        assert len(http.get("/studies").json()["items"]) == 1

    def test_same_request_twice_at_once_makes_one_study(self, http: httpx.Client) -> None:
        same = {"json": body(), "headers": {"Idempotency-Key": "k"}}
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: http.post("/studies", **same), range(4)))
        assert [answer.status_code for answer in answers] == [201] * 4
        assert len({answer.text for answer in answers}) == 1

    def test_two_of_one_name_at_once(self, http: httpx.Client) -> None:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: create(http), range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]

    def test_same_key_for_another_study_is_a_conflict(self, lite: httpx.Client) -> None:
        lite.post("/studies", json=body(), headers={"Idempotency-Key": "k"})
        answer = lite.post("/studies", json=body("other"), headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["field"]) == (409, "Idempotency-Key")

    def test_taken_name_is_a_conflict(self, http: httpx.Client) -> None:
        create(http)
        answer = create(http)
        assert (answer.status_code, answer.json()["field"], answer.json()["value"]) == (409, "name", "study")

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"engine": {}}, "engine.model"),
            ({"space": {"preset": "none", "knobs": {"max_num_seq": [1]}}}, "space.knobs.max_num_seq"),
            (
                {"space": {"preset": "none", "knobs": {"max_num_seqs": {"low": 9, "high": 3}}}},
                "space.knobs.max_num_seqs",
            ),
            ({"objectives": [{"metric": "speed"}]}, "objectives.0.metric"),
            ({"colour": "red"}, "colour"),
        ],
    )
    def test_bad_spec_is_refused_with_field_value_and_fix(
        self, lite: httpx.Client, change: dict[str, Any], field: str
    ) -> None:
        spec = {**body()["spec"], **change}
        answer = lite.post("/studies", json={"spec": spec})
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["field"] == field
        assert answer.json()["fix"]
        assert lite.get("/studies").json()["items"] == []


class TestList:
    def test_newest_first_in_pages(self, http: httpx.Client) -> None:
        for number in range(5):
            create(http, f"study-{number}")
        names, cursor = [], None
        while True:
            page = http.get("/studies", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
            names += [item["name"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert names == [f"study-{number}" for number in (4, 3, 2, 1, 0)]

    def test_by_state(self, http: httpx.Client) -> None:
        create(http, "a", start=True)
        create(http, "b")
        assert [
            item["name"] for item in http.get("/studies", params={"state": "running"}).json()["items"]
        ] == ["a"]

    @pytest.mark.parametrize("cursor", ["zzz", "bnVsbA", "WyJhIl0", "%00"])
    def test_cursor_that_is_none(self, lite: httpx.Client, cursor: str) -> None:
        answer = lite.get("/studies", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["field"]) == (422, "cursor")

    @pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 1001}, {"state": "happy"}])
    def test_bad_parameters(self, lite: httpx.Client, params: dict[str, Any]) -> None:
        answer = lite.get("/studies", params=params)
        assert (answer.status_code, answer.json()["field"]) == (422, next(iter(params)))


class TestMoves:
    def test_a_life(self, http: httpx.Client) -> None:
        create(http)
        states = [
            http.post(f"/studies/study/{move}").json()["state"]
            for move in ("start", "pause", "resume", "cancel")
        ]
        assert states == ["running", "paused", "running", "cancelled"]

    def test_move_that_its_state_does_not_allow(self, http: httpx.Client) -> None:
        create(http)
        answer = http.post("/studies/study/pause")
        assert (answer.status_code, answer.json()["value"]) == (409, "draft")
        assert "it can become" in answer.json()["fix"]

    def test_same_move_twice_is_harmless(self, lite: httpx.Client) -> None:
        create(lite, start=True)
        assert [lite.post("/studies/study/pause").status_code for _ in range(2)] == [200, 200]

    def test_unknown_study(self, lite: httpx.Client) -> None:
        for call in (
            lite.get("/studies/none"),
            lite.post("/studies/none/start"),
            lite.get("/studies/none/trials"),
        ):
            assert (call.status_code, call.json()["value"]) == (404, "none")


def test_validate_counts_the_space_and_creates_nothing(lite: httpx.Client) -> None:
    answer = lite.post("/studies/validate", json=body()["spec"]).json()
    assert answer["size"] == 49
    assert answer["knobs"]["max_num_seqs"] == [1, 2, 4, 8, 16, 32, 64]
    assert answer["refused"] == 0
    assert lite.get("/studies").json()["items"] == []


def test_recommendation_of_a_study_without_a_result_says_why(lite: httpx.Client) -> None:
    create(lite)
    answer = lite.get("/studies/study/recommendation").json()
    assert answer["trial_number"] is None
    assert answer["reason"]

"""Events over HTTP, as a browser's EventSource reads them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.app.api.test_leases import claim
from tests.app.api.test_studies import create


def read(http: httpx.Client, count: int, **more: Any) -> list[dict[str, Any]]:
    """The data of the next ``count`` events."""
    events: list[dict[str, Any]] = []
    with http.stream("GET", "/events", **more) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            if len(events) == count:
                return events
    raise AssertionError("the stream ended")


def test_tell_what_happened_in_order(http: httpx.Client) -> None:
    create(http, start=True)
    claim(http)
    events = read(http, 5, params={"study": "study"})
    assert [event["kind"] for event in events] == [
        "study.created",
        "study.running",
        "lease.reserved",
        "trial.created",
        "lease.granted",
    ]
    assert {event["study"] for event in events} == {"study"}


def test_go_on_behind_the_last_one_seen(lite: httpx.Client) -> None:
    create(lite, start=True)
    first, second = read(lite, 2)
    seen = {"headers": {"Last-Event-ID": str(first["id"])}, "params": {"after": 0}}
    assert read(lite, 1, **seen) == [second]
    assert read(lite, 1, params={"after": first["id"]}) == [second]


def test_arrive_while_one_listens(lite: httpx.Client) -> None:
    create(lite)
    with lite.stream("GET", "/events", params={"after": read(lite, 1)[0]["id"]}) as stream:
        lite.post("/studies/study/start")
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: study.running"


def test_of_one_study_only(lite: httpx.Client) -> None:
    create(lite, "one")
    create(lite, "two")
    assert read(lite, 1, params={"study": "two"})[0]["study"] == "two"


def test_quiet_stream_is_kept_alive(lite: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.events.KEEP_ALIVE_S", 0.0)
    monkeypatch.setattr("app.api.events.RECHECK_S", 0.01)
    with lite.stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        assert [next(lines), next(lines)] == [": still here", ""]

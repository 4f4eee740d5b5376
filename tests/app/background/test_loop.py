"""The background loop: a pass that fails is tried again, and stopping ends it."""

from __future__ import annotations

import threading

import pytest

from app.background import loop
from app.background.loop import BackgroundLoop
from app.services import leases, studies
from app.services.plane import ControlPlane
from app.services.workers import register
from tests.contracts.conftest import Hands, measured, study_spec
from tuner.protocol import WorkerDescription


def test_pass_that_fails_is_logged_and_made_again(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed_again = threading.Event()
    calls = []

    def flaky(_: ControlPlane) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the disk was full")
        passed_again.set()
        return 0

    monkeypatch.setattr(loop, "PASSES", (("flaky", flaky),))
    running = BackgroundLoop(plane)
    running.start()
    assert passed_again.wait(10)
    running.stop()
    assert "the flaky failed" in caplog.text


def test_waiting_claim_is_woken_by_what_another_worker_gives_back(plane: ControlPlane) -> None:
    woken = threading.Event()
    plane.wakeups.subscribe(woken.set)
    studies.create(plane, study_spec(trials=1), start=True)
    hands = Hands(plane)
    assignment = hands.claim()
    woken.clear()
    hands.report(assignment, measured())
    assert woken.is_set()
    assert leases.page(plane, live=True) == []


def test_worker_is_listed_once_however_often_it_registers(plane: ControlPlane) -> None:
    for pid in (1, 2):
        row = register(plane, WorkerDescription(name="w", pid=pid))
    assert row.description.pid == 2

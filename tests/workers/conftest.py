"""What the tests of the worker share: a tiny model, a stand-in for vLLM, a control plane in memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.lease_server import LeaseServer
from tuner.protocol import Assignment
from workers.settings import WorkerSettings
from workers.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "stand_in"
PATIENCE_S = 60.0

AssignmentMaker = Callable[..., Assignment]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts the stand-in on the engine's path; call it to make the stand-in misbehave."""
    monkeypatch.setenv("PYTHONPATH", f"{STAND_IN}{os.pathsep}{ROOT}")
    return lambda **behaviour: monkeypatch.setenv("STAND_IN", json.dumps(behaviour))


@pytest.fixture
def assignment(tiny_model: Path) -> AssignmentMaker:
    """Makes an assignment: a second of load against the tiny model, changed as told."""

    def make(**changes: Any) -> Assignment:
        workload: dict[str, Any] = {
            "prompts": {"input_tokens": {"mean": 20}, "output_tokens": {"mean": 8}},
            "arrivals": {"kind": "closed", "concurrency": 4},
            "warmup_s": 0.2,
            "measure_s": 0.6,
        }
        plain: dict[str, Any] = {
            "lease_id": "lease-1",
            "token": "to be set",
            "ttl_s": 6.0,
            "study": "tiny",
            "trial_number": 0,
            "attempt": 1,
            "engine": {"model": str(tiny_model)},
            "args": {"load_format": "dummy", "max_model_len": 4096, "max_num_seqs": 8},
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
            "knobs": ["max_num_seqs"],
            "workload": workload | changes.pop("workload", {}),
            "gpus": 0,
        }
        return Assignment.model_validate(plain | changes)

    return make


@pytest.fixture
async def server() -> AsyncIterator[LeaseServer]:
    async with LeaseServer() as server, asyncio.timeout(PATIENCE_S):
        yield server


@pytest.fixture
def settings(server: LeaseServer, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(
        server=server.url,
        vllm_python=Path(sys.executable),
        worker_name="tested",
        home=tmp_path / "home",
        gpus=(),
        progress_interval_s=0.1,
        stop_grace_s=2.0,
        claim_wait_s=1.0,
    )


@pytest.fixture
def mark(settings: WorkerSettings) -> str:
    return str(settings.home / "workers" / "tested")

"""The same, on the real vLLM (its CPU build in ``.venv-vllm``)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.workers.conftest import AssignmentMaker
from tests.workers.lease_server import LeaseServer
from tests.workers.processes import assert_gone, engine_tree
from tests.workers.test_agent import working
from tests.workers.test_worker_process import worker_process
from tuner.metrics import METRICS
from tuner.protocol import FailureKind, Infeasible, Measured, Phase
from workers.settings import WorkerSettings

VLLM_PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.real_vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="no .venv-vllm; `make quickstart` makes it"),
]
KNOBS = ["max_num_seqs", "max_num_batched_tokens", "enforce_eager", "VLLM_CPU_KVCACHE_SPACE"]


@pytest.fixture
async def server() -> AsyncIterator[LeaseServer]:
    async with LeaseServer(ttl_s=60.0) as server, asyncio.timeout(550):
        yield server


@pytest.fixture
def real(settings: WorkerSettings) -> WorkerSettings:
    return settings.model_copy(update={"vllm_python": VLLM_PYTHON, "stop_grace_s": 10.0})


async def test_its_defaults_are_measured_and_told(
    real: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
) -> None:
    args = {"load_format": "dummy", "max_model_len": 4096}
    server.offer(assignment(args=args, knobs=KNOBS, workload={"warmup_s": 2.0, "measure_s": 4.0}))
    async with working(real):
        lease = await server.phase(Phase.MEASURING)
        tree = engine_tree(mark)
        outcome = await lease.outcome
    assert isinstance(outcome, Measured), outcome
    measurement = outcome.measurement
    assert measurement.metrics.keys() == METRICS.keys()
    assert measurement.metrics["error_rate"] == 0.0
    assert measurement.resolved_args["max_num_seqs"] == 128
    assert measurement.resolved_args["max_num_batched_tokens"] == 2048
    assert measurement.resolved_args["enforce_eager"] is False
    assert measurement.resolved_args["VLLM_CPU_KVCACHE_SPACE"] == 1.0
    assert measurement.provenance["vllm_version"] == "0.32.0"
    assert len(tree) >= 4  # keeper, API server, engine, worker
    assert_gone(tree)


async def test_it_refuses_a_context_that_the_cache_cannot_hold(
    real: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
) -> None:
    args = {"load_format": "dummy", "max_model_len": 262_144}
    server.offer(assignment(args=args, knobs=["max_model_len"]))
    async with working(real):
        outcome = await (await server.lease()).outcome
    assert isinstance(outcome, Infeasible), outcome
    assert outcome.failure.kind is FailureKind.KV_CACHE_TOO_SMALL


async def test_nothing_of_it_outlives_a_killed_worker(
    real: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
) -> None:
    server.offer(
        assignment(args={"load_format": "dummy", "max_model_len": 4096}, workload={"measure_s": 600.0})
    )
    async with worker_process(real) as worker:
        await server.phase(Phase.MEASURING)
        tree = engine_tree(mark)
        worker.send_signal(signal.SIGKILL)
        await asyncio.to_thread(assert_gone, tree)

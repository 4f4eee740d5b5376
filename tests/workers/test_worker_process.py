"""``python -m workers`` as a process of its own: signals, kills, and what the next start finds."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.workers.conftest import AssignmentMaker
from tests.workers.lease_server import LeaseServer
from tests.workers.processes import assert_gone, engine_tree
from tuner.protocol import Measured, Phase
from workers.settings import WorkerSettings

pytestmark = pytest.mark.usefixtures("stand_in")

ROOT = Path(__file__).parents[2]
LONG = {"warmup_s": 0.0, "measure_s": 600.0}
PARENT = """
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-m", "workers"])
signal.pause()
"""


def environment(settings: WorkerSettings) -> dict[str, str]:
    told = {
        "SERVER": settings.server,
        "VLLM_PYTHON": str(settings.vllm_python),
        "WORKER_NAME": settings.worker_name,
        "HOME": str(settings.home),
        "GPUS": "none",
        "PROGRESS_INTERVAL_S": str(settings.progress_interval_s),
        "STOP_GRACE_S": str(settings.stop_grace_s),
    }
    return {**os.environ, **{f"NIGHTSHIFT_{name}": value for name, value in told.items()}}


@asynccontextmanager
async def worker_process(settings: WorkerSettings, **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in its own process, which is killed at the end if it has not ended."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers"),
        env=environment(settings) | more,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    drain = asyncio.create_task(worker.communicate())
    try:
        yield worker
    finally:
        if worker.returncode is None:
            worker.kill()
        await drain


class TestAKill:
    async def test_of_the_worker_leaves_no_engine_behind(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with worker_process(settings) as worker:
            await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            worker.kill()
            await asyncio.to_thread(assert_gone, tree)
        assert len(tree) == 3

    async def test_of_the_worker_while_the_engine_starts_leaves_none_either(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(env={"STAND_IN": '{"startup_s": 600}'}))
        async with worker_process(settings) as worker:
            await server.phase(Phase.STARTING)
            tree = engine_tree(mark)
            worker.kill()
            await asyncio.to_thread(assert_gone, tree)

    async def test_of_the_keeper_fails_the_attempt_and_leaves_none(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with worker_process(settings):
            lease = await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            tree[0].kill()
            outcome = await lease.outcome
            await asyncio.to_thread(assert_gone, tree)
        assert outcome.kind == "failed"

    async def test_of_the_engine_fails_the_attempt_and_leaves_none(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with worker_process(settings):
            lease = await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            tree[1].kill()
            outcome = await lease.outcome
            await asyncio.to_thread(assert_gone, tree)
        assert outcome.kind == "failed"
        assert outcome.failure.retryable

    async def test_of_worker_and_keeper_together_is_mended_by_the_next_start(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with worker_process(settings) as worker:
            await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            os.kill(worker.pid, signal.SIGSTOP)
            tree[0].suspend()
            tree[0].kill()
            worker.kill()
        server.offer(assignment(lease_id="lease-2"))
        async with worker_process(settings):
            assert isinstance(await (await server.lease(1)).outcome, Measured)
        assert_gone(tree)


class TestSigterm:
    async def test_releases_the_lease_after_the_engine_is_gone(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with worker_process(settings) as worker:
            lease = await server.phase(Phase.MEASURING)
            worker.terminate()
            assert await lease.released == "the worker drains"
            assert engine_tree(mark) == []
            assert await worker.wait() == 0

    async def test_again_ends_at_once_and_leaves_no_engine(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG, env={"STAND_IN": '{"deaf": true}'}))
        patient = settings.model_copy(update={"stop_grace_s": 600.0})
        async with worker_process(patient) as worker:
            await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            worker.terminate()
            await server.phase(Phase.STOPPING)
            worker.terminate()
            assert await worker.wait() == 130
            await asyncio.to_thread(assert_gone, tree)

    async def test_ends_an_idle_worker(self, settings: WorkerSettings, server: LeaseServer) -> None:
        async with worker_process(settings) as worker:
            await server.worker()
            worker.terminate()
            assert await worker.wait() == 0


class TestTheParentsEnd:
    async def test_drains_the_worker(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
    ) -> None:
        server.offer(assignment(workload=LONG))
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PARENT),
            env=environment(settings) | {"NIGHTSHIFT_EXIT_WITH_PARENT": "true"},
            cwd=ROOT,
            stderr=asyncio.subprocess.DEVNULL,
        )
        lease = await server.phase(Phase.MEASURING)
        worker = psutil.Process((await server.worker()).pid)
        parent.kill()
        assert await lease.released == "the worker drains"
        await asyncio.to_thread(assert_gone, [worker])
        await parent.wait()


class TestABadSetting:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("GPUS", "77", "NIGHTSHIFT_GPUS"),
            ("WORKER_NAME", "no spaces please", "NIGHTSHIFT_WORKER_NAME"),
            ("TOKEN_FILE", "/nowhere/token", "NIGHTSHIFT_TOKEN_FILE"),
            ("HOME", "/proc/nowhere", "NIGHTSHIFT_HOME"),
            ("CLAIM_WAIT_S", "minutes", "NIGHTSHIFT_CLAIM_WAIT_S"),
        ],
    )
    async def test_is_one_line_and_exit_code_2(
        self, settings: WorkerSettings, name: str, value: str, words: str
    ) -> None:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "workers"),
            env=environment(settings) | {f"NIGHTSHIFT_{name}": value},
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )
        _, output = await worker.communicate()
        assert worker.returncode == 2
        assert words in output.decode()
        assert len(output.decode().splitlines()) == 1

    async def test_of_a_name_that_is_taken(self, settings: WorkerSettings, server: LeaseServer) -> None:
        async with worker_process(settings):
            await server.worker()
            async with worker_process(settings) as second:
                assert await second.wait() == 2

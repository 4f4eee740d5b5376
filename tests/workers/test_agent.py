"""A worker with a control plane in memory and a stand-in for vLLM: real processes, real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.workers.conftest import AssignmentMaker
from tests.workers.lease_server import LeaseServer
from tests.workers.processes import assert_gone, engine_tree
from tuner.errors import FieldError
from tuner.metrics import METRICS
from tuner.protocol import Failed, FailureKind, Infeasible, Measured, Outcome, Phase, Verdict
from workers.agent import Agent
from workers.client import ControlPlaneClient
from workers.home import WorkerHome
from workers.settings import WorkerSettings
from workers.tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("stand_in")

Misbehave = Callable[..., None]
LONG = {"warmup_s": 0.0, "measure_s": 600.0}


@asynccontextmanager
async def working(settings: WorkerSettings) -> AsyncIterator[Agent]:
    """A worker that serves for the time of the block, and then drains."""
    async with ControlPlaneClient(settings.server, settings.bearer()) as client:
        agent = Agent(settings, client, WorkerHome(settings.home, "tested"), ())
        serving = asyncio.create_task(agent.serve())
        try:
            yield agent
        finally:
            agent.drain.set()
            await serving


Run = Callable[..., "asyncio.Future[Outcome]"]


@pytest.fixture
def outcome_of(settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str) -> Run:
    """Runs one attempt to its end, and looks that nothing of its engine is left."""

    async def run(**changes: object) -> Outcome:
        server.offer(assignment(**changes))
        async with working(settings):
            outcome = await (await server.lease()).outcome
        assert engine_tree(mark) == []
        return outcome

    return run  # type: ignore[return-value]  # an async function is a callable that returns an awaitable


class TestAMeasurement:
    async def test_holds_every_metric(self, outcome_of: Run) -> None:
        outcome = await outcome_of()
        assert isinstance(outcome, Measured)
        assert outcome.measurement.metrics.keys() == METRICS.keys()
        assert outcome.measurement.requests > 0
        assert outcome.measurement.errors == {}

    async def test_tells_where_it_comes_from(self, outcome_of: Run, tiny_model: Path) -> None:
        provenance = (await outcome_of()).measurement.provenance
        assert provenance["vllm_version"] == "0.32.0"
        assert provenance["env"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
        assert provenance["argv"][-2:] == ["--max-num-seqs", "8"]
        assert provenance["model"] == str(tiny_model)
        assert provenance["e2e_samples"] == provenance["requests_due"]

    async def test_asks_the_engine_for_knobs_that_the_baseline_leaves_to_it(self, outcome_of: Run) -> None:
        knobs = ["max_num_seqs", "max_num_batched_tokens", "enforce_eager", "VLLM_CPU_KVCACHE_SPACE"]
        outcome = await outcome_of(knobs=knobs, args={"max_model_len": 4096})
        resolved = outcome.measurement.resolved_args
        assert resolved["max_num_seqs"] == 128
        assert resolved["max_num_batched_tokens"] == 2048
        assert resolved["enforce_eager"] is False
        assert resolved["VLLM_CPU_KVCACHE_SPACE"] == 1.0

    async def test_goes_through_every_phase(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
    ) -> None:
        server.offer(assignment(workload={"warmup_s": 0.5}))
        async with working(settings):
            lease = await server.lease()
            await lease.outcome
        assert lease.phases()[0] is Phase.STARTING
        assert lease.phases()[-1] is Phase.STOPPING
        assert {Phase.WARMING_UP, Phase.MEASURING} <= set(lease.phases())
        assert lease.heartbeats[-1].partial["output_tokens_per_s"] > 0

    async def test_needs_no_configuration_of_the_model_to_make_prompts(
        self, outcome_of: Run, tmp_path: Path
    ) -> None:
        model = write_tiny_model(tmp_path / "silent")
        config = json.loads((model / "config.json").read_text())
        del config["vocab_size"]
        (model / "config.json").write_text(json.dumps(config))
        outcome = await outcome_of(engine={"model": str(model)})
        assert outcome.measurement.errors == {}

    async def test_of_an_open_loop_needs_no_free_user(self, outcome_of: Run) -> None:
        arrivals = {"kind": "poisson", "rate_per_s": 40.0}
        outcome = await outcome_of(workload={"arrivals": arrivals, "measure_s": 1.0})
        assert 15 <= outcome.measurement.provenance["requests_due"] <= 75


class TestAConfigurationAtFault:
    async def test_runs_out_of_memory_at_start(self, outcome_of: Run, stand_in: Misbehave) -> None:
        stand_in(fail_above={"max_num_batched_tokens": 8192})
        args = {"max_model_len": 4096, "max_num_batched_tokens": 16384}
        outcome = await outcome_of(args=args, knobs=["max_num_batched_tokens"])
        assert isinstance(outcome, Infeasible)
        assert outcome.failure.kind is FailureKind.OOM_DEVICE
        assert outcome.failure.phase is Phase.STARTING
        assert any("CUDA out of memory" in line for line in outcome.failure.excerpt)

    async def test_wants_a_longer_context_than_the_cache_holds(self, outcome_of: Run) -> None:
        outcome = await outcome_of(args={"max_model_len": 262_144}, knobs=["max_model_len"])
        assert isinstance(outcome, Infeasible)
        assert outcome.failure.kind is FailureKind.KV_CACHE_TOO_SMALL

    async def test_runs_out_of_memory_under_load_though_the_server_stays_up(
        self, outcome_of: Run, stand_in: Misbehave
    ) -> None:
        stand_in(oom_after=30)
        outcome = await outcome_of()
        assert isinstance(outcome, Infeasible)
        assert outcome.failure.kind is FailureKind.OOM_DEVICE
        assert outcome.failure.phase is Phase.MEASURING

    async def test_takes_no_request_as_long_as_the_workload_has(self, outcome_of: Run) -> None:
        outcome = await outcome_of(args={"max_model_len": 25}, knobs=["max_model_len"])
        assert isinstance(outcome, Infeasible)
        assert "longest request has 28 tokens, and max_model_len is 25" in outcome.failure.message
        assert not outcome.failure.fatal


class TestAnEnvironmentAtFault:
    async def test_a_fixed_length_that_no_trial_can_mend_is_fatal(self, outcome_of: Run) -> None:
        outcome = await outcome_of(args={"max_model_len": 25})
        assert isinstance(outcome, Failed)
        assert outcome.failure.fatal

    async def test_an_engine_that_is_not_ready_in_time(self, outcome_of: Run, stand_in: Misbehave) -> None:
        stand_in(startup_s=600.0)
        outcome = await outcome_of(startup_timeout_s=1.0)
        assert outcome.failure.kind is FailureKind.STARTUP_TIMEOUT

    async def test_an_engine_that_crashes_under_load(self, outcome_of: Run, stand_in: Misbehave) -> None:
        stand_in(crash_after=10)
        outcome = await outcome_of()
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind is FailureKind.ENGINE_CRASH
        assert outcome.failure.exit_code == -signal.SIGSEGV

    async def test_an_interpreter_that_does_not_exist(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
    ) -> None:
        server.offer(assignment())
        async with working(settings.model_copy(update={"vllm_python": Path("/nowhere/python")})):
            outcome = await (await server.lease()).outcome
        assert isinstance(outcome, Failed)
        assert outcome.failure.verdict is Verdict.FAILED

    async def test_an_engine_that_makes_no_more_tokens(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, stand_in: Misbehave
    ) -> None:
        stand_in(hang_after=20)
        server.offer(assignment(workload=LONG))
        async with working(settings.model_copy(update={"stall_s": 1.0})):
            outcome = await (await server.lease()).outcome
        assert isinstance(outcome, Failed)
        assert outcome.failure.phase is Phase.MEASURING

    async def test_an_engine_that_is_dead_behind_its_server(
        self,
        settings: WorkerSettings,
        server: LeaseServer,
        assignment: AssignmentMaker,
        mark: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("workers.trial.DYING_S", 0.1)
        server.offer(assignment(workload=LONG))
        async with working(settings):
            lease = await server.phase(Phase.MEASURING)
            engine_tree(mark)[2].kill()
            outcome = await lease.outcome
        assert isinstance(outcome, Failed)
        assert outcome.failure.phase is Phase.MEASURING

    async def test_requests_that_all_fail_are_no_measurement(
        self, outcome_of: Run, stand_in: Misbehave
    ) -> None:
        stand_in(garbage=True)
        outcome = await outcome_of()
        assert isinstance(outcome, Failed)
        assert "× garbage" in outcome.failure.message

    async def test_a_fault_of_the_worker_itself_is_reported_with_its_trace(
        self, outcome_of: Run, tiny_model: Path, tmp_path: Path
    ) -> None:
        attempts = tmp_path / "home" / "workers" / "tested" / "attempts"
        attempts.parent.mkdir(parents=True)
        attempts.write_text("in the way")
        outcome = await outcome_of()
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind is FailureKind.OTHER
        assert "FileExistsError" in outcome.failure.message
        assert any("attempt_folder" in line for line in outcome.failure.excerpt)


class TestTheEnginesEnvironment:
    async def test_holds_no_token_of_ours(
        self,
        settings: WorkerSettings,
        server: LeaseServer,
        assignment: AssignmentMaker,
        mark: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("NIGHTSHIFT_TOKEN", "secret")
        server.offer(assignment(workload=LONG))
        async with working(settings):
            await server.phase(Phase.MEASURING)
            environments = [process.environ() for process in engine_tree(mark)]
        assert len(environments) == 3
        assert [env for env in environments if "secret" in env.values()] == []


class TestALease:
    async def test_that_the_server_ends_is_released_when_the_engine_is_gone(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with working(settings):
            lease = await server.phase(Phase.MEASURING)
            lease.stop = "the study was cancelled"
            assert await lease.released == "the study was cancelled"
            assert engine_tree(mark) == []

    async def test_is_released_by_a_worker_that_drains(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with working(settings) as agent:
            lease = await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            agent.drain.set()
            assert await lease.released == "the worker drains"
        assert_gone(tree)

    async def test_is_kept_while_a_deaf_engine_is_stopped(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, stand_in: Misbehave
    ) -> None:
        stand_in(deaf=True)
        server.offer(assignment(workload=LONG))
        async with working(settings) as agent:
            lease = await server.phase(Phase.MEASURING)
            agent.drain.set()
            await server.phase(Phase.STOPPING)
            await server.beats(3)
            assert await lease.released

    async def test_that_is_lost_ends_the_engine_before_the_server_may_grant_again(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.ttl_s = 3.0
        server.offer(assignment(workload=LONG))
        async with working(settings):
            await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            server.silent = True
            _, alive = await asyncio.to_thread(psutil.wait_procs, tree, timeout=server.ttl_s)
            assert alive == []

    async def test_that_is_anothers_by_now_ends_the_engine_and_is_not_touched(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, mark: str
    ) -> None:
        server.offer(assignment(workload=LONG))
        async with working(settings):
            lease = await server.phase(Phase.MEASURING)
            tree = engine_tree(mark)
            lease.expired = True
            await asyncio.to_thread(assert_gone, tree)
        assert not lease.outcome.done()
        assert not lease.released.done()

    async def test_survives_a_control_plane_that_is_away_for_a_moment(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
    ) -> None:
        server.offer(assignment(workload={"measure_s": 2.0}))
        async with working(settings):
            lease = await server.phase(Phase.MEASURING)
            server.silent = True
            asyncio.get_running_loop().call_later(1.0, setattr, server, "silent", False)  # noqa: FBT003
            assert isinstance(await lease.outcome, Measured)


class TestAReport:
    async def test_that_comes_too_late_changes_nothing(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, stand_in: Misbehave
    ) -> None:
        stand_in(deaf=True)  # so that stopping it takes the grace time
        server.offer(assignment())
        server.offer(assignment(lease_id="next"))
        async with working(settings):
            lease = await server.phase(Phase.STOPPING)
            lease.expired = True
            assert isinstance(await (await server.lease(1)).outcome, Measured)
        assert not lease.outcome.done()

    async def test_waits_for_a_control_plane_that_is_away(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker, stand_in: Misbehave
    ) -> None:
        stand_in(deaf=True)  # so that stopping it takes the grace time
        server.offer(assignment())
        async with working(settings):
            lease = await server.phase(Phase.STOPPING)
            server.silent = True
            asyncio.get_running_loop().call_later(1.0, setattr, server, "silent", False)  # noqa: FBT003
            assert isinstance(await lease.outcome, Measured)

    async def test_that_is_refused_becomes_one_of_a_fault_of_ours(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
    ) -> None:
        server.refuses = "measured"
        server.offer(assignment())
        async with working(settings):
            outcome = await (await server.lease()).outcome
        assert isinstance(outcome, Failed)
        assert "the report does not please" in outcome.failure.message


class TestAWorker:
    async def test_carries_out_one_attempt_after_the_other(
        self, settings: WorkerSettings, server: LeaseServer, assignment: AssignmentMaker
    ) -> None:
        for number in range(2):
            server.offer(assignment(lease_id=f"lease-{number}", trial_number=number))
        async with working(settings):
            for number in range(2):
                assert isinstance(await (await server.lease(number)).outcome, Measured)

    async def test_introduces_itself(self, settings: WorkerSettings, server: LeaseServer) -> None:
        async with working(settings):
            worker = await server.worker()
        assert (worker.name, worker.gpus, worker.vllm_version) == ("tested", 0, "0.32.0")

    async def test_with_a_token_that_is_not_known_says_which_setting_to_mend(
        self, settings: WorkerSettings, server: LeaseServer
    ) -> None:
        server.token = "right"
        async with ControlPlaneClient(settings.server, "wrong") as client:
            agent = Agent(settings, client, WorkerHome(settings.home, "tested"), ())
            with pytest.raises(
                FieldError, match=r"NIGHTSHIFT_TOKEN: .*token is not known.*token create"
            ) as caught:
                await agent.serve()
        assert "wrong" not in str(caught.value)

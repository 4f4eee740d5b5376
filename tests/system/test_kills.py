"""``kill -9`` of any part in a trial: the study completes, each trial counts once, no engine stays."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.cli.quickstart import memory_share
from app.client import ControlPlaneClient, Study
from tests.system.conftest import World, completed, engines_of, eventually, free_port, study_of, trial_in

STATES_THAT_END = {"completed", "infeasible"}


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def kill_engine(model: Path) -> None:
    """Kill the engine's first process, as the kernel's OOM killer would."""
    oldest = min(engines_of(model), key=lambda process: process.create_time())
    servers = [p for p in [oldest, *oldest.children(recursive=True)] if "keeper" not in " ".join(p.cmdline())]
    servers[0].kill()


def await_phase(client: ControlPlaneClient, study: str, number: int, within_s: float = 60.0) -> None:
    eventually(lambda: trial_in(client, study, number, "measuring"), within_s=within_s)


def assert_each_trial_counted_once(client: ControlPlaneClient, study: Study) -> None:
    trials = client.trials(study.name)
    assert [trial.number for trial in trials] == list(range(study.spec.budget.trials))
    assert {trial.state for trial in trials} <= STATES_THAT_END
    assert sum(study.counts.values()) == study.spec.budget.trials


def assert_no_engine(model: Path) -> None:
    eventually(
        lambda: not [p for p in engines_of(model) if p.status() != psutil.STATUS_ZOMBIE], within_s=30.0
    )


def long_windows(model: Path, **changes: Any) -> dict[str, Any]:
    """A study whose trials all fit into memory, and measure long enough to be killed in the middle."""
    knobs = {"max_num_seqs": [4, 8, 16], "max_num_batched_tokens": [256, 512]}
    plain = study_of(model, space={"preset": "none", "knobs": knobs}, **changes)
    return {**plain, "workload": {**plain["workload"], "measure_s": 2.0}}


def create(world: World, port: int, study: dict[str, Any]) -> None:
    done = world.run("study", "create", world.write(study), "--server", url(port))
    assert done.returncode == 0, done.stderr


class TestKillOfOnePart:
    def test_worker(self, either_world: World) -> None:
        world, port = either_world, free_port()
        world.serve(port)
        worker = world.worker(port)
        create(world, port, long_windows(world.model))
        with world.client(port) as client:
            await_phase(client, "walk", 0)
            kill(worker)
            assert_no_engine(world.model)
            world.worker(port)
            study = eventually(lambda: completed(client, "walk"), within_s=90.0)
            assert_each_trial_counted_once(client, study)
            assert client.trials("walk")[0].attempt == 2
        assert_no_engine(world.model)

    def test_control_plane(self, either_world: World) -> None:
        world, port = either_world, free_port()
        server = world.serve(port)
        world.worker(port)
        create(world, port, long_windows(world.model))
        with world.client(port) as client:
            await_phase(client, "walk", 0)
            kill(server)
            world.serve(port)
            study = eventually(lambda: completed(client, "walk"), within_s=90.0)
            assert_each_trial_counted_once(client, study)
        assert_no_engine(world.model)

    def test_engine(self, either_world: World) -> None:
        world, port = either_world, free_port()
        world.serve(port)
        world.worker(port)
        create(world, port, long_windows(world.model))
        with world.client(port) as client:
            await_phase(client, "walk", 0)
            kill_engine(world.model)
            study = eventually(lambda: completed(client, "walk"), within_s=90.0)
            assert_each_trial_counted_once(client, study)
            assert client.trials("walk")[0].attempt == 2
        assert_no_engine(world.model)


@pytest.mark.real_vllm
@pytest.mark.timeout(900)
def test_every_part_killed_once_on_the_real_vllm(real_world: World) -> None:
    world, port = real_world, free_port()
    args = {
        "load_format": "dummy",
        "enforce_eager": True,
        "max_model_len": 1024,
        "gpu_memory_utilization": memory_share(),
    }
    study = long_windows(
        world.model,
        engine={"model": str(world.model), "args": args},
        budget={"trials": 3},
    )
    server, worker = world.serve(port), world.worker(port)
    create(world, port, study)
    with world.client(port) as client:
        await_phase(client, "walk", 0, within_s=200.0)
        kill(worker)
        assert_no_engine(world.model)
        world.worker(port)
        await_phase(client, "walk", 0, within_s=200.0)
        kill(server)
        world.serve(port)
        await_phase(client, "walk", 1, within_s=200.0)
        kill_engine(world.model)
        ended = eventually(lambda: completed(client, "walk"), within_s=400.0)
        assert_each_trial_counted_once(client, ended)
    assert_no_engine(world.model)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"

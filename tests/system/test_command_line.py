"""The command line on whole systems whose vLLM is the stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from tests.system.conftest import World, document, engines_of, eventually, free_port, study_of, trial_in


class TestWithAServer:
    def test_walk_from_a_file_to_a_recommendation(self, world: World) -> None:
        file, port = world.write(study_of(world.model)), free_port()
        server = ("--server", f"http://127.0.0.1:{port}")
        assert "configurations" in world.run("study", "validate", file).stdout
        world.serve(port)
        created = document(world.run("study", "create", file, "--draft", "--json", *server).stdout)
        assert created["state"] == "draft"
        assert document(world.run("study", "resume", "walk", "--json", *server).stdout)["state"] == "running"
        world.worker(port)
        watched = world.run("study", "watch", "walk", *server)
        assert watched.returncode == 0, world.logs()
        assert "4 of 4 trials ended" in watched.stdout

        shown = document(world.run("study", "show", "walk", "--json", *server).stdout)
        assert shown["state"] == "completed"
        assert [trial["number"] for trial in shown["trials"]] == [0, 1, 2, 3]
        assert shown["trials"][0]["origin"] == "baseline"
        refused = [trial for trial in shown["trials"] if trial["state"] == "infeasible"]
        assert refused
        assert refused[0]["failure"]["kind"] == "kv_cache_too_small"
        assert shown["recommendation"]["figures"]["output_tokens_per_s"]["recommended"] > 0

        recommended = world.run("study", "recommend", "walk", *server).stdout
        assert f"vllm serve {world.model}" in recommended
        assert "vLLM's defaults" in recommended
        assert "kv_cache_too_small" in world.run("study", "trials", "walk", *server).stdout
        assert document(world.run("study", "list", "--json", *server).stdout)[0]["name"] == "walk"
        workers = document(world.run("worker-list", "--json", *server).stdout)
        assert [(worker["name"], worker["vllm_version"]) for worker in workers] == [("tested", "0.32.0")]

    def test_creating_twice_is_harmless_and_another_study_needs_another_name(self, world: World) -> None:
        file = world.write(study_of(world.model))
        assert world.run("study", "create", file).returncode == 0
        assert world.run("study", "create", file).returncode == 0
        again = world.run("study", "create", world.write(study_of(world.model, seed=1)))
        assert again.returncode == 2
        assert "walk" in again.stderr

    def test_pause_and_cancel_without_a_server(self, world: World) -> None:
        world.run("study", "create", world.write(study_of(world.model)))
        assert document(world.run("study", "pause", "walk", "--json").stdout)["state"] == "paused"
        assert document(world.run("study", "cancel", "walk", "--json").stdout)["state"] == "cancelled"
        refused = world.run("study", "resume", "walk")
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1


class TestLocalRun:
    def test_runs_prints_and_writes_the_recommendation(self, world: World) -> None:
        done = world.run("study", "run", world.write(study_of(world.model)), "--output", "results")
        assert done.returncode == 0, done.stderr
        assert "[1/4] trial 0: vLLM's defaults" in done.stdout
        assert "infeasible: kv_cache_too_small" in done.stdout
        assert "4 of 4 trials ended" in done.stdout
        assert f"vllm serve {world.model}" in done.stdout
        files = {file.name: file for file in (world.folder / "results").iterdir()}
        assert set(files) == {"recommended.yaml", "serve.sh", "study.json"}
        assert yaml.safe_load(files["recommended.yaml"].read_text())["model"] == str(world.model)
        assert json.loads(files["study.json"].read_text())["state"] == "completed"
        assert os.access(files["serve.sh"], os.X_OK)
        assert engines_of(world.model) == []

    def test_runs_again_to_the_same_answer_at_once(self, world: World) -> None:
        file = world.write(study_of(world.model, budget={"trials": 2}))
        first = world.run("study", "run", file)
        second = world.run("study", "run", file)
        assert first.returncode == second.returncode == 0
        assert "Recommended" in second.stdout
        assert "has ended already" in second.stderr
        assert "trial 0:" not in second.stdout
        assert len(document(world.run("study", "trials", "walk", "--json").stdout)) == 2

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupt_drains_and_the_same_command_goes_on(self, world: World, number: int) -> None:
        file, port = world.write(study_of(world.model)), free_port()
        running = world.start("study", "run", file, "--port", str(port))
        with world.client(port) as client:
            eventually(lambda: trial_in(client, "walk", 0, "measuring"))
        running.send_signal(number)
        assert running.wait(timeout=60) == 130, world.logs()
        assert engines_of(world.model) == []
        shown = document(world.run("study", "show", "walk", "--json").stdout)
        assert shown["state"] == "paused"
        done = world.run("study", "run", file)
        assert done.returncode == 0, done.stderr
        trials = document(world.run("study", "trials", "walk", "--json").stdout)
        assert [trial["number"] for trial in trials] == [0, 1, 2, 3]
        assert trials[0]["attempt"] == 1, "a drained attempt is not lost"

    def test_a_dead_worker_is_replaced(self, world: World) -> None:
        file, port = world.write(study_of(world.model)), free_port()
        running = world.start("study", "run", file, "--port", str(port))
        with world.client(port) as client:
            eventually(lambda: trial_in(client, "walk", 0, "measuring"))
        worker = worker_of(running)
        os.kill(worker, signal.SIGKILL)
        assert running.wait(timeout=90) == 0, world.logs()
        assert engines_of(world.model) == []

    def test_killed_command_leaves_nothing_and_the_same_command_goes_on(self, world: World) -> None:
        file, port = world.write(study_of(world.model)), free_port()
        running = world.start("study", "run", file, "--port", str(port))
        with world.client(port) as client:
            eventually(lambda: trial_in(client, "walk", 0, "measuring"))
        running.kill()
        running.wait()
        eventually(lambda: engines_of(world.model) == [])
        done = world.run("study", "run", file, within_s=90.0)
        assert done.returncode == 0, done.stderr

    def test_a_study_that_cannot_pass_says_why(self, world: World) -> None:
        world.environment["STAND_IN"] = json.dumps({"fail": "missing_module"})
        done = world.run("study", "run", world.write(study_of(world.model)))
        assert done.returncode == 1
        assert "No module named 'vllm._C'" in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_a_study_of_which_every_trial_fails_says_why(self, world: World) -> None:
        world.environment["STAND_IN"] = json.dumps({"refuse": 500})
        knobs = {"preset": "none", "knobs": {"max_num_seqs": [4, 8, 16, 32, 64]}}
        study = study_of(world.model, space=knobs, budget={"trials": 6, "attempts": 1})
        done = world.run("study", "run", world.write(study), within_s=120.0)
        assert done.returncode == 1
        assert "study walk has failed: " in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_two_runs_at_once_do_not_share_a_worker(self, world: World) -> None:
        port, study = free_port(), study_of(world.model)
        study["workload"]["measure_s"] = 20.0
        world.start("study", "run", world.write(study), "--port", str(port))
        with world.client(port) as client:
            eventually(lambda: trial_in(client, "walk", 0, "measuring"))
        done = world.run("study", "run", world.write(study_of(world.model, name="second")))
        assert done.returncode == 2
        assert "a worker of this name runs on this machine already" in done.stderr
        assert document(world.run("study", "show", "second", "--json").stdout)["state"] == "paused"

    def test_quickstart_shows_the_whole_way(self, world: World) -> None:
        done = world.run("quickstart", within_s=200.0)
        assert done.returncode == 0, done.stderr
        assert "8 of 8 trials ended" in done.stdout
        assert "vllm serve" in done.stdout
        shown = document(world.run("study", "show", "quickstart", "--json").stdout)
        states = [trial["state"] for trial in shown["trials"]]
        assert len(states) == 8
        assert "infeasible" in states
        assert shown["recommendation"]["figures"]["output_tokens_per_s"]["baseline"] > 0

    def test_tune_prints_its_study_file_and_goes_on_from_it(self, world: World) -> None:
        done = world.run(
            *("tune", world.model, "--name", "tuned", "--trials", "2", "--input", "20", "--output", "8"),
            *("--concurrency", "4", "--warmup", "0.2", "--measure", "0.5", "--gpus", "0"),
        )
        assert done.returncode == 0, done.stderr
        file = Path(done.stdout.split("Study file: ")[1].splitlines()[0])
        assert yaml.safe_load(file.read_text())["workload"]["arrivals"] == {
            "kind": "closed",
            "concurrency": 4,
        }
        again = world.run("study", "run", file)
        assert again.returncode == 0
        assert "Recommended" in again.stdout


class TestTokens:
    def test_are_made_listed_and_revoked(self, world: World) -> None:
        world.run("token", "create", "--name", "other", "--scope", "worker")
        made = world.run("token", "create", "--name", "me", "--scope", "admin")
        secret = made.stdout.strip()
        assert secret
        assert secret not in world.run("token", "list").stdout
        port = free_port()
        world.start("serve", "--port", str(port))
        server = ("--server", f"http://127.0.0.1:{port}")
        eventually(lambda: world.run("study", "list", *server, "--token", secret).returncode == 0)
        assert world.run("study", "list", *server).returncode == 2
        assert world.run("token", "revoke", "me").returncode == 0
        refused = world.run("study", "list", *server, "--token", secret)
        assert refused.returncode == 2

    def test_an_expired_token_is_one_line_that_says_what_to_do(self, world: World) -> None:
        world.run("token", "create", "--name", "lasting", "--scope", "viewer")
        short = world.run(
            "token", "create", "--name", "short", "--scope", "viewer", "--expires", "1s"
        ).stdout.strip()
        port = free_port()
        world.start("serve", "--port", str(port))
        command = ("study", "list", "--server", f"http://127.0.0.1:{port}", "--token", short)

        def refused() -> subprocess.CompletedProcess[str] | None:
            done = world.run(*command)
            return done if "expired" in done.stderr else None

        done = eventually(refused)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "nightshift token create" in done.stderr


def worker_of(command: subprocess.Popen[bytes]) -> int:
    """The worker that a local run has started."""
    children = psutil.Process(command.pid).children()
    return next(child.pid for child in children if "workers" in child.cmdline())


def test_module_is_the_console_script(world: World) -> None:
    assert world.run("--help").stdout.startswith("Usage: nightshift")

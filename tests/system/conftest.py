"""Whole systems of real processes: control plane, worker, engine, command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from app.client import ClientError, ControlPlaneClient, Study, Trial
from workers.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "stand_in"
REAL_PYTHON = Path(os.environ.get("NIGHTSHIFT_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
PATIENCE_S = 60.0
ENGINE = "vllm.entrypoints"


def eventually(what: Callable[[], Any], *, within_s: float = PATIENCE_S, every_s: float = 0.05) -> Any:
    """The first true value of ``what``; fails when there is none in time."""
    pause = threading.Event()
    deadline = time.monotonic() + within_s
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s"
        pause.wait(every_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def engines_of(model: Path) -> list[psutil.Process]:
    """The processes, keepers included, whose command line names the model's folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(ENGINE in part for part in line) and str(model) in line:
            found.append(process)
    return found


@pytest.fixture(autouse=True, scope="session")
def hear_interrupts() -> None:
    """Shells make what runs in the background deaf to SIGINT, and every process below inherits that.

    A signal that is handled here is handled as usual in the processes that the tests start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class World:
    """The environment that every process of one test gets, and the processes that it started."""

    folder: Path
    model: Path
    database_url: str
    interpreter: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *arguments: str | Path, within_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run ``nightshift`` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start ``nightshift`` in the background."""
        log = (self.folder / f"{arguments[0]}-{len(self.started)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", *map(str, arguments)],
                cwd=self.folder,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def serve(self, port: int) -> subprocess.Popen[bytes]:
        """Start a control plane and wait until it answers."""
        process = self.start("serve", "--port", str(port))
        eventually(lambda: self.answers(port))
        return process

    def answers(self, port: int) -> bool:
        """Whether a control plane answers there."""
        with contextlib.suppress(ClientError), self.client(port) as client:
            client.studies()
            return True
        return False

    def worker(self, port: int, name: str = "tested") -> subprocess.Popen[bytes]:
        """Start a worker."""
        return self.start("worker", "--server", f"http://127.0.0.1:{port}", "--name", name, "--gpus", "none")

    def client(self, port: int) -> ControlPlaneClient:
        return ControlPlaneClient(f"http://127.0.0.1:{port}", timeout_s=10.0)

    def write(self, study: dict[str, Any]) -> Path:
        """Write a study file."""
        file = self.folder / f"{study['name']}.yaml"
        file.write_text(yaml.safe_dump(study))
        return file

    def logs(self) -> str:
        """What the background processes said, for a failing test."""
        return "\n".join(
            f"--- {file.name}\n{file.read_text()[-3000:]}" for file in sorted(self.folder.glob("*.log"))
        )

    def end(self) -> None:
        """End every process of the test."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def make_world(
    folder: Path, model: Path, database_url: str, interpreter: Path, python_path: Sequence[Path]
) -> World:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")}
    environment |= {
        "NIGHTSHIFT_DATABASE_URL": database_url,
        "NIGHTSHIFT_HOME": str(folder / "home"),
        "NIGHTSHIFT_VLLM_PYTHON": str(interpreter),
        "NIGHTSHIFT_LEASE_TTL_S": "3",
        "NIGHTSHIFT_LOOP_INTERVAL_S": "0.2",
        "PYTHONPATH": os.pathsep.join(map(str, python_path)),
    }
    return World(folder, model, database_url, interpreter, environment)


@pytest.fixture
def world(tmp_path: Path, model_folder: Path, sqlite_url: str) -> Iterator[World]:
    """A world on SQLite whose vLLM is the stand-in."""
    made = make_world(tmp_path, model_folder, sqlite_url, Path(sys.executable), [STAND_IN, ROOT])
    yield made
    made.end()


@pytest.fixture
def either_world(tmp_path: Path, model_folder: Path, database_url: str) -> Iterator[World]:
    """A world on SQLite and on PostgreSQL whose vLLM is the stand-in."""
    made = make_world(tmp_path, model_folder, database_url, Path(sys.executable), [STAND_IN, ROOT])
    yield made
    made.end()


@pytest.fixture
def real_world(tmp_path: Path, model_folder: Path, database_url: str) -> Iterator[World]:
    """A world on SQLite and on PostgreSQL whose vLLM is the real one."""
    if not REAL_PYTHON.exists():
        pytest.fail(f"there is no real vLLM at {REAL_PYTHON}; run scripts/install-vllm")
    made = make_world(tmp_path, model_folder, database_url, REAL_PYTHON, [ROOT])
    yield made
    made.end()


def study_of(model: Path, **changes: Any) -> dict[str, Any]:
    """A study with windows of a second. With 1 GiB of KV cache the model's context does not fit."""
    return {
        "name": "walk",
        "engine": {"model": str(model), "args": {"load_format": "dummy"}},
        "hardware": {"gpus": 0},
        "workload": {
            "prompts": {"input_tokens": 20, "output_tokens": 8},
            "arrivals": {"kind": "closed", "concurrency": 4},
            "warmup_s": 0.2,
            "measure_s": 1.0,
        },
        "space": {
            "preset": "none",
            "knobs": {"max_num_seqs": [4, 8, 16], "VLLM_CPU_KVCACHE_SPACE": [1, 3]},
        },
        "budget": {"trials": 4},
        **changes,
    }


def trial_in(client: ControlPlaneClient, study: str, number: int, phase: str) -> Trial | None:
    """The trial if it is in that phase now; ``None`` too while nothing answers."""
    with contextlib.suppress(ClientError):
        trials = {trial.number: trial for trial in client.trials(study)}
        trial = trials.get(number)
        return trial if trial is not None and trial.state == "running" and trial.phase == phase else None
    return None


def completed(client: ControlPlaneClient, name: str) -> Study | None:
    """The study once it has completed; fails at once when it ends otherwise."""
    with contextlib.suppress(ClientError):
        study = client.study(name)
        assert study.state not in {"failed", "cancelled"}, study.reason
        return study if study.state == "completed" else None
    return None


def document(output: str) -> Any:
    return json.loads(output)

"""What ``nightshift doctor`` finds and what it says mends it."""

from __future__ import annotations

import resource
import socket
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.cli.doctor import (
    ProbeError,
    Status,
    check_compiler,
    check_database,
    check_disk,
    check_gpu,
    check_open_files,
    check_port,
    check_shared_memory,
    check_vllm,
    examine,
    probe_vllm,
)
from app.settings import Settings
from workers.gpu import Gpu


def interpreter(folder: Path, script: str) -> Path:
    """A stand-in for vLLM's interpreter that does what the shell script says."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def answering(folder: Path, cuda: str, gpus: int) -> Path:
    answer = f'{{"vllm": "0.32.0", "torch": "2.13.0", "cuda": {cuda}, "python": "3.11.7", "gpus": {gpus}}}'
    return interpreter(folder, f"echo noise; echo '{answer}'")


class TestVllm:
    def test_no_interpreter(self, tmp_path: Path) -> None:
        check = check_vllm(tmp_path / "absent", has_gpu=False)
        assert check.status is Status.BROKEN
        assert "make quickstart" in check.fix

    def test_import_error_is_quoted(self, tmp_path: Path) -> None:
        python = interpreter(
            tmp_path, "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'vllm'\" >&2; exit 1"
        )
        check = check_vllm(python, has_gpu=False)
        assert check.status is Status.BROKEN
        assert "ModuleNotFoundError: No module named 'vllm'" in check.found

    def test_our_own_interpreter_has_no_vllm(self) -> None:
        with pytest.raises(ProbeError, match="ModuleNotFoundError"):
            probe_vllm(Path(sys.executable))

    def test_cpu_build_without_gpu_is_fine(self, tmp_path: Path) -> None:
        check = check_vllm(answering(tmp_path, "null", 0), has_gpu=False)
        assert check.status is Status.OK
        assert "vLLM 0.32.0" in check.found

    @pytest.mark.parametrize(
        ("cuda", "gpus", "has_gpu", "fix"),
        [
            ("null", 0, True, "CPU build beside a GPU"),
            ('"13.0"', 0, False, "CUDA build without a GPU"),
            ('"13.0"', 0, True, "driver is older than CUDA 13.0"),
        ],
    )
    def test_build_that_does_not_fit_the_machine(
        self, tmp_path: Path, cuda: str, gpus: int, has_gpu: bool, fix: str
    ) -> None:
        check = check_vllm(answering(tmp_path, cuda, gpus), has_gpu=has_gpu)
        assert check.status is Status.BROKEN
        assert fix in check.fix


class TestMachine:
    def test_no_gpu_is_fine(self) -> None:
        assert check_gpu([]).status is Status.OK

    def test_no_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert check_compiler().fix.startswith("apt-get install g++")

    def test_port_in_use(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            check = check_port(server.getsockname()[1])
        assert check.status is Status.WARNING
        assert "--port" in check.fix

    def test_disk_is_measured_where_the_home_will_be(self, tmp_path: Path) -> None:
        check = check_disk(tmp_path / "not" / "made" / "yet")
        assert "GiB free at" in check.found
        assert not (tmp_path / "not").exists()

    def test_shared_memory_that_is_not_there(self, tmp_path: Path) -> None:
        assert check_shared_memory(tmp_path / "absent").status is Status.WARNING

    def test_open_files(self) -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        try:
            assert "ulimit -n" in check_open_files().fix
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


class TestDatabase:
    def test_one_that_is_not_made_yet_stays_so(self, tmp_path: Path) -> None:
        check = check_database(Settings(home=tmp_path / "home"))
        assert check.status is Status.OK
        assert "not made yet" in check.found
        assert not (tmp_path / "home" / "nightshift.db").exists()

    def test_one_that_does_not_answer_hides_its_password(self) -> None:
        url = SecretStr("postgresql+psycopg://tuner:hunter2@127.0.0.1:1/tuner")
        check = check_database(Settings(database_url=url))
        assert check.status is Status.BROKEN
        assert "hunter2" not in check.found


def test_every_broken_or_doubtful_thing_has_a_fix(tmp_path: Path) -> None:
    checks = examine(Settings(home=tmp_path), port=1, interpreter=tmp_path / "absent")
    assert [check.name for check in checks if check.status is not Status.OK and not check.fix] == []
    assert {"python", "vllm", "gpu", "database", "port", "disk", "open files"} <= {
        check.name for check in checks
    }


def test_a_gpu_is_named_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pynvml.nvmlInit", lambda: None)
    monkeypatch.setattr("pynvml.nvmlShutdown", lambda: None)
    monkeypatch.setattr("pynvml.nvmlSystemGetDriverVersion", lambda: "580.1")
    found = check_gpu([Gpu("0", "NVIDIA H200", 141 * 2**30)]).found
    assert found == "NVIDIA H200 141 GiB; driver 580.1"

"""Bad input: one line on standard error that names field, value and fix; exit code 2; never a traceback."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.main import run


def study(model: str = "org/model", **changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "engine": {"model": model},
        "hardware": {"gpus": 0},
        "workload": {
            "prompts": {"input_tokens": 8, "output_tokens": 8},
            "arrivals": {"kind": "closed", "concurrency": 2},
        },
        "space": {"preset": "none", "knobs": {"max_num_seqs": [8, 16]}},
        **changes,
    }


def knobs(**named: Any) -> dict[str, Any]:
    return study(space={"preset": "none", "knobs": named})


class Line:
    """Runs a command that must be refused, and returns the one line that it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def of(self, *arguments: str) -> str:
        code = run(arguments)
        captured = self.capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        lines: list[str] = captured.err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("nightshift: ")
        return lines[0]

    def of_study(self, data: object, command: str = "validate") -> str:
        file = self.folder / "study.yaml"
        file.write_text(yaml.safe_dump(data))
        return self.of("study", command, str(file))


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, capsys)


class TestStudyFile:
    def test_an_unknown_knob(self, line: Line) -> None:
        said = line.of_study(knobs(max_num_sequences=[8, 16]))
        assert "space.knobs.max_num_sequences" in said
        assert "max_num_seqs" in said

    def test_low_above_high(self, line: Line) -> None:
        said = line.of_study(knobs(max_num_seqs={"low": 64, "high": 8}))
        assert "space.knobs.max_num_seqs" in said
        assert "low 64 is above high 8" in said

    def test_an_objective_that_no_metric_defines(self, line: Line) -> None:
        said = line.of_study(study(objectives=[{"metric": "speed"}]))
        assert "objectives.0.metric" in said
        assert "output_tokens_per_s" in said

    @pytest.mark.parametrize("command", ["run", "tune"])
    def test_a_model_folder_that_does_not_exist(self, line: Line, command: str) -> None:
        if command == "run":
            said = line.of_study(study("/no/such/model"), "run")
        else:
            code = run(["tune", "/no/such/model"])
            said = line.capsys.readouterr().err
            assert code == 2
        assert "engine.model: there is no such folder (got '/no/such/model')" in said

    def test_a_misspelt_field(self, line: Line) -> None:
        assert "engin" in line.of_study({**study(), "engin": {}})

    @pytest.mark.parametrize("data", [None, [], "text", 3])
    def test_a_file_that_is_no_mapping(self, line: Line, data: object) -> None:
        assert "is not a mapping" in line.of_study(data)

    def test_more_gpus_than_there_are(self, line: Line, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        said = line.of_study(study(str(tmp_path), hardware={"gpus": 64}), "run")
        assert "hardware.gpus" in said


class TestServerAndDatabase:
    @pytest.mark.parametrize("command", ["serve", "run"])
    def test_a_port_in_use(self, line: Line, tmp_path: Path, command: str) -> None:
        (tmp_path / "config.json").write_text("{}")
        file = tmp_path / "study.yaml"
        file.write_text(yaml.safe_dump(study(str(tmp_path))))
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            arguments = ["serve"] if command == "serve" else ["study", "run", str(file)]
            said = line.of(*arguments, "--port", port)
        assert port in said
        assert "in use" in said
        assert "--port" in said

    @pytest.mark.parametrize(
        "command",
        [["serve", "--port", "0"], ["study", "list"], ["db", "upgrade"], ["db", "current"]],
        ids=" ".join,
    )
    def test_a_database_that_cannot_be_reached(
        self, line: Line, monkeypatch: pytest.MonkeyPatch, command: list[str]
    ) -> None:
        monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "postgresql+psycopg://tuner:hunter2@127.0.0.1:1/tuner")
        said = line.of(*command)
        assert "NIGHTSHIFT_DATABASE_URL" in said
        assert "127.0.0.1:1" in said
        assert "hunter2" not in said

    def test_a_database_of_another_kind(self, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "mysql://root@127.0.0.1/tuner")
        assert "postgresql+psycopg" in line.of("study", "list")

    def test_a_server_that_does_not_answer(self, line: Line) -> None:
        said = line.of("study", "list", "--server", "http://127.0.0.1:1")
        assert "http://127.0.0.1:1" in said
        assert "nightshift serve" in said

    def test_a_setting_that_is_no_number(self, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_LEASE_TTL_S", "soon")
        assert "NIGHTSHIFT_LEASE_TTL_S" in line.of("study", "list")

    def test_a_study_that_does_not_exist(self, line: Line) -> None:
        assert "absent" in line.of("study", "show", "absent")

    def test_a_token_file_that_does_not_exist(self, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_TOKEN_FILE", "/no/such/token")
        assert "/no/such/token" in line.of("study", "list", "--server", "http://127.0.0.1:1")

    def test_a_serving_address_beyond_loopback_without_a_token(self, line: Line) -> None:
        said = line.of("serve", "--host", "0.0.0.0", "--port", "0")
        assert "nightshift token create" in said


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["tune", "org/model", "--goal", "speed"], "goal"),
            (["tune", "org/model", "--rate", "1", "--concurrency", "2"], "--rate"),
            (["tune", "org/model", "--trials", "0", "--gpus", "0"], "trials"),
            (["tune"], "MODEL"),
            (["study", "show"], "see `nightshift study show --help`"),
            (["study", "fly"], "see `nightshift study --help`"),
            (["token", "create", "--name", "x", "--expires", "soon"], "--expires"),
            (["serve", "--port", "99999"], "nightshift serve --help"),
            (["worker", "--name", "no spaces"], "WORKER_NAME"),
            (["diagnose", "/no/such/file"], "/no/such/file"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_wrong_ones_are_named(self, line: Line, arguments: list[str], word: str) -> None:
        assert word in line.of(*arguments)


class TestHelp:
    COMMANDS = (
        *("tune", "quickstart", "serve", "worker", "worker-list", "doctor", "diagnose"),
        *("study validate", "study create", "study run", "study list", "study show", "study trials"),
        *("study watch", "study recommend", "study pause", "study resume", "study cancel"),
        *("token create", "token list", "token revoke", "db upgrade", "db current"),
    )

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_shows_an_example(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run([*command.split(), "--help"]) == 0
        text = capsys.readouterr().out
        assert "Example" in text
        assert f"nightshift {command}" in text

    @pytest.mark.parametrize("group", [[], ["study"], ["token"], ["db"]])
    def test_a_group_alone_shows_its_help(self, group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(group) == 0
        assert "Commands:" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["--version"]) == 0
        assert capsys.readouterr().out.strip()

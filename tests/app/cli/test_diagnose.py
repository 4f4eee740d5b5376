"""``nightshift diagnose`` as a person and a program use it."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from app.cli.diagnose import diagnose

CASES = Path(__file__).parents[2] / "failures_cases"
LOGS = CASES / "logs"
COMMAND = typer.Typer()
COMMAND.command()(diagnose)


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(COMMAND, list(arguments), input=stdin)


def as_json(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    result = run(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


def test_a_log_is_diagnosed() -> None:
    answer = as_json(str(LOGS / "h200-oom-profile.log"))
    assert (answer["kind"], answer["verdict"]) == ("oom_device", "infeasible")
    assert (answer["retryable"], answer["fatal"]) == (False, False)
    assert "max_num_batched_tokens" in answer["advice"]
    assert answer["numbers"]["asked_bytes"] == pytest.approx(37.38 * 2**30)
    assert "torch.OutOfMemoryError" in answer["excerpt"][-1]


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_a_case_file_is_diagnosed_with_the_facts_that_it_holds(path: Path) -> None:
    answer, right = as_json(str(path)), json.loads(path.read_text())["expected"]
    keys = ("kind", "verdict", "retryable", "fatal")
    assert {key: answer[key] for key in keys} == {key: right[key] for key in keys}


def test_standard_input_takes_a_log_as_well_as_a_case() -> None:
    log = (LOGS / "h200-one-request.log").read_text()
    case = (CASES / "gpu-held-by-another-process.json").read_text()
    assert as_json("-", stdin=log)["kind"] == "kv_cache_too_small"
    assert as_json("-", stdin=case)["verdict"] == "failed"


def test_nothing_wrong_is_said_so_and_is_no_error() -> None:
    healthy = str(LOGS / "cpu-healthy.log")
    answer = as_json(healthy)
    assert (answer["kind"], answer["verdict"], answer["numbers"]) == (None, "ok", {})
    assert "Nothing" in run(healthy).stdout


def test_people_read_what_whose_fault_what_to_do_and_the_lines() -> None:
    result = run(str(LOGS / "h200-free-memory.log"))
    assert result.exit_code == 0
    assert "Free memory on device cuda:0 (78.77/139.8 GiB)" in result.stdout
    assert "the environment's (memory_budget): another attempt may pass" in result.stdout
    assert "nvidia-smi" in result.stdout
    assert "asked_bytes 125.82 GiB" in result.stdout
    assert "The lines that decided:" in result.stdout


def test_a_fatal_failure_says_that_nothing_can_pass() -> None:
    assert "no configuration can pass" in run(str(CASES / "removed-flag.json")).stdout


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("absent.log", None, "No such file"),
        ("empty.log", b"\n", "is empty"),
        ("image.png", b"\x89PNG\0\0", "is no text"),
        ("broken.json", b'{"log": [', "is no JSON"),
        ("list.json", b"[1, 2]", "no JSON object"),
        ("other.json", b'{"phase": "starting"}', "log"),
        ("wrong.json", b'{"log": ["x"], "phase": "asleep"}', "phase"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    result = run(str(tmp_path / name), "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_folder_is_bad_input(tmp_path: Path) -> None:
    assert run(str(tmp_path)).exit_code == 2


def test_bytes_that_are_no_utf8_do_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "latin.log"
    path.write_bytes(b"d\xe9but\n" + (LOGS / "cpu-port-in-use.log").read_bytes())
    assert as_json(str(path))["kind"] == "port_in_use"

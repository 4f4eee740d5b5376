"""``nightshift diagnose``: what went wrong in a vLLM log, whose fault it was, and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import JsonOption
from app.cli.output import complain, print_json, print_pairs
from tuner.errors import FieldError
from tuner.protocol import Failure, Verdict
from workers.failures import Evidence, classify, evidence_of_case, evidence_of_log

__all__ = ["diagnose"]

FAULTS = {
    Verdict.INFEASIBLE: "the configuration's",
    Verdict.FAILED: "the environment's",
}
HEALTHY = "Nothing in it says that the engine failed."
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A vLLM log, a case file (JSON), or - for standard input.")
]


def diagnose(file: FileArgument, as_json: JsonOption = False) -> None:
    """Say what went wrong in a vLLM log, and what to do.

    Takes the output of vLLM as it is, of any version, platform and number of processes, or a case file:
    a JSON object with "log" (lines) and, as far as known, "phase", "exit_code",
    "gpu_memory_used_before_bytes", "cgroup_oom_kills", "knobs", "args" and "env". Exits with 0 when it
    could read the input, also when nothing went wrong, and with 2 when it could not.

    \b
    Examples:
      nightshift diagnose vllm.log
      docker logs vllm 2>&1 | nightshift diagnose - --json
    """
    try:
        failure = classify(_evidence(file))
    except FieldError as error:
        complain(str(error))
        raise typer.Exit(2) from error
    if as_json:
        print_json(_plain(failure))
    else:
        _tell(failure)


def _evidence(file: str) -> Evidence:
    text = _read(file)
    if not text.strip():
        raise FieldError("FILE", file, problem="is empty", fix="give the output of vLLM, or a case file")
    case = _case(text, must_be=file.endswith(".json"))
    return evidence_of_log(text.splitlines()) if case is None else evidence_of_case(case)


def _read(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise FieldError("FILE", file, problem=problem, fix="name a file, or - for standard input") from error
    if b"\0" in raw:
        raise FieldError("FILE", file, problem="is no text", fix="give the output of vLLM, or a case file")
    return raw.decode("utf-8", errors="replace")


def _case(text: str, *, must_be: bool) -> dict[str, object] | None:
    """The case file that the text is, if it is one; a log may begin with a brace too."""
    try:
        data = json.loads(text)
    except ValueError as error:
        if must_be:
            raise FieldError(
                "FILE", text[:40], problem=f"is no JSON: {error}", fix="mend the case file"
            ) from error
        return None
    if isinstance(data, dict) and (must_be or "log" in data):
        return data
    if must_be:
        raise FieldError("FILE", text[:40], problem="is no JSON object", fix='write {"log": [lines], …}')
    return None


def _plain(failure: Failure | None) -> dict[str, object]:
    if failure is None:
        return {
            "kind": None,
            "verdict": Verdict.OK.value,
            "retryable": False,
            "fatal": False,
            "numbers": {},
            "advice": "",
            "message": HEALTHY,
            "excerpt": [],
        }
    return failure.model_dump(mode="json")


def _tell(failure: Failure | None) -> None:
    if failure is None:
        typer.echo(HEALTHY)
        return
    print_pairs(
        [
            ("What went wrong", " ".join(failure.message.split())),
            ("Whose fault", f"{FAULTS[failure.verdict]} ({failure.kind}){_consequence(failure)}"),
            ("What to do", failure.advice),
            (
                "Figures",
                ", ".join(f"{name} {_figure(name, value)}" for name, value in failure.numbers.items()),
            ),
        ]
    )
    if failure.excerpt:
        typer.echo("\nThe lines that decided:")
        for line in failure.excerpt:
            typer.echo(f"  {line}")


def _consequence(failure: Failure) -> str:
    if failure.fatal:
        return ": no configuration can pass until this is mended"
    return ": another attempt may pass" if failure.retryable else ": another attempt would fail as well"


def _figure(name: str, value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if name.endswith("_bytes") and value >= 2**20 else f"{value:g}"

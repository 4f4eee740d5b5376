"""``nightshift tune MODEL``: a study from a few options, with no file to write first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from app.cli.local import LocalRun, run_study
from app.cli.options import (
    GpusOption,
    HomeOption,
    PortOption,
    VllmPythonOption,
    local_settings,
    vllm_python,
)
from app.cli.study_file import study_from
from tuner.errors import FieldError
from tuner.protocol import ArgValue

__all__ = ["Goal", "Wish", "study_for", "tune"]


class Goal(StrEnum):
    """What to tune for: decides the objectives and the preset of knobs."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    BALANCED = "balanced"


OBJECTIVES = {
    Goal.THROUGHPUT: ("output_tokens_per_s", "e2e_p95_s"),
    Goal.LATENCY: ("e2e_p95_s", "output_tokens_per_s"),
    Goal.BALANCED: ("output_tokens_per_s", "e2e_p95_s"),
}
DEFAULT_CONCURRENCY = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the options of ``tune`` ask for.

    Attributes:
        bounds: highest value of a latency metric that a recommendation may have, in seconds.
        rate: requests per second of an open loop; ``None`` takes a closed loop of ``concurrency`` users.
        flags: fixed vLLM arguments as ``name=value``.
    """

    model: str
    goal: Goal = Goal.BALANCED
    name: str | None = None
    bounds: dict[str, float | None]
    input_tokens: int = 512
    output_tokens: int = 128
    concurrency: int | None = None
    rate: float | None = None
    warmup_s: float = 10.0
    measure_s: float = 30.0
    trials: int = 30
    hours: float | None = None
    gpus: int | None = None
    flags: tuple[str, ...] = ()


def study_for(wish: Wish) -> dict[str, Any]:
    """The study file that the options stand for, as plain data.

    Raises:
        FieldError: options that contradict each other, or a flag that is not ``name=value``.
    """
    engine: dict[str, Any] = {"kind": "vllm", "model": wish.model}
    if wish.flags:
        engine["args"] = dict(_flag(flag) for flag in wish.flags)
    study: dict[str, Any] = {"name": wish.name or _name_for(wish.model, wish.goal), "engine": engine}
    if wish.gpus is not None:
        study["hardware"] = {"gpus": wish.gpus}
    study["workload"] = {
        "prompts": {
            "kind": "synthetic",
            "input_tokens": {"mean": wish.input_tokens},
            "output_tokens": {"mean": wish.output_tokens},
        },
        "arrivals": _arrivals(wish),
        "warmup_s": wish.warmup_s,
        "measure_s": wish.measure_s,
    }
    study["space"] = {"preset": wish.goal.value}
    study["objectives"] = [{"metric": metric} for metric in OBJECTIVES[wish.goal]]
    slos = [{"metric": metric, "max": bound} for metric, bound in wish.bounds.items() if bound is not None]
    if slos:
        study["slos"] = slos
    budget = {"trials": wish.trials, "hours": wish.hours}
    study["budget"] = {key: value for key, value in budget.items() if value is not None}
    return study


def _arrivals(wish: Wish) -> dict[str, Any]:
    if wish.rate is None:
        return {"kind": "closed", "concurrency": wish.concurrency or DEFAULT_CONCURRENCY}
    if wish.concurrency is not None:
        raise FieldError(
            "--rate",
            wish.rate,
            problem="contradicts --concurrency",
            fix="give --rate for an open loop or --concurrency for a closed one",
        )
    return {"kind": "poisson", "rate_per_s": wish.rate}


def _flag(text: str) -> tuple[str, ArgValue]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise FieldError(
            "--flag", text, problem="is not NAME=VALUE", fix="write e.g. --flag max_model_len=4096"
        )
    parsed = yaml.safe_load(value)
    return name.removeprefix("--").replace("-", "_"), parsed if isinstance(
        parsed, bool | int | float
    ) else value


def _name_for(model: str, goal: Goal) -> str:
    """A study's name from a model's: ``meta-llama/Llama-2-7b-chat-hf`` → ``llama-2-7b-chat-hf-balanced``."""
    last = model.rstrip("/").rsplit("/", 1)[-1].lower()
    plain = re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._") or "model"
    return f"{plain[:80]}-{goal.value}"


def tune(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hugging Face id, or a folder with the model.")
    ],
    goal: Annotated[Goal, typer.Option(help="What to tune for.")] = Goal.BALANCED,
    ttft_p95: Annotated[
        float | None, typer.Option(help="Longest time to first token, p95, in seconds.")
    ] = None,
    tpot_p95: Annotated[
        float | None, typer.Option(help="Longest time per output token, p95, in seconds.")
    ] = None,
    e2e_p95: Annotated[float | None, typer.Option(help="Longest request, p95, in seconds.")] = None,
    input_tokens: Annotated[int, typer.Option("--input", help="Tokens of a prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option("--output", help="Tokens of an answer.")] = 128,
    concurrency: Annotated[int | None, typer.Option(help="Users of a closed loop.  [default: 64]")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second of an open loop, instead.")] = None,
    trials: Annotated[int, typer.Option(help="Configurations to try, vLLM's defaults included.")] = 30,
    hours: Annotated[float | None, typer.Option(help="Start no new trial after so many hours.")] = None,
    warmup: Annotated[float, typer.Option(help="Seconds of load before measuring.")] = 10.0,
    measure: Annotated[float, typer.Option(help="Seconds to measure.")] = 30.0,
    flag: Annotated[list[str] | None, typer.Option(help="Fixed vLLM flag, NAME=VALUE; repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the study.")] = None,
    gpus: GpusOption = None,
    port: PortOption = None,
    python: VllmPythonOption = None,
    home: HomeOption = None,
) -> None:
    """Find the best vLLM configuration for a model on this machine.

    Starts a control plane and a worker here, tries configurations on the real vLLM, and prints the
    `vllm serve` line that won, with its figures beside the defaults'. Prints the study file that the
    options stand for. Ctrl-C stops it; the same command goes on where it stopped.

    \b
    Examples:
      nightshift tune meta-llama/Llama-2-7b-chat-hf
      nightshift tune ./my-model --goal throughput --ttft-p95 2 --input 512 --output 128 --concurrency 256
      nightshift tune Qwen/Qwen3-0.6B --rate 10 --hours 2 --flag max_model_len=4096
    """
    wish = Wish(
        model=model,
        goal=goal,
        name=name,
        bounds={"ttft_p95_s": ttft_p95, "tpot_p95_s": tpot_p95, "e2e_p95_s": e2e_p95},
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        rate=rate,
        warmup_s=warmup,
        measure_s=measure,
        trials=trials,
        hours=hours,
        gpus=gpus,
        flags=tuple(flag or ()),
    )
    data = study_for(wish)
    spec = study_from(data)
    settings = local_settings(home)
    file = settings.home / "studies" / f"{spec.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    file.write_text(text, encoding="utf-8")
    typer.echo(f"{text}\nStudy file: {file}\n")
    run_study(spec, LocalRun(settings=settings, port=port, interpreter=vllm_python(python)))

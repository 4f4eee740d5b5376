"""The answer: never one that misses an SLO, always beside the baseline, or a reason."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from optuna.trial import FrozenTrial, TrialState, create_trial

from tests.tuner.conftest import spec_with
from tuner.argv import render_args, serve_line
from tuner.recommend import recommend
from tuner.suggestion import ORIGIN_ATTR


def trial(
    number: int, tokens: float, p95: float, *, origin: str = "sampler", ttft: float = 1.0, **more: Any
) -> FrozenTrial:
    metrics = {"output_tokens_per_s": tokens, "e2e_p95_s": p95, "ttft_p95_s": ttft}
    args = {} if origin == "baseline" else {"max_num_seqs": 2**number}
    made = create_trial(
        state=TrialState.COMPLETE,
        values=[tokens, p95],
        user_attrs={ORIGIN_ATTR: origin, "metrics": metrics, "args": args, "env": {}, **more},
        constraints={"feasible": -1.0, "slo:ttft_p95_s": ttft - 2.0},
    )
    made.number = number
    return made


SPEC = spec_with(slos=[{"metric": "ttft_p95_s", "max": 2.0}])
BASELINE = trial(0, 100.0, 4.0, origin="baseline")


def test_first_objective_decides() -> None:
    answer = recommend(SPEC, [BASELINE, trial(1, 150.0, 9.0), trial(2, 120.0, 1.0)])
    assert answer.trial_number == 1
    assert answer.figures["output_tokens_per_s"].ratio == pytest.approx(1.5)
    assert answer.figures["e2e_p95_s"].ratio == pytest.approx(2.25)


def test_second_objective_breaks_a_tie() -> None:
    assert recommend(SPEC, [BASELINE, trial(1, 150.0, 9.0), trial(2, 150.0, 1.0)]).trial_number == 2


def test_objective_to_minimise_is_minimised() -> None:
    spec = spec_with(objectives=[{"metric": "e2e_p95_s"}, {"metric": "output_tokens_per_s"}])
    trials = [trial(0, 100.0, 4.0, origin="baseline"), trial(1, 90.0, 1.0)]
    for made in trials:
        made.values = list(reversed(made.values))
    assert recommend(spec, trials).trial_number == 1


def test_slo_violator_is_never_recommended() -> None:
    answer = recommend(SPEC, [BASELINE, trial(1, 900.0, 1.0, ttft=2.5), trial(2, 110.0, 4.0)])
    assert answer.trial_number == 2
    assert [(slo.metric, slo.bound, slo.met) for slo in answer.slos] == [("ttft_p95_s", "<= 2", True)]
    assert 1 not in answer.pareto


def test_front_holds_what_nothing_beats() -> None:
    trials = [BASELINE, trial(1, 150.0, 9.0), trial(2, 120.0, 1.0), trial(3, 110.0, 2.0)]
    assert recommend(SPEC, trials).pareto == (1, 2)


def test_baseline_that_is_best_is_said_to_be() -> None:
    answer = recommend(SPEC, [BASELINE, trial(1, 90.0, 5.0)])
    assert answer.is_baseline
    assert "did better than vLLM's defaults" in answer.note
    assert answer.serve_line == "vllm serve a-model"


def test_every_configuration_misses_the_slo() -> None:
    answer = recommend(
        SPEC, [trial(0, 100.0, 4.0, origin="baseline", ttft=3.0), trial(1, 100.0, 4.0, ttft=4.0)]
    )
    assert answer.trial_number is None
    assert "ttft_p95_s by at least 50%" in answer.reason


def test_nothing_could_be_measured() -> None:
    pruned = create_trial(
        state=TrialState.PRUNED, user_attrs={"failure": "oom_device"}, constraints={"feasible": 1.0}
    )
    answer = recommend(SPEC, [pruned])
    assert (answer.trial_number, answer.serve_line) == (None, "")
    assert "oom_device" in answer.reason


def test_missing_baseline_is_no_number() -> None:
    answer = recommend(SPEC, [trial(1, 150.0, 9.0)])
    assert answer.figures["output_tokens_per_s"].baseline is None
    assert answer.figures["output_tokens_per_s"].ratio is None
    assert "no comparison" in answer.note


def test_figures_of_one_run_say_so() -> None:
    answer = recommend(SPEC, [BASELINE, trial(1, 150.0, 9.0)])
    assert not answer.confirmed
    assert "one measurement" in answer.note


def test_config_file_has_vllms_names() -> None:
    answer = recommend(SPEC, [BASELINE, trial(3, 150.0, 9.0)])
    assert yaml.safe_load(answer.config_yaml) == {"model": "a-model", "max-num-seqs": 8}


def test_serve_line_means_the_same_to_a_shell() -> None:
    args = {
        "max_num_seqs": 8,
        "enforce_eager": True,
        "async_scheduling": False,
        "dtype": "a b'c",
        "x": 0.9,
        "y": 2.0,
    }
    line = serve_line("/models/my model", args, {"VLLM_X": "1 2"})
    assert shlex.split(line) == ["VLLM_X=1 2", "vllm", "serve", "/models/my model", *render_args(args)]
    assert render_args(args)[:4] == ["--max-num-seqs", "8", "--enforce-eager", "--no-async-scheduling"]
    assert render_args(args)[-4:] == ["--x", "0.9", "--y", "2"]

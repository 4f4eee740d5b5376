"""The answer: never one that misses an SLO, always beside the baseline, or a reason."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from tests.tuner.conftest import spec_with
from tuner.argv import render_args, serve_line
from tuner.recommend import Recommendation, recommend
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
        constraints={"feasible": -1.0, "slo:ttft_p95_s": ttft / 2.0 - 1.0},
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


def test_config_file_holds_values_that_vllm_parses_and_names_the_environment() -> None:
    args = {"max_num_seqs": 8.0, "gpu_memory_utilization": 0.9, "async_scheduling": False, "dtype": "no"}
    made = trial(1, 150.0, 9.0, args=args, env={"VLLM_CPU_KVCACHE_SPACE": "2"})
    text = recommend(SPEC, [made]).config_yaml
    assert yaml.safe_load(text) == {
        "model": "a-model",
        "max-num-seqs": 8,
        "gpu-memory-utilization": 0.9,
        "async-scheduling": False,
        "dtype": "no",
    }
    assert "max-num-seqs: 8\n" in text
    assert text.startswith("# in the environment: VLLM_CPU_KVCACHE_SPACE='2'\n")


def test_figure_of_an_slo_that_is_missing_is_not_met() -> None:
    metrics = {"output_tokens_per_s": 900.0, "e2e_p95_s": 1.0}
    silent = trial(1, 900.0, 1.0, metrics=metrics)
    assert recommend(SPEC, [BASELINE, silent]).trial_number == 0


def test_trial_that_others_added_is_no_configuration() -> None:
    foreign = create_trial(state=TrialState.COMPLETE, values=[999.0, 0.1])
    foreign.number = 2
    assert recommend(SPEC, [BASELINE, foreign]).trial_number == 0


def test_equal_trials_leave_it_with_the_first() -> None:
    assert recommend(SPEC, [trial(0, 5.0, 1.0, origin="baseline"), trial(1, 5.0, 1.0)]).is_baseline


def test_running_and_unfeasible_trials_are_not_compared() -> None:
    running = create_trial(state=TrialState.RUNNING, user_attrs={"args": {}, "env": {}})
    assert recommend(SPEC, [BASELINE, running]).pareto == (0,)


def test_ratio_to_nothing_is_no_number() -> None:
    idle = trial(0, 0.0, 4.0, origin="baseline")
    assert recommend(SPEC, [idle, trial(1, 10.0, 4.0)]).figures["output_tokens_per_s"].ratio is None


FIGURES = st.floats(0.5, 100.0)


@given(st.lists(st.tuples(FIGURES, FIGURES, st.floats(0.5, 4.0)), min_size=1, max_size=12))
def test_what_is_recommended_meets_the_slo_and_nothing_that_does_is_better(
    rows: list[tuple[float, float, float]],
) -> None:
    trials = [trial(n, tokens, p95, ttft=ttft) for n, (tokens, p95, ttft) in enumerate(rows)]
    admissible = [(tokens, -p95) for tokens, p95, ttft in rows if ttft <= 2.0]
    answer = recommend(SPEC, trials)
    if answer.trial_number is None:
        assert admissible == []
        assert answer.reason
    else:
        tokens, p95, ttft = rows[answer.trial_number]
        assert ttft <= 2.0
        assert (tokens, -p95) == max(admissible)
        assert answer.trial_number in answer.pareto
        assert all(slo.met for slo in answer.slos)


def test_recommendation_survives_json() -> None:
    answer = recommend(SPEC, [BASELINE, trial(1, 150.0, 9.0)])
    assert Recommendation.model_validate_json(answer.model_dump_json()) == answer


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

"""The next configuration: what comes first, what is never suggested, and that the search learns."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from tests.tuner.conftest import Judge, ended, search, spec_with
from tuner.constraints import violations
from tuner.protocol import ArgValue
from tuner.sampler import SpaceTPESampler
from tuner.space import build_space
from tuner.suggestion import LEASE_ATTR, ORIGIN_ATTR, SpaceExhaustedError, Suggestion, suggest


def fine(_: dict[str, ArgValue]) -> tuple[list[float] | None, dict[str, float]]:
    return [100.0, 1.0], {"feasible": -1.0}


def throughput(point: dict[str, ArgValue]) -> tuple[list[float] | None, dict[str, float]]:
    """More of everything is faster until memory runs out, which it does in half of the space."""
    if not point:
        return [300.0, 2.0], {"feasible": -1.0}
    seqs, tokens = float(point["max_num_seqs"]), float(point["max_num_batched_tokens"])
    demand = seqs / 512 + tokens / 16384 + (float(point["gpu_memory_utilization"]) - 0.85) * 5
    if demand > 0.6:
        return None, {"feasible": demand - 0.6}
    speed = 1000 * (seqs / 512) ** 0.3 * (tokens / 16384) ** 0.2 * (0.8 if point["enforce_eager"] else 1.0)
    return [speed, 2.0], {"feasible": -1.0}


def flat(point: dict[str, ArgValue]) -> tuple[list[float] | None, dict[str, float]]:
    """The same, where a misfit says only that it is one."""
    values, constraints = throughput(point)
    return values, {"feasible": 1.0} if values is None else constraints


SMALL: dict[str, Any] = {
    "max_num_seqs": {"low": 8, "high": 64, "step": "pow2"},
    "gpu_memory_utilization": {"low": 0.8, "high": 0.9},
    "max_num_batched_tokens": {"low": 512, "high": 30_000},
    "enforce_eager": [True, False],
    "kv_cache_dtype": ["auto", "fp8"],
    "OMP_NUM_THREADS": {"low": 1, "high": 8},
    "cpu_offload_gb": {"low": 0, "high": 4, "step": 0.5},
}


def test_order_is_baseline_then_rules_then_sampler() -> None:
    history = search(spec_with(), build_space(spec_with()), 5, fine)
    origins = [trial.user_attrs[ORIGIN_ATTR] for trial in history]
    assert origins == ["baseline", "rule:every-user-runs", "rule:seqs-follow-tokens", "sampler", "sampler"]


def test_baseline_sets_no_knob() -> None:
    spec = spec_with(engine={"model": "m", "args": {"max_model_len": 4096}})
    suggestion = suggest(spec, build_space(spec), [])
    assert (suggestion.params, suggestion.args) == ({}, {"max_model_len": 4096})


def test_rule_gives_every_user_a_slot() -> None:
    spec = spec_with()
    history = search(spec, build_space(spec), 2, fine)
    assert history[1].params["max_num_seqs"] == 64
    assert history[1].params["max_num_batched_tokens"] == 8192


def test_template_is_whole_so_that_one_write_creates_it() -> None:
    spec = spec_with()
    suggestion = suggest(spec, build_space(spec), search(spec, build_space(spec), 4, fine))
    template = suggestion.template("a-lease")
    assert template.state is TrialState.RUNNING
    assert template.params == dict(suggestion.params)
    assert template.user_attrs[LEASE_ATTR] == "a-lease"
    assert template.user_attrs["args"] == dict(suggestion.args)


def test_same_history_gives_the_same_suggestion() -> None:
    spec = spec_with()
    space = build_space(spec)
    history = search(spec, space, 14, throughput)
    assert suggest(spec, space, history).params == suggest(spec, space, history).params


def test_another_seed_gives_another_search() -> None:
    searches = [
        [trial.params for trial in search(spec, build_space(spec), 8, throughput)]
        for spec in (spec_with(seed=1), spec_with(seed=2))
    ]
    assert searches[0] != searches[1]


def test_small_space_is_tried_point_by_point_and_then_exhausted() -> None:
    spec = spec_with({"max_num_seqs": [1, 2, 4], "enforce_eager": [False, True]})
    space = build_space(spec)
    history = search(spec, space, 7, fine)
    assert len({tuple(sorted(trial.params.items())) for trial in history[1:]}) == 6
    with pytest.raises(SpaceExhaustedError):
        suggest(spec, space, history)


def test_running_and_failed_trials_count_as_tried() -> None:
    spec = spec_with({"max_num_seqs": [1, 2]})
    space = build_space(spec)
    history: list[FrozenTrial] = [ended(suggest(spec, space, []).template("a"), [1.0, 1.0])]
    history.append(suggest(spec, space, history).template("b"))
    history.append(ended(suggest(spec, space, history).template("c"), None, state=TrialState.FAIL))
    with pytest.raises(SpaceExhaustedError):
        suggest(spec, space, history)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_suggestion_repeats_another_or_breaks_a_known_rule(seed: int) -> None:
    knobs = {
        "max_num_batched_tokens": {"low": 16, "high": 512, "step": "pow2"},
        "max_num_seqs": {"low": 16, "high": 512, "step": "pow2"},
    }
    spec = spec_with(knobs, seed=seed)
    history = search(spec, build_space(spec), 16, fine)
    points = [tuple(sorted(trial.params.items())) for trial in history[1:]]
    assert len(set(points)) == len(points)
    assert [trial.params for trial in history if violations(trial.params)] == []


def test_refused_candidates_are_told_and_cost_no_trial() -> None:
    knobs = {"max_num_batched_tokens": [16, 512], "max_num_seqs": {"low": 17, "high": 512}}
    spec = spec_with(knobs)
    space = build_space(spec)
    history = search(spec, space, 12, fine)
    refused = [suggest(spec, space, history[:n]).refused for n in range(3, 12)]
    assert any(violation.name == "tokens_for_every_seq" for found in refused for violation in found)


def test_suggesting_leaves_the_history_as_it_is() -> None:
    spec = spec_with()
    history = search(spec, build_space(spec), 12, throughput)
    before = copy.deepcopy(history)
    suggest(spec, build_space(spec), history)
    assert history == before


def test_baseline_that_was_given_its_parameters_is_not_tried_again() -> None:
    spec = spec_with({"max_num_seqs": [1, 2]})
    space = build_space(spec)
    known = {"params": {"max_num_seqs": 2}, "distributions": space.distributions()}
    history = [create_trial(values=[1.0, 1.0], user_attrs={ORIGIN_ATTR: "baseline"}, **known)]
    suggestion = suggest(spec, space, history)
    assert suggestion.params == {"max_num_seqs": 1}


def test_rule_that_breaks_a_known_constraint_is_left_out() -> None:
    knobs = {"max_num_batched_tokens": [16, 32], "max_num_seqs": {"low": 8, "high": 64, "step": "pow2"}}
    spec = spec_with(knobs)
    origins = {trial.user_attrs[ORIGIN_ATTR] for trial in search(spec, build_space(spec), 5, fine)}
    assert "rule:every-user-runs" not in origins  # 64 users, and no step holds 64 tokens


def test_space_without_an_admissible_point_is_exhausted_at_once() -> None:
    spec = spec_with({"max_num_batched_tokens": [16], "max_num_seqs": [32, 64]})
    space = build_space(spec)
    with pytest.raises(SpaceExhaustedError, match="all 0 "):
        suggest(spec, space, search(spec, space, 1, fine))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000), knobs=st.dictionaries(st.sampled_from(sorted(SMALL)), st.none(), min_size=1)
)
def test_every_suggestion_of_any_space_is_one_of_its_points(seed: int, knobs: dict[str, None]) -> None:
    spec = spec_with({name: SMALL[name] for name in knobs}, seed=seed)
    space = build_space(spec)
    budget = min(9, 1 + (space.size() or 9))
    for trial in search(spec, space, budget, fine)[1:]:
        assert space.contains(trial.params)
        assert trial.user_attrs["args"] == space.split(trial.params)[0]


# ---------------------------------------------------------------- what runs at this moment


def test_suggestions_without_any_answer_are_all_different() -> None:
    spec = spec_with()
    history: list[FrozenTrial] = []
    for number in range(12):
        history.append(suggest(spec, build_space(spec), history).template(f"lease-{number}"))
        history[-1].number = number
    points = {tuple(trial.params.items()) for trial in history}
    assert len(points) == 12
    assert all(trial.state is TrialState.RUNNING for trial in history)


def test_running_trials_keep_the_sampler_away() -> None:
    """The next one is farther from those that run than it would be if the sampler did not see them."""
    farther = 0
    for seed in range(12):
        spec = spec_with(PLANE, seed=seed, objectives=ONE)
        space, history = build_space(spec), diagonal()
        first = suggest(spec, space, history)
        crowd = [suggest(spec, space, history).template("a-lease") for _ in range(6)]
        second = suggest(spec, space, [*history, *crowd])
        alone = suggest(spec, space, [*history, *(ended(t, None, state=TrialState.FAIL) for t in crowd)])
        farther += distance(first, second) > distance(first, alone)
    assert farther >= 9


# ---------------------------------------------------------------- knobs are modelled together

PLANE = {"gpu_memory_utilization": {"low": 0, "high": 1}, "cpu_offload_gb": {"low": 0, "high": 1}}
ONE = [{"metric": "output_tokens_per_s"}]


def diagonal(**baseline: Any) -> list[FrozenTrial]:
    """Good only where both knobs are equal, wherever that is; neither knob tells anything alone."""
    spec = spec_with(PLANE, objectives=ONE)
    distributions = build_space(spec).distributions()
    history = [create_trial(values=[0.0], user_attrs={ORIGIN_ATTR: "baseline"}, **baseline)]
    for x, y in np.random.default_rng(0).random((60, 2)):
        params = dict(zip(PLANE, (x, y), strict=True))
        history.append(create_trial(values=[-abs(x - y)], params=params, distributions=distributions))
    return history


def distance(a: Suggestion, b: Suggestion) -> float:
    return math.dist(*([float(point.params[name]) for name in PLANE] for point in (a, b)))


def off_the_diagonal(points: list[Mapping[str, Any]]) -> float:
    return statistics.mean(abs(point["gpu_memory_utilization"] - point["cpu_offload_gb"]) for point in points)


PARTLY = {
    "params": {"cpu_offload_gb": 0.5},
    "distributions": {"cpu_offload_gb": build_space(spec_with(PLANE)).distributions()["cpu_offload_gb"]},
}


@pytest.mark.parametrize("baseline", [{}, PARTLY], ids=["without-parameters", "with-some-parameters"])
def test_baseline_that_is_no_whole_point_does_not_part_the_knobs(baseline: dict[str, Any]) -> None:
    """Optuna's own sampler models what all trials have in common, which is nothing or one knob here."""
    history, plain = diagonal(**baseline), []
    space = build_space(spec_with(PLANE, objectives=ONE))
    for seed in range(20):
        study = optuna.create_study(direction="maximize", sampler=optunas_own(seed))
        study.add_trials(history)
        plain.append(study.ask(space.distributions()).params)
    ours = [suggest(spec_with(PLANE, objectives=ONE, seed=s), space, history).params for s in range(20)]
    assert off_the_diagonal(ours) < 0.5 * off_the_diagonal(plain)


def optunas_own(seed: int) -> optuna.samplers.TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True)


class Watched(SpaceTPESampler):
    """Notes the knobs that were drawn alone."""

    alone: ClassVar[list[str]] = []

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        self.alone.append(name)
        return super().sample_independent(study, trial, name, distribution)


def test_no_knob_is_drawn_alone_once_the_sampler_models_anything() -> None:
    space = build_space(spec_with(PLANE, objectives=ONE))
    study = optuna.create_study(direction="maximize", sampler=Watched(space, seed=0))
    study.add_trials(diagonal())
    study.ask(space.distributions())
    assert Watched.alone == []


def test_sampler_models_all_knobs_together_although_the_baseline_has_none() -> None:
    spec = spec_with()
    space = build_space(spec)
    sampler = SpaceTPESampler(space, seed=0)
    history = search(spec, space, 4, fine)
    assert history[0].params == {}
    searched = sampler.infer_relative_search_space(None, history[0])  # type: ignore[arg-type]  # it looks at neither
    assert searched.keys() == set(space.names)


@pytest.mark.parametrize("judge", [throughput, flat], ids=["graded", "flat"])
def test_search_stays_away_from_what_does_not_fit(judge: Judge) -> None:
    """Over seeds: clearly fewer trials out of memory than at random, and a better best value."""
    misfits: dict[str, list[int]] = {"auto": [], "random": []}
    best: dict[str, list[float]] = {"auto": [], "random": []}
    for sampler in misfits:
        for seed in range(8):
            spec = spec_with(sampler=sampler, seed=seed)
            history = search(spec, build_space(spec), 30, judge)
            misfits[sampler].append(sum(trial.values is None for trial in history[10:]))
            best[sampler].append(max(trial.values[0] for trial in history[1:] if trial.values is not None))
    assert statistics.mean(misfits["auto"]) <= 0.75 * statistics.mean(misfits["random"])
    assert statistics.median(best["auto"]) >= 1.1 * statistics.median(best["random"])


def test_trial_that_only_failed_teaches_nothing_and_one_that_did_not_fit_does() -> None:
    """What is told as FAIL is invisible to a sampler: the same misfits, told so, are walked into again."""

    def misfits(state: TrialState) -> int:
        found = 0
        for seed in range(4):
            spec = spec_with(seed=seed)
            history: list[FrozenTrial] = []
            for number in range(30):
                trial = suggest(spec, build_space(spec), history).template("lease")
                values, constraints = throughput(dict(trial.params))
                trial.number = number
                history.append(ended(trial, values, constraints, None if values else state))
            found += sum(trial.values is None for trial in history)
        return found

    assert misfits(TrialState.PRUNED) < 0.85 * misfits(TrialState.FAIL)

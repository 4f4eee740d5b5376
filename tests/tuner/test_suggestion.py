"""The next configuration: what comes first, what is never suggested, and that the search learns."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState

from tests.tuner.conftest import ended, search, spec_with
from tuner.constraints import violations
from tuner.protocol import ArgValue
from tuner.sampler import SpaceTPESampler
from tuner.space import build_space
from tuner.suggestion import LEASE_ATTR, ORIGIN_ATTR, SpaceExhaustedError, suggest


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


def test_sampler_models_all_knobs_together_although_the_baseline_has_none() -> None:
    spec = spec_with()
    space = build_space(spec)
    sampler = SpaceTPESampler(space, seed=0)
    history = search(spec, space, 4, fine)
    assert history[0].params == {}
    searched = sampler.infer_relative_search_space(None, history[0])  # type: ignore[arg-type]  # it looks at neither
    assert searched.keys() == set(space.names)


def test_search_stays_away_from_what_does_not_fit() -> None:
    """Over seeds: fewer trials out of memory than at random, and a better best value."""
    misfits: dict[str, list[int]] = {"auto": [], "random": []}
    best: dict[str, list[float]] = {"auto": [], "random": []}
    for sampler in misfits:
        for seed in range(6):
            spec = spec_with(sampler=sampler, seed=seed)
            history = search(spec, build_space(spec), 40, throughput)
            misfits[sampler].append(sum(trial.values is None for trial in history))
            best[sampler].append(max(trial.values[0] for trial in history[1:] if trial.values is not None))
    assert statistics.median(misfits["auto"]) <= 0.85 * statistics.median(misfits["random"])
    assert statistics.median(best["auto"]) >= 1.1 * statistics.median(best["random"])

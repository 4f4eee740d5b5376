"""The study that the options of ``nightshift tune`` stand for."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.tune import Goal, Wish, study_for
from tuner.errors import FieldError
from tuner.spec import parse_study


def study(**options: Any) -> dict[str, Any]:
    return study_for(Wish(**{"model": "meta-llama/Llama-2-7b-chat-hf", "bounds": {}, **options}))


class TestStudyFor:
    @pytest.mark.parametrize("goal", list(Goal))
    def test_every_goal_makes_a_valid_study(self, goal: Goal) -> None:
        spec = parse_study(study(goal=goal))
        assert spec.space.preset == goal.value
        assert spec.name == f"llama-2-7b-chat-hf-{goal.value}"

    def test_latency_puts_latency_first(self) -> None:
        assert study(goal=Goal.LATENCY)["objectives"][0] == {"metric": "e2e_p95_s"}

    def test_closed_loop_of_64_users_is_the_default(self) -> None:
        assert study()["workload"]["arrivals"] == {"kind": "closed", "concurrency": 64}

    def test_rate_makes_an_open_loop(self) -> None:
        assert study(rate=10.0)["workload"]["arrivals"] == {"kind": "poisson", "rate_per_s": 10.0}

    def test_rate_and_concurrency_contradict_each_other(self) -> None:
        with pytest.raises(FieldError) as caught:
            study(rate=10.0, concurrency=64)
        assert caught.value.field == "--rate"

    def test_bounds_become_slos_and_absent_ones_do_not(self) -> None:
        made = study(bounds={"ttft_p95_s": 2.0, "e2e_p95_s": None})
        assert made["slos"] == [{"metric": "ttft_p95_s", "max": 2.0}]
        assert "slos" not in study()

    def test_flags_keep_their_types(self) -> None:
        made = study(
            flags=("max_model_len=4096", "--enforce-eager=true", "dtype=bfloat16", "quantization=fp8")
        )
        assert made["engine"]["args"] == {
            "max_model_len": 4096,
            "enforce_eager": True,
            "dtype": "bfloat16",
            "quantization": "fp8",
        }

    @pytest.mark.parametrize("flag", ["max_model_len", "=4096"])
    def test_flag_without_name_or_value_is_refused(self, flag: str) -> None:
        with pytest.raises(FieldError, match="NAME=VALUE"):
            study(flags=(flag,))

    @pytest.mark.parametrize(
        ("model", "name"),
        [
            ("./My Model/", "my-model-balanced"),
            ("/models/Qwen3", "qwen3-balanced"),
            ("???", "model-balanced"),
        ],
    )
    def test_name_is_made_of_the_last_part_of_the_model(self, model: str, name: str) -> None:
        assert study(model=model)["name"] == name
        parse_study(study(model=model))

    def test_budget_holds_trials_and_hours(self) -> None:
        assert study(trials=12, hours=2.0)["budget"] == {"trials": 12, "hours": 2.0}
        assert study()["budget"] == {"trials": 30}

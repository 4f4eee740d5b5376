"""A study file that is wrong is refused with the field, the value and the fix."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.conftest import document
from tuner.errors import FieldError
from tuner.metrics import Direction
from tuner.protocol import Length
from tuner.spec import ChoicesKnob, RangeKnob, parse_study


def test_plain_number_is_a_fixed_length() -> None:
    spec = parse_study(document())
    assert (spec.workload.prompts.input_tokens.mean, spec.workload.prompts.input_tokens.stdev) == (512, 0.0)


def test_list_stands_for_choices() -> None:
    knobs = parse_study(document(space={"knobs": {"block_size": [16, 32]}})).space.knobs
    assert knobs["block_size"] == ChoicesKnob(choices=(16, 32))


def test_null_takes_a_knob_of_the_preset_out() -> None:
    assert parse_study(document(space={"knobs": {"enforce_eager": None}})).space.knobs == {
        "enforce_eager": None
    }


def test_objectives_have_their_natural_direction() -> None:
    directions = [objective.resolved_direction for objective in parse_study(document()).objectives]
    assert directions == [Direction.MAXIMIZE, Direction.MINIMIZE]


def test_spec_survives_its_own_json() -> None:
    spec = parse_study(document(slos=[{"metric": "ttft_p95_s", "max": 2}], budget={"trials": 7, "hours": 2}))
    assert parse_study(spec.model_dump(mode="json")) == spec


def changed(path: str, value: object) -> dict[str, Any]:
    """The document with one value replaced, or removed where ``value`` is ``...``."""
    whole = document(slos=[{"metric": "ttft_p95_s", "max": 2.0}])
    part: Any = whole
    *parents, last = path.split(".")
    for parent in parents:
        part[parent] = dict(part.get(parent, {}))
        part = part[parent]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "field", "words"),
    [
        ("engine", ..., "engine", ["is missing", "add it"]),
        ("nmae", "x", "nmae", ["name"]),
        ("workload.arivals", {}, "workload.arivals", ["arrivals"]),
        ("name", "My Study", "name", ["'My Study'", "lower-case"]),
        ("workload.arrivals", {"kind": "bursty"}, "workload.arrivals", ["bursty", "closed", "poisson"]),
        (
            "workload.arrivals",
            {"kind": "closed", "concurrency": 0},
            "workload.arrivals.concurrency",
            ["0", "1"],
        ),
        ("workload.measure_s", -3, "workload.measure_s", ["-3", "greater than 0"]),
        (
            "space.knobs",
            {"max_num_seqs": {"low": 9, "high": 3}},
            "space.knobs.max_num_seqs",
            ["low 9", "high 3", "swap"],
        ),
        ("space.knobs", {"max_num_seqs": 3}, "space.knobs.max_num_seqs", ["3", "low", "high", "[a, b]"]),
        ("space.knobs", {"max_num_seqs": {"low": 1}}, "space.knobs.max_num_seqs.high", ["is missing"]),
        ("space.knobs", {"max_num_seqs": [1, 1]}, "space.knobs.max_num_seqs.choices", ["twice"]),
        (
            "space.knobs",
            {"max_num_seqs": {"low": 0, "high": 8, "step": "pow2"}},
            "space.knobs.max_num_seqs",
            ["power"],
        ),
        ("objectives", [{"metric": "speed"}], "objectives.0.metric", ["'speed'", "output_tokens_per_s"]),
        ("objectives", [], "objectives", ["at least 1"]),
        ("slos", [{"metric": "ttft_p95_s", "max": 1, "min": 0}], "slos.0", ["exactly one"]),
        ("budget", {"trials": 0}, "budget.trials", ["write 1 or more"]),
        ("sampler", "magic", "sampler", ["magic", "tpe"]),
        ("seed", -1, "seed", ["-1", "write 0 or more"]),
        ("sampler", "tpee", "sampler", ["did you mean tpe?"]),
        ("name", 3, "name", ["put it in quotes"]),
        ("engine", "m", "engine", ["is not a mapping", "{model:"]),
        ("engine.args", {"max_model_len": [1]}, "engine.args.max_model_len", ["is no single value"]),
        ("engine.env", {"VLLM_X": 1}, "engine.env.VLLM_X", ["put it in quotes"]),
        ("space", None, "space", ["{preset:"]),
        ("space.preset", "fast", "space.preset", ["throughput or latency or balanced or none"]),
        (
            "space.knobs",
            {"max_num_seqs": {"lo": 1, "high": 2}},
            "space.knobs.max_num_seqs.lo",
            ["did you mean low?"],
        ),
        (
            "space.knobs",
            {"max_num_seqs": {"low": 1, "high": 8, "step": "pow3"}},
            "space.knobs.max_num_seqs.step",
            ["'pow3'", "or pow2"],
        ),
        (
            "space.knobs",
            {"max_num_seqs": {"low": 1, "high": 8, "step": 0}},
            "space.knobs.max_num_seqs",
            ["step 0", "above 0"],
        ),
        (
            "space.knobs",
            {"max_num_seqs": {"low": 1, "high": float("inf")}},
            "space.knobs.max_num_seqs.high",
            ["inf", "finite"],
        ),
        ("space.knobs", {"max_num_seqs": [None]}, "space.knobs.max_num_seqs.choices.0", ["None", "write"]),
        ("space.knobs", {"max_num_seqs": {"choices": 3}}, "space.knobs.max_num_seqs.choices", ["[a, b]"]),
        ("slos", [{"metric": "ttft_p95", "max": 1}], "slos.0.metric", ["did you mean ttft_p95_s?"]),
        ("slos", [{"metric": "ttft_p95_s", "max": float("nan")}], "slos.0.max", ["finite"]),
        ("slos", {"metric": "ttft_p95_s", "max": 1}, "slos", ["is not a list", "[{metric: …}]"]),
        ("objectives", ["ttft_p95_s"], "objectives.0", ["{metric:"]),
        ("workload.prompts", {1: 2}, "workload.prompts.1", ["strings"]),
        ("workload.prompts.input_tokens", "many", "workload.prompts.input_tokens", ["{mean:"]),
        ("workload.arrivals", {"concurrency": 1}, "workload.arrivals", ["add kind: closed"]),
    ],
)
def test_error_names_field_value_and_fix(path: str, value: object, field: str, words: list[str]) -> None:
    with pytest.raises(FieldError) as caught:
        parse_study(changed(path, value))
    error = caught.value
    assert error.field == field
    assert error.fix
    assert [word for word in words if word not in str(error)] == []
    assert "\n" not in str(error)


@pytest.mark.parametrize("data", [None, "text", 3, ["name"]])
def test_what_is_no_mapping_is_refused(data: object) -> None:
    with pytest.raises(FieldError, match="is not a mapping"):
        parse_study(data)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner)),
    max_leaves=6,
)
PLACES = [
    *("name", "engine", "engine.model", "engine.args", "engine.env", "hardware", "workload", "space"),
    *("workload.prompts", "workload.prompts.input_tokens", "workload.arrivals", "workload.measure_s"),
    *("space.preset", "space.knobs", "objectives", "slos", "budget", "sampler", "seed", "startup_timeout_s"),
]


def mistake(document: object) -> FieldError | None:
    try:
        parse_study(document)
    except FieldError as error:
        return error
    return None


@given(place=st.sampled_from(PLACES), value=JSON)
def test_anything_at_any_place_is_a_study_or_an_error_at_that_place(place: str, value: object) -> None:
    error = mistake(changed(place, value))
    assert error is None or f"{error.field}.".startswith(f"{place}.")
    assert error is None or (error.fix and "see docs" not in error.fix)


def test_file_written_in_yaml() -> None:
    text = """
    name: night
    engine: {model: a-model, args: {enforce_eager: true}}
    workload:
      prompts: {input_tokens: 512, output_tokens: {mean: 128, stdev: 16}}
      arrivals: {kind: poisson, rate_per_s: 4}
    space: {preset: none, knobs: {max_num_seqs: {low: 8, high: 64, step: pow2}, block_size: [16, 32]}}
    """
    spec = parse_study(yaml.safe_load(text))
    assert spec.workload.prompts.input_tokens == Length(mean=512)
    assert spec.space.knobs["max_num_seqs"] == RangeKnob(low=8, high=64, step="pow2")
    assert spec.engine.args["enforce_eager"] is True


def test_range_may_have_one_value() -> None:
    assert RangeKnob(low=4, high=4).low == 4

"""A study file that is wrong is refused with the field, the value and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.conftest import document
from tuner.errors import FieldError
from tuner.metrics import Direction
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
        part[parent] = dict(part[parent]) if isinstance(part[parent], dict) else part[parent]
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
        ("budget", {"trials": 0}, "budget.trials", ["0", "1"]),
        ("sampler", "magic", "sampler", ["magic", "tpe"]),
        ("seed", -1, "seed", ["-1"]),
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


def test_range_may_have_one_value() -> None:
    assert RangeKnob(low=4, high=4).low == 4

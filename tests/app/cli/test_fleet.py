"""How a local run shares the GPUs among its workers."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.fleet import gpu_groups
from tuner.errors import FieldError
from tuner.spec import StudySpec, parse_study


def study(gpus: int | None = None, **args: Any) -> StudySpec:
    return parse_study(
        {
            "name": "tiny",
            "engine": {"model": "org/model", "args": args},
            "hardware": {"gpus": gpus},
            "workload": {
                "prompts": {"input_tokens": 8, "output_tokens": 8},
                "arrivals": {"kind": "closed", "concurrency": 2},
            },
        }
    )


FOUR = ["0", "1", "2", "3"]


def test_each_gpu_gets_a_worker() -> None:
    assert gpu_groups(study(), FOUR) == [("0",), ("1",), ("2",), ("3",)]


def test_a_worker_has_as_many_gpus_as_a_trial_needs() -> None:
    assert gpu_groups(study(2), FOUR) == [("0", "1"), ("2", "3")]
    assert gpu_groups(study(tensor_parallel_size=2, pipeline_parallel_size=2), FOUR) == [("0", "1", "2", "3")]


def test_gpus_that_make_no_whole_group_stay_idle() -> None:
    assert gpu_groups(study(3), FOUR) == [("0", "1", "2")]


@pytest.mark.parametrize(("gpus", "present"), [(0, FOUR), (0, []), (None, [])])
def test_a_cpu_worker(gpus: int | None, present: list[str]) -> None:
    assert gpu_groups(study(gpus), present) == [()]


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(FieldError, match=r"hardware\.gpus: this machine has 4 GPUs") as caught:
        gpu_groups(study(8), FOUR)
    assert caught.value.value == 8

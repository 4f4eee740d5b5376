"""Batch for batch, the simulated scheduler does what vLLM's own does.

``vllm_batches.json`` holds scenarios and what vLLM 0.32's scheduler made of them. To record it anew:

    .venv/bin/python -m tests.tuner.simulation.test_against_vllm .venv-vllm/bin/python
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.simulation.replay import Replay
from workers.tiny_model import write_tiny_model

HERE = Path(__file__).parent
RECORDED = HERE / "vllm_batches.json"
FRESH = 200


def drawn(seed: int, count: int, *, requests: int, outputs: int) -> list[dict[str, Any]]:
    """Scenarios under pressure. Prompts go beyond the shared prefix, as a load generator's do."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        size, seqs, shared = (
            draw.choice([4, 16]),
            draw.randint(1, 12),
            draw.choice([0, 0, draw.randint(1, 60)]),
        )
        turn, rows = 0, []
        for _ in range(draw.randint(1, requests)):
            turn += draw.choice([0, 0, 1, 5, draw.randint(0, 30)])
            rows.append([turn, max(draw.randint(1, 150), shared + 1), draw.randint(1, outputs), shared])
        longest = max(-(-(row[1] + row[2]) // size) for row in rows)
        limits = {
            "max_num_seqs": seqs,
            "max_num_batched_tokens": draw.randint(seqs, 128),
            "block_size": size,
            "asynchronous": draw.random() < 0.7,
        }
        blocks = longest + draw.choice([0, draw.randint(0, 4), draw.randint(0, 10), draw.randint(0, 80)])
        made.append({"limits": limits, "blocks": blocks, "caching": draw.random() < 0.7, "requests": rows})
    return made


def ask_vllm(python: str, scenarios: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What vLLM's own scheduler makes of them."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder))
        answer = subprocess.run(
            [python, str(HERE / "real_scheduler.py"), str(model)],
            input=json.dumps(scenarios),
            capture_output=True,
            text=True,
            check=False,
            env=os.environ
            | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr"},
        )
    assert answer.returncode == 0, answer.stderr[-2000:]
    batches: list[list[dict[str, Any]]] = json.loads(answer.stdout)
    return batches


def simulated(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    return [step.as_vllm_tells() for step in Replay.of(scenario).steps]


CASES = json.loads(RECORDED.read_text()) if RECORDED.exists() else []


def test_recorded_cases_hold_what_is_hard() -> None:
    batches = [batch for case in CASES for batch in case["vllm"]]
    assert len(CASES) >= 40
    assert sum(batch["preempted"] for batch in batches) >= 50
    assert (
        {case["limits"]["asynchronous"] for case in CASES}
        == {case["caching"] for case in CASES}
        == {True, False}
    )


@pytest.mark.parametrize("case", CASES, ids=[f"scenario{number}" for number in range(len(CASES))])
def test_batches_are_those_that_vllm_composed(case: dict[str, Any]) -> None:
    assert simulated({name: case[name] for name in case if name != "vllm"}) == case["vllm"]


@pytest.mark.real_vllm
def test_batches_are_those_of_the_installed_vllm() -> None:
    python = os.environ.get("NIGHTSHIFT_VLLM_PYTHON", ".venv-vllm/bin/python")
    scenarios = drawn(random.SystemRandom().randrange(1 << 32), FRESH, requests=25, outputs=60)
    for scenario, batches in zip(scenarios, ask_vllm(python, scenarios), strict=True):
        assert simulated(scenario) == batches, json.dumps(scenario)


def record(python: str) -> None:
    """Write the recorded cases: one scenario a line."""
    candidates = drawn(1, 800, requests=10, outputs=24)
    hard = [
        scenario for scenario in candidates if sum(batch["preempted"] for batch in simulated(scenario)) > 1
    ]
    scenarios = hard[:36] + [scenario for scenario in candidates if scenario not in hard][:12]
    cases = [
        scenario | {"vllm": batches}
        for scenario, batches in zip(scenarios, ask_vllm(python, scenarios), strict=True)
    ]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    RECORDED.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    record(sys.argv[1])

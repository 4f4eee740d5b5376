"""How far the simulator is off real measurements that it was not fitted on.

    python benchmarks/simulator_validation.py [--table] [--write]

Replays every run of tuner/simulation/h200.json in the simulator with the same load: the same lengths in
the same order (the load generator's seed is known), the same windows, and figures by that generator's
definitions, which differ from this project's. Each run is predicted by a calibration fitted on all other
runs (leave one out) and, harder, on the runs of all other regimes (leave one regime out). Prints one JSON
line; all figures but the measured ones are simulated. ``--write`` stores the calibration fitted on all runs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.protocol import ClosedLoop, Length, SyntheticPrompts, Workload
from tuner.simulation.arguments import Arguments
from tuner.simulation.calibration import FILE, Calibration, calibrated, fit
from tuner.simulation.engine import Trace
from tuner.simulation.hardware import GPUS
from tuner.simulation.load import Prompt
from tuner.simulation.models import ModelShape
from tuner.simulation.steptimes import Roofline
from tuner.simulation.trial import serve

LLAMA_2_7B = ModelShape.from_config(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    name="llama-2-7b",
)
# How far apart two runs of one configuration were (the same configuration on two machines, or with limits
# that do not bind), so how much a residual weighs: logarithms.
SPREAD = {
    "server_tokens_per_s": 0.03,
    "completed_tokens_per_s": 0.03,
    "tpot_p50_s": 0.03,
    "e2e_p50_s": 0.04,
    "e2e_p95_s": 0.06,
    "ttft_p50_s": 0.15,
    "ttft_p95_s": 0.10,
}
REPORTED = (
    "server_tokens_per_s",
    "completed_tokens_per_s",
    "tpot_p50_s",
    "e2e_p95_s",
    "ttft_p50_s",
    "ttft_p95_s",
)
REGIMES = {
    "long prompts, preemption": ("p_default7b", "p_eager7b", "p_oom_run"),
    "16 and 64 sequences": ("s00", "seqs16", "seqs64"),
    "small token budgets": ("s01", "s05", "s06"),
    "large token budgets": ("s02", "s03", "s04", "s16"),
    "small KV cache, preemption": ("s08",),
    "8-bit KV cache": ("s17",),
}
DRAWS = 2000

Point = Mapping[str, Any]
Figures = Mapping[str, float]


@cache
def drawn(input_mean: int, output_mean: int, spread: float) -> tuple[Prompt, ...]:
    """Lengths in the order of sending, exactly as the load generator of the measurements drew them."""
    generator = random.Random(0)
    prompts = []
    for _ in range(DRAWS):
        inputs = max(8, int(generator.gauss(input_mean, spread * input_mean)))
        outputs = max(4, int(generator.gauss(output_mean, spread * output_mean)))
        for _ in range(inputs):  # the prompt's token ids come from the same generator
            generator.randrange(10, 30000)
        prompts.append(Prompt(inputs, outputs))
    return tuple(prompts)


class Replayed:
    """The same lengths again."""

    def __init__(self, load: Mapping[str, Any]) -> None:
        self._prompts = iter(drawn(load["input_mean"], load["output_mean"], load["spread"]))

    def draw(self) -> Prompt:
        return next(self._prompts)


def simulate(point: Point, calibration: Calibration) -> Figures:
    """Figures of one run by the definitions of the load generator."""
    gpu, load = GPUS["H200"], point["load"]
    arguments = Arguments.resolve(point["args"], gpu=gpu, model=LLAMA_2_7B)
    workload = Workload(
        prompts=SyntheticPrompts(
            input_tokens=Length(mean=load["input_mean"]), output_tokens=Length(mean=load["output_mean"])
        ),
        arrivals=ClosedLoop(concurrency=load["users"]),
        warmup_s=load["warmup_s"],
        measure_s=load["measure_s"],
    )
    step_s = Roofline(gpu, LLAMA_2_7B, arguments.execution(), calibration.efficiencies).step_s
    blocks = point["kv_tokens"] // arguments.limits.block_size
    return as_generator_counts(serve(arguments, blocks, workload, Replayed(load), step_s, calibration), load)


def as_generator_counts(trace: Trace, load: Mapping[str, Any]) -> Figures:
    """The generator cut everything at the window's end and looked at requests that ended inside it."""
    opens_s, closes_s = load["warmup_s"], load["warmup_s"] + load["measure_s"]
    times = [
        (e.due_s, e.first_s, e.last_s, e.request.output_tokens)
        for e in trace.exchanges
        if e.first_s is not None and e.last_s is not None and opens_s <= e.last_s <= closes_s
    ]
    e2e = [last - due for due, _, last, _ in times]
    ttft = [first - due for due, first, _, _ in times]
    tpot = [(last - first) / max(1, tokens - 1) for _, first, last, tokens in times]
    seen = [
        (tokens, gone)
        for tokens, gone, at in zip(trace.emitted, trace.preempted, trace.ends_s, strict=True)
        if at <= closes_s
    ]
    return {
        "server_tokens_per_s": sum(tokens for tokens, _ in seen) / closes_s,
        "completed_tokens_per_s": sum(tokens for *_, tokens in times) / load["measure_s"],
        "tpot_p50_s": ranked(tpot, 0.50),
        "e2e_p50_s": ranked(e2e, 0.50),
        "e2e_p95_s": ranked(e2e, 0.95),
        "ttft_p50_s": ranked(ttft, 0.50),
        "ttft_p95_s": ranked(ttft, 0.95),
        "preemptions": float(sum(gone for _, gone in seen)),
    }


def ranked(values: Iterable[float], share: float) -> float:
    """The generator's percentile: no interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Validation:
    """Fits and predictions, each simulation run once."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self._known: dict[tuple[str, bytes], Figures] = {}
        self.full = fit(self.residuals(points))

    def simulated(self, point: Point, calibration: Calibration) -> Figures:
        key = (point["id"], calibration.figures().tobytes())
        if key not in self._known:
            self._known[key] = simulate(point, calibration)
        return self._known[key]

    def residuals(self, points: Sequence[Point]) -> Callable[[Calibration], list[npt.NDArray[np.float64]]]:
        return lambda calibration: [self._residuals(point, calibration) for point in points]

    def _residuals(self, point: Point, calibration: Calibration) -> npt.NDArray[np.float64]:
        seen, measured = self.simulated(point, calibration), point["measured"]
        return np.array(
            [np.log(seen[name] / measured[name]) / SPREAD[name] for name in SPREAD if name in measured]
        )

    def without(self, left_out: Sequence[str]) -> Calibration:
        """Fitted on all other points, from the prior on."""
        kept = [point for point in self.points if point["id"] not in left_out]
        return fit(self.residuals(kept), slopes_at=self.full, rounds=10)

    def errors(self, groups: Iterable[Sequence[str]]) -> dict[str, dict[str, float]]:
        """Relative errors of each point, by the calibration that has not seen its group."""
        errors = {}
        for group in groups:
            calibration = self.without(group)
            for point in self.points:
                if point["id"] in group:
                    seen = self.simulated(point, calibration)
                    errors[point["id"]] = {
                        name: seen[name] / point["measured"][name] - 1.0
                        for name in REPORTED
                        if name in point["measured"]
                    }
        return errors


def summary(errors: Mapping[str, Figures]) -> dict[str, dict[str, object]]:
    """Spread of the absolute errors in per cent, and the bias."""
    figures: dict[str, dict[str, object]] = {}
    for name in REPORTED:
        signed = sorted(100.0 * point[name] for point in errors.values() if name in point)
        sizes = sorted(map(abs, signed))
        low, _, high = statistics.quantiles(sizes, n=4)
        figures[name] = {
            "n": len(sizes),
            "median_abs_pct": round(statistics.median(sizes), 2),
            "quartiles_abs_pct": [round(low, 2), round(high, 2)],
            "max_abs_pct": round(sizes[-1], 2),
            "median_signed_pct": round(statistics.median(signed), 2),
        }
    return figures


def table(points: Sequence[Point], one_out: Mapping[str, Figures], regime_out: Mapping[str, Figures]) -> str:
    """A Markdown table of signed errors in per cent: leave one out / leave the regime out."""
    lines = ["| run | " + " | ".join(REPORTED) + " |", "|---" * (len(REPORTED) + 1) + "|"]
    for point in points:
        cells = [
            f"{100 * one_out[point['id']][name]:+.1f} / {100 * regime_out[point['id']][name]:+.1f}"
            if name in point["measured"]
            else ""
            for name in REPORTED
        ]
        lines.append(f"| {point['id']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(document: dict[str, Any], calibration: Calibration, path: Path) -> None:
    """Store the calibration, one point a line."""
    points = ",\n".join("  " + json.dumps(point) for point in document["points"])
    path.write_text(
        f'{{"about": {json.dumps(document["about"])},\n'
        f' "calibration": {json.dumps(calibration.to_dict())},\n "points": [\n{points}\n]}}\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="also print the errors of each run")
    parser.add_argument("--write", action="store_true", help="store the calibration fitted on all runs")
    options = parser.parse_args()
    document = json.loads(FILE.read_text())
    points = document["points"]
    began_s = time.monotonic()
    validation = Validation(points)
    if options.write:
        write(document, validation.full, FILE)
    one_out = validation.errors([[point["id"]] for point in points])
    regime_out = validation.errors(REGIMES.values())
    if options.table:
        print(table(points, one_out, regime_out))
    committed = calibrated().to_dict() == validation.full.to_dict()
    line = {
        "benchmark": "simulator_validation",
        "simulated": True,
        "measured_on": "H200, vLLM 0.26.0, Llama-2-7B shape, single short runs",
        "runs": len(points),
        "leave_one_out": summary(one_out),
        "leave_one_regime_out": summary(regime_out),
        "calibration": validation.full.to_dict(),
        "calibration_is_the_committed_one": committed,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()

"""What becomes of a start, by how much memory there is; the numbers are those of real failures on an H200."""

import pytest

from tests.tuner.simulation.test_models import LLAMA_2_7B
from tuner.protocol import FailureKind, Verdict
from tuner.simulation.arguments import Arguments
from tuner.simulation.hardware import GPUS
from tuner.simulation.memory import MemoryFigures, misfit
from tuner.simulation.models import ModelShape

GIB = float(1 << 30)
ARGUMENTS = Arguments.resolve({}, gpu=GPUS["H200"], model=ModelShape.from_config(LLAMA_2_7B))


def figures(
    *,
    budget: float = 125.8,
    profile: float = 13.5,
    kv: float = 112.3,
    serving: float = 127.0,
    stdev: float = 0.0,
) -> MemoryFigures:
    sizes = (139.8, budget, profile, kv, serving, stdev)
    return MemoryFigures(*(size * GIB for size in sizes))


class TestMisfit:
    def test_what_fits_starts(self) -> None:
        assert misfit(figures(), ARGUMENTS, 0.0) is None

    @pytest.mark.parametrize(
        ("memory", "kind", "words"),
        [
            (figures(budget=139.1), FailureKind.MEMORY_BUDGET, "139.10 GiB"),
            (figures(profile=149.8), FailureKind.OOM_DEVICE, "profile run"),
            (figures(kv=-0.5), FailureKind.KV_CACHE_TOO_SMALL, "no memory is left"),
            (
                figures(kv=1.88),
                FailureKind.KV_CACHE_TOO_SMALL,
                "4096 tokens needs 2.00 GiB of KV cache, 1.88 GiB",
            ),
            (figures(serving=139.5), FailureKind.OOM_DEVICE, "warming up"),
        ],
    )
    def test_what_does_not_is_the_configurations_fault(
        self, memory: MemoryFigures, kind: FailureKind, words: str
    ) -> None:
        failure = misfit(memory, ARGUMENTS, 0.0)
        assert failure is not None
        assert (failure.kind, failure.verdict, failure.fatal) == (kind, Verdict.INFEASIBLE, False)
        assert words in failure.message
        assert failure.message.startswith("simulated: ")
        assert failure.advice

    def test_a_machine_may_need_more_than_predicted(self) -> None:
        barely = figures(kv=2.1, stdev=0.2)
        assert misfit(barely, ARGUMENTS, 0.0) is None
        assert misfit(barely, ARGUMENTS, 1.0) is not None
        assert misfit(figures(kv=1.9, stdev=0.2), ARGUMENTS, -1.0) is None

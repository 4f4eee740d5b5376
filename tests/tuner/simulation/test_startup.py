"""Starts take as long as they did on the H200, and share compiled code as they did there."""

from typing import Any

import pytest

from tests.tuner.simulation.test_models import LLAMA_2_7B
from tuner.simulation.arguments import Arguments
from tuner.simulation.hardware import GPUS
from tuner.simulation.models import ModelShape
from tuner.simulation.startup import CompileCache, Startup, compile_key

MODEL = ModelShape.from_config(LLAMA_2_7B)


def resolve(**args: Any) -> Arguments:
    return Arguments.resolve(args, gpu=GPUS["H200"], model=MODEL)


class TestDuration:
    @pytest.mark.parametrize(
        ("args", "known", "warm", "measured_s"),
        [
            ({"max_num_seqs": 64, "max_num_batched_tokens": 512}, False, True, 70.5),
            ({"max_num_seqs": 256, "max_num_batched_tokens": 8192}, True, True, 36.6),
            ({"max_num_seqs": 512, "max_num_batched_tokens": 16384}, False, True, 67.7),
            ({"enforce_eager": True}, False, True, 44.4),
            ({"enforce_eager": True}, True, True, 29.6),
            ({"max_num_seqs": 256}, False, False, 105.0),
        ],
    )
    def test_it_is_about_the_measured_one(
        self, args: dict[str, Any], known: bool, warm: bool, measured_s: float
    ) -> None:
        total_s = Startup().total_s(resolve(**args), MODEL, known=known, warm=warm)
        assert total_s == pytest.approx(measured_s, rel=0.12)

    def test_refused_for_want_of_cache_before_graphs_are_captured(self) -> None:
        refused_s = Startup().until_profiled_s(resolve(), MODEL, known=True, warm=True)
        assert refused_s == pytest.approx(28.8, rel=0.12)


class TestCompileCache:
    def test_the_second_start_hits(self) -> None:
        cache = CompileCache()
        assert [cache.hit("a"), cache.hit("a"), cache.hit("b")] == [False, True, False]

    @pytest.mark.parametrize(
        "other",
        [
            {"max_num_seqs": 512},
            {"max_num_seqs": 1024},
            {"gpu_memory_utilization": 0.4},
        ],
    )
    def test_what_shared_it_on_the_gpu(self, other: dict[str, Any]) -> None:
        base = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
        assert compile_key(resolve(**base), MODEL) == compile_key(resolve(**base | other), MODEL)

    @pytest.mark.parametrize(
        "other", [{"max_num_seqs": 64}, {"max_num_batched_tokens": 2048}, {"kv_cache_dtype": "fp8"}]
    )
    def test_what_compiled_anew_on_the_gpu(self, other: dict[str, Any]) -> None:
        base = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
        assert compile_key(resolve(**base), MODEL) != compile_key(resolve(**base | other), MODEL)

"""Defaults are vLLM's, and what vLLM refuses is refused."""

from typing import Any

import pytest

from tests.tuner.simulation.test_models import LLAMA_2_7B
from tuner.errors import FieldError
from tuner.simulation.arguments import Arguments
from tuner.simulation.hardware import GPUS, gpu_by_name
from tuner.simulation.models import ModelShape

MODEL = ModelShape.from_config(LLAMA_2_7B)


def resolve(gpu: str = "H200", **args: Any) -> Arguments:
    return Arguments.resolve(args, gpu=GPUS[gpu], model=MODEL)


class TestDefaults:
    @pytest.mark.parametrize(
        ("gpu", "seqs", "tokens"),
        [
            ("H200", 1024, 8192),
            ("H100", 1024, 8192),
            ("B200", 1024, 16384),
            ("A100", 256, 2048),
            ("L4", 256, 2048),
        ],
    )
    def test_they_depend_on_the_gpu(self, gpu: str, seqs: int, tokens: int) -> None:
        limits = resolve(gpu).limits
        assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (seqs, tokens)

    def test_a_budget_below_the_default_places_lowers_them(self) -> None:
        assert resolve(max_num_batched_tokens=512).limits.max_num_seqs == 512

    def test_the_budget_is_no_larger_than_all_places_need(self) -> None:
        assert resolve(max_num_seqs=1, max_model_len=1000).limits.max_num_batched_tokens == 1000

    def test_throughput_mode_doubles_them(self) -> None:
        limits = resolve(performance_mode="throughput").limits
        assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (2048, 16384)

    def test_an_eager_engine_captures_nothing(self) -> None:
        assert resolve(enforce_eager=True).captured == ()

    def test_an_8_bit_cache_takes_half(self) -> None:
        assert resolve(kv_cache_dtype="fp8").kv_bytes_per_token * 2 == resolve().kv_bytes_per_token == 524_288

    def test_tensor_parallel_gpus_share_the_cache(self) -> None:
        assert resolve(tensor_parallel_size=4).kv_bytes_per_token == 131_072

    def test_what_changes_nothing_is_listed(self) -> None:
        assert resolve(stream_interval=4, max_num_seqs=8).unmodelled == ("stream_interval",)


class TestRefusals:
    @pytest.mark.parametrize(
        ("args", "field"),
        [
            ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "max_num_batched_tokens"),
            ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}, "max_num_batched_tokens"),
            ({"max_num_seqs": 0}, "max_num_seqs"),
            ({"max_num_seqs": True}, "max_num_seqs"),
            ({"tensor_parallel_size": 3}, "tensor_parallel_size"),
        ],
    )
    def test_vllm_would_not_start(self, args: dict[str, Any], field: str) -> None:
        with pytest.raises(FieldError) as caught:
            resolve(**args)
        assert caught.value.field == field


class TestGpus:
    @pytest.mark.parametrize(
        ("name", "known"), [("NVIDIA H200", "H200"), ("nvidia l40s", "L40S"), ("NVIDIA L4", "L4")]
    )
    def test_a_gpu_is_known_by_its_full_name(self, name: str, known: str) -> None:
        assert gpu_by_name(name).name == known

    def test_only_the_measured_gpu_is_calibrated(self) -> None:
        assert [name for name, gpu in GPUS.items() if gpu.calibrated] == ["H200"]

    def test_an_unknown_gpu_is_refused(self) -> None:
        with pytest.raises(FieldError, match="use one of H200"):
            gpu_by_name("Voodoo 2")

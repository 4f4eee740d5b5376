"""The catalogue fits vLLM's own parser, and a study may set what tunes and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.conftest import document
from tuner.errors import FieldError
from tuner.knobs import (
    CATALOGUE,
    Platform,
    check_argument,
    check_environment,
    check_value,
    is_env,
    kind_of,
    preset_knobs,
)
from tuner.protocol import ArgValue
from tuner.space import build_space
from tuner.spec import Preset, parse_study


def refusal(check: Any, *arguments: Any) -> FieldError:
    """What ``check`` raises."""
    with pytest.raises(FieldError) as caught:
        check("a.field", *arguments)
    assert caught.value.field == "a.field"
    assert caught.value.fix
    return caught.value


class TestCatalogue:
    @pytest.mark.parametrize("name", sorted(CATALOGUE))
    def test_knob_builds_a_space_with_its_own_range(self, name: str) -> None:
        space = {"preset": "none", "knobs": {name: CATALOGUE[name].domain.model_dump()}}
        assert build_space(parse_study(document(space=space))).names == (name,)

    @pytest.mark.parametrize("preset", list(Preset))
    @pytest.mark.parametrize("platform", ["cuda", "cpu"])
    def test_preset_holds_knobs_of_the_platform(self, preset: Preset, platform: Platform) -> None:
        knobs = preset_knobs(preset, platform)
        assert all(platform in CATALOGUE[name].platforms for name in knobs)
        assert bool(knobs) == (preset is not Preset.NONE)

    def test_kinds_are_those_of_vllms_parser(self) -> None:
        names = ("max_num_seqs", "gpu_memory_utilization", "enforce_eager", "kv_cache_dtype")
        assert [kind_of(name) for name in names] == ["int", "float", "bool", "str"]


class TestArguments:
    @pytest.mark.parametrize(
        "name",
        ["host", "port", "model", "served_model_name", "config", "device_ids", "grpc_port", "master_addr"],
    )
    def test_what_the_worker_sets_is_refused(self, name: str) -> None:
        assert "set by the worker" in refusal(check_argument, name).problem

    @pytest.mark.parametrize(
        "name",
        [
            "api_key",
            "hf_token",
            "trust_remote_code",
            "worker_cls",
            "scheduler_cls",
            "middleware",
            "ssl_keyfile",
            "tool_parser_plugin",
            "logits_processors",
            "kv_transfer_config",
        ],
    )
    def test_what_runs_foreign_code_or_holds_a_secret_is_refused(self, name: str) -> None:
        assert "foreign code" in refusal(check_argument, name).problem

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("max_num_sqes", "max_num_seqs"),
            ("max-model-len", "max_model_len"),
            ("gpu_memory_utilisation", "gpu_memory_utilization"),
            ("enable_prefix_cache", "enable_prefix_caching"),
        ],
    )
    def test_misspelt_name_is_answered_with_the_one_meant(self, name: str, meant: str) -> None:
        assert refusal(check_argument, name).fix == f"did you mean {meant}?"

    def test_unknown_name_is_answered_with_where_the_names_are(self) -> None:
        assert "vllm serve --help" in refusal(check_argument, "zzzz").fix


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("enforce_eager", True),
            ("max_num_seqs", 8),
            ("max_model_len", "8K"),
            ("max_model_len", "25.6k"),
            ("max_model_len", "auto"),
            ("gpu_memory_utilization", 1),
            ("kv_cache_dtype", "fp8"),
            ("max_lora_rank", 16),
            ("quantization", "any text"),
            ("OMP_NUM_THREADS", "4"),
        ],
    )
    def test_value_of_the_arguments_type_passes(self, name: str, value: ArgValue) -> None:
        check_value("a.field", name, value)

    @pytest.mark.parametrize(
        ("name", "value", "fix"),
        [
            ("enforce_eager", 1, "true or false"),
            ("enforce_eager", "true", "true or false"),
            ("max_num_seqs", True, "a whole number"),
            ("max_num_seqs", 8.5, "a whole number"),
            ("max_num_seqs", "many", "a whole number"),
            ("max_model_len", "25.6K", "a whole number"),
            ("max_model_len", "8.5", "a whole number"),
            ("gpu_memory_utilization", "0.9", "a number"),
            ("gpu_memory_utilization", False, "a number"),
            ("dtype", True, "text"),
            ("kv_cache_dtype", "fp9", "did you mean fp8?"),
            ("scheduling_policy", "random", "fcfs, priority"),
            ("max_lora_rank", 17, "16"),
        ],
    )
    def test_any_other_is_answered_with_what_to_write(self, name: str, value: ArgValue, fix: str) -> None:
        assert fix in refusal(check_value, name, value).fix


class TestEnvironment:
    @pytest.mark.parametrize(
        "name",
        [
            "VLLM_CPU_KVCACHE_SPACE",
            "VLLM_ATTENTION_BACKEND",
            "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE",
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NCCL_ALGO",
            "PYTORCH_ALLOC_CONF",
            "HF_HUB_OFFLINE",
        ],
    )
    def test_variable_that_tunes_is_allowed(self, name: str) -> None:
        assert is_env(name)
        check_environment("a.field", name)

    @pytest.mark.parametrize(
        "name", ["PATH", "LD_PRELOAD", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "HTTP_PROXY", "vllm_x"]
    )
    def test_variable_that_is_not_listed_is_refused(self, name: str) -> None:
        assert "may not be set" in refusal(check_environment, name).problem

    @pytest.mark.parametrize(
        "name",
        [
            "VLLM_API_KEY",
            "HF_TOKEN",
            "VLLM_PLUGINS",
            "NCCL_NET_PLUGIN",
            "OMP_TOOL_LIBRARIES",
            "VLLM_NCCL_SO_PATH",
            "VLLM_LOGGING_CONFIG_PATH",
            "VLLM_RUST_FRONTEND_PATH",
            "VLLM_CACHE_ROOT",
            "VLLM_ALLOW_INSECURE_SERIALIZATION",
            "VLLM_SERVER_DEV_MODE",
            "VLLM_HOST_IP",
            "VLLM_PORT",
        ],
    )
    def test_variable_that_loads_code_opens_the_server_or_holds_a_secret_is_refused(self, name: str) -> None:
        assert "may not be set" in refusal(check_environment, name).problem

    @pytest.mark.parametrize("name", ["Vllm_x", "max_num_seqs", "1A"])
    def test_only_capitals_are_a_variable(self, name: str) -> None:
        assert not is_env(name)

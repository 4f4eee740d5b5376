"""Known models have their known sizes."""

from typing import Any

import pytest

from tuner.errors import FieldError
from tuner.simulation.models import ModelShape

LLAMA_2_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LLAMA_31_8B = LLAMA_2_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
QWEN_25_05B = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
MIXTRAL_8X7B = LLAMA_31_8B | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_30B_A3B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


class TestSizes:
    # From the models' cards; norms and biases are left out, so a per mille is missing.
    @pytest.mark.parametrize(
        ("config", "billions"),
        [
            (LLAMA_2_7B, 6.74),
            (LLAMA_31_8B, 8.03),
            (QWEN_25_05B, 0.494),
            (MIXTRAL_8X7B, 46.7),
            (QWEN3_30B_A3B, 30.5),
        ],
    )
    def test_weights_are_those_of_the_model_card(self, config: dict[str, Any], billions: float) -> None:
        assert ModelShape.from_config(config).total_weight_bytes / 2e9 == pytest.approx(billions, rel=0.005)

    def test_kv_cache_of_a_token(self) -> None:
        assert ModelShape.from_config(LLAMA_2_7B).kv_numbers_per_token * 2 == 524_288
        assert ModelShape.from_config(LLAMA_31_8B).kv_numbers_per_token * 2 == 131_072

    def test_active_weights_of_a_mixture_of_experts(self) -> None:
        assert ModelShape.from_config(MIXTRAL_8X7B).active_weights / 1e9 == pytest.approx(12.8, rel=0.01)
        assert ModelShape.from_config(QWEN3_30B_A3B).active_weights / 1e9 == pytest.approx(3.04, rel=0.02)

    def test_few_tokens_read_few_experts_and_many_read_all(self) -> None:
        model = ModelShape.from_config(MIXTRAL_8X7B)
        assert model.touched_weight_bytes(1) == pytest.approx(2 * model.active_weights)
        assert model.touched_weight_bytes(500) == pytest.approx(model.total_weight_bytes - 2 * 32000 * 4096)

    @pytest.mark.parametrize(("method", "size"), [("fp8", 1.0), ("awq", 0.53), ("gptq_marlin", 0.53)])
    def test_quantised_weights_are_smaller(self, method: str, size: float) -> None:
        assert ModelShape.from_config(LLAMA_2_7B, quantization=method).weight_bytes == size
        config = LLAMA_2_7B | {"quantization_config": {"quant_method": method}}
        assert ModelShape.from_config(config).weight_bytes == size

    def test_the_text_part_of_a_multimodal_model_is_read(self) -> None:
        assert ModelShape.from_config({"text_config": LLAMA_2_7B}).layers == 32

    def test_a_missing_figure_is_named(self) -> None:
        config = {name: value for name, value in LLAMA_2_7B.items() if name != "hidden_size"}
        with pytest.raises(FieldError, match=r"config\.json\.hidden_size"):
            ModelShape.from_config(config)

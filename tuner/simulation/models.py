"""The figures of a model that decide how long a step takes, from its Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import FieldError

__all__ = ["ModelShape", "kv_element_bytes"]

_ELEMENT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "auto": 2.0}
# Bytes per weight, scales included: int4 in groups of 128 carries a 2-byte scale and a packed zero point.
_QUANTISED_BYTES = {"fp8": 1.0, "compressed-tensors": 1.0, "awq": 0.53, "gptq": 0.53, "bitsandbytes": 0.53}


def kv_element_bytes(kv_cache_dtype: str) -> float:
    """Bytes of one number in the KV cache."""
    return 1.0 if kv_cache_dtype.startswith("fp8") else 2.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder.

    Attributes:
        dense_weights: weights that every token goes through, embedding table excluded, LM head included.
        expert_weights: weights of one expert, over all layers; 0 without experts.
        weight_bytes: bytes of one weight.
        weight_type: ``bf16`` or ``fp8``: what the matrix units multiply.
        kv_numbers_per_token: numbers that one token keeps in the KV cache, over all layers.
        max_position: longest sequence the model was made for.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    head_dim: int
    vocabulary: int
    dense_weights: float
    expert_weights: float
    experts: int
    experts_per_token: int
    weight_bytes: float
    weight_type: str
    kv_numbers_per_token: float
    max_position: int
    embedding_weights: float

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, name: str = "", quantization: str | None = None
    ) -> ModelShape:
        """Read a ``config.json`` of the Llama family (Llama, Mistral, Qwen, Mixtral, Qwen-MoE, Phi, Gemma).

        Raises:
            FieldError: a figure is missing.
        """
        config = config.get("text_config", config)
        hidden, layers, heads = (
            _figure(config, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        head_dim = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        vocabulary = _figure(config, "vocab_size")
        experts = int(config.get("num_local_experts") or config.get("num_experts") or 0)
        width = int(config.get("moe_intermediate_size") or 0) if experts else 0
        width = width or _figure(config, "intermediate_size")
        attention = layers * hidden * head_dim * 2 * (heads + kv_heads)
        mlp = 3.0 * layers * hidden * width
        head = float(vocabulary * hidden)
        weight_bytes, weight_type = _weight_format(config, quantization)
        return cls(
            name=name or str(config.get("model_type", "model")),
            layers=layers,
            hidden=hidden,
            heads=heads,
            head_dim=head_dim,
            vocabulary=vocabulary,
            dense_weights=attention + head + (0.0 if experts else mlp),
            expert_weights=mlp if experts else 0.0,
            experts=experts,
            experts_per_token=int(config.get("num_experts_per_tok") or 0) if experts else 0,
            weight_bytes=weight_bytes,
            weight_type=weight_type,
            kv_numbers_per_token=2.0 * layers * kv_heads * head_dim,
            max_position=int(config.get("max_position_embeddings") or 4096),
            embedding_weights=0.0 if config.get("tie_word_embeddings") else head,
        )

    @property
    def total_weight_bytes(self) -> float:
        """Bytes of all weights on all GPUs together."""
        return (self.dense_weights + self.experts * self.expert_weights) * self.weight_bytes + (
            self.embedding_weights * 2.0
        )

    def touched_weight_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step of so many tokens reads.

        Of the experts, those that some token is sent to. Tokens are taken to choose their experts
        independently and evenly.
        """
        if not self.experts:
            return self.dense_weights * self.weight_bytes
        idle = (1.0 - self.experts_per_token / self.experts) ** tokens
        return (self.dense_weights + self.experts * (1.0 - idle) * self.expert_weights) * self.weight_bytes

    @property
    def active_weights(self) -> float:
        """Weights that one token goes through."""
        return self.dense_weights + self.experts_per_token * self.expert_weights


def _figure(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise FieldError(
            f"config.json.{key}",
            value,
            problem="is no positive integer",
            fix="use the model's own config.json",
        )
    return value


def _weight_format(config: Mapping[str, Any], quantization: str | None) -> tuple[float, str]:
    method = quantization or str((config.get("quantization_config") or {}).get("quant_method", ""))
    for known, size in _QUANTISED_BYTES.items():
        if method.startswith(known):
            return size, "fp8" if size == 1.0 else "bf16"
    return _ELEMENT_BYTES.get(str(config.get("torch_dtype") or config.get("dtype") or "auto"), 2.0), "bf16"

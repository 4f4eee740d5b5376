"""Writes a model folder that the real vLLM serves within seconds, from the standard library alone.

The weights do not exist: start vLLM with ``--load-format dummy``, and it makes random ones. The shape is
chosen for trying configurations, not for speaking:

- two narrow layers, so that a forward pass costs next to nothing on a CPU;
- eight key-value heads of 128, so that one token takes 8 KiB of KV cache (2 layers x 2 x 8 x 128 x 2 bytes):
  1 GiB holds 131,072 tokens;
- 262,144 positions, so that a large ``max_model_len`` needs 2 GiB and vLLM truly refuses it when it has one.

    python workers/tiny_model.py FOLDER
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path

__all__ = ["KV_BYTES_PER_TOKEN", "MAX_POSITIONS", "VOCABULARY_SIZE", "write_tiny_model"]

HIDDEN_SIZE = 256
LAYERS = 2
KV_HEADS = 8
HEAD_SIZE = 128
BYTES_PER_VALUE = 2  # bfloat16
MAX_POSITIONS = 262_144
KV_BYTES_PER_TOKEN = LAYERS * 2 * KV_HEADS * HEAD_SIZE * BYTES_PER_VALUE

BEGIN, END = "<s>", "</s>"
SPACE = "Ġ"
"""How byte-level BPE writes a space: the 33rd of the bytes that have no printable form, from U+0100 on."""


def _byte_letters() -> list[str]:
    """The 256 letters that byte-level BPE writes bytes with: printable Latin-1 stands for itself."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _pairs() -> list[tuple[str, str]]:
    """The merges: a space before each lower-case letter, and every pair of those letters."""
    letters = string.ascii_lowercase
    return [(SPACE, letter) for letter in letters] + [
        (first, second) for first in letters for second in letters
    ]


VOCABULARY_SIZE = 2 + 256 + len(_pairs())


def _special_token(index: int, text: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": text, **flags}


def _tokenizer() -> dict[str, object]:
    words = [BEGIN, END, *_byte_letters(), *(first + second for first, second in _pairs())]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(index, text) for index, text in enumerate((BEGIN, END))],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [f"{first} {second}" for first, second in _pairs()],
        },
    }


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "hidden_size": HIDDEN_SIZE,
        "initializer_range": 0.02,
        "intermediate_size": 2 * HIDDEN_SIZE,
        "max_position_embeddings": MAX_POSITIONS,
        "mlp_bias": False,
        "num_attention_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY_SIZE,
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
    }


def write_tiny_model(folder: Path) -> Path:
    """Write the model's files into ``folder``, which is made if need be; the same bytes every time.

    Returns:
        The folder, absolute.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": _config(),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return folder.resolve()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python workers/tiny_model.py FOLDER")
    write_tiny_model(Path(sys.argv[1]))

"""Finds a model's ``config.json`` where vLLM reads it: in its folder, or in the Hugging Face cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers.load.prompts import Vocabulary

__all__ = ["read_config", "vocabulary_of"]

LANGUAGE_PARTS = frozenset({"text_config", "language_config", "llm_config"})
"""Where multimodal models keep the configuration of their language model."""


def _cache(env: Mapping[str, str]) -> Path:
    if "HF_HUB_CACHE" in env:
        return Path(env["HF_HUB_CACHE"])
    if "HF_HOME" in env:
        return Path(env["HF_HOME"]) / "hub"
    return Path(env.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface" / "hub"


def _candidates(model: str, revision: str, env: Mapping[str, str]) -> Iterator[Path]:
    if Path(model).is_dir():
        yield Path(model)
        return
    folder = _cache(env) / f"models--{model.replace('/', '--')}"
    reference = folder / "refs" / revision
    yield folder / "snapshots" / (reference.read_text().strip() if reference.is_file() else revision)


def read_config(
    model: str, *, revision: str = "main", env: Mapping[str, str] | None = None
) -> dict[str, object] | None:
    """The model's configuration.

    Args:
        model: folder or Hugging Face id.
        revision: branch, tag or commit of the id.
        env: environment of the engine; decides where the cache is.

    Returns:
        ``None`` if it is not there, or is no JSON object.
    """
    for folder in _candidates(model, revision, os.environ if env is None else env):
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return None


def _parts(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The configuration and those nested in it, the language model's before all others."""
    nested = [(key not in LANGUAGE_PARTS, part) for key, part in config.items() if isinstance(part, dict)]
    return [config, *(part for _, part in sorted(nested, key=lambda pair: pair[0]))]


def _special_tokens(config: Mapping[str, object]) -> set[int]:
    """Every id that the configuration gives a meaning: begin, end, padding, placeholders of images."""
    found: set[int] = set()
    for part in _parts(config):
        for key, value in part.items():
            if key.endswith(("_token_id", "_token_index")):
                found.update(
                    token for token in (value if isinstance(value, list) else [value]) if type(token) is int
                )
    return found


def vocabulary_of(config: Mapping[str, object]) -> Vocabulary | None:
    """The ordinary token ids of a model; ``None`` if its configuration does not tell how many there are."""
    sizes = [size for part in _parts(config) if type(size := part.get("vocab_size")) is int and size > 0]
    return Vocabulary.of_size(sizes[0], without=_special_tokens(config)) if sizes else None

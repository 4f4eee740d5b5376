"""Finding a model's configuration and its ordinary tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from workers.engines.model_files import read_config, vocabulary_of
from workers.load.prompts import Vocabulary
from workers.tiny_model import VOCABULARY_SIZE


def tokens(vocabulary: Vocabulary | None) -> set[int]:
    assert vocabulary is not None
    return set(vocabulary.draw(np.random.default_rng(0), 10_000))


class TestAConfiguration:
    def test_is_read_from_a_folder(self, tiny_model: Path) -> None:
        config = read_config(str(tiny_model))
        assert config is not None
        assert config["vocab_size"] == VOCABULARY_SIZE

    def test_is_read_from_the_hubs_cache_at_its_revision(self, tmp_path: Path) -> None:
        model = tmp_path / "hub" / "models--org--name"
        (model / "refs").mkdir(parents=True)
        for revision, commit, size in (("main", "aaa", 10), ("v2", "bbb", 20)):
            (model / "refs" / revision).write_text(commit)
            (model / "snapshots" / commit).mkdir(parents=True)
            (model / "snapshots" / commit / "config.json").write_text(json.dumps({"vocab_size": size}))
        env = {"HF_HOME": str(tmp_path)}
        assert read_config("org/name", env=env) == {"vocab_size": 10}
        assert read_config("org/name", revision="v2", env=env) == {"vocab_size": 20}
        assert read_config("org/name", revision="bbb", env=env) == {"vocab_size": 20}

    def test_that_is_nowhere_is_none(self, tmp_path: Path) -> None:
        assert read_config("org/name", env={"HF_HUB_CACHE": str(tmp_path)}) is None


class TestTheVocabulary:
    def test_leaves_out_every_token_with_a_meaning(self) -> None:
        config = {"vocab_size": 8, "bos_token_id": 0, "eos_token_id": [1, 2], "image_token_index": 7}
        assert tokens(vocabulary_of(config)) == {3, 4, 5, 6}

    def test_of_a_multimodal_model_is_the_language_models(self) -> None:
        config = {
            "audio_config": {"vocab_size": 99},
            "text_config": {"vocab_size": 4, "pad_token_id": 0},
            "image_token_id": 3,
        }
        assert tokens(vocabulary_of(config)) == {1, 2}

    def test_without_a_size_is_none(self) -> None:
        assert vocabulary_of({"model_type": "odd"}) is None

"""The tiny model's folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workers.tiny_model import KV_BYTES_PER_TOKEN, MAX_POSITIONS, VOCABULARY_SIZE, write_tiny_model

ROOT = Path(__file__).parents[2]


def test_has_one_token_for_every_id(tiny_model: Path) -> None:
    vocabulary = json.loads((tiny_model / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(VOCABULARY_SIZE))
    assert json.loads((tiny_model / "config.json").read_text())["vocab_size"] == VOCABULARY_SIZE


def test_every_merge_makes_a_token(tiny_model: Path) -> None:
    model = json.loads((tiny_model / "tokenizer.json").read_text())["model"]
    assert [merge for merge in model["merges"] if merge.replace(" ", "") not in model["vocab"]] == []


def test_needs_more_than_a_gib_of_cache_for_its_longest_request() -> None:
    assert KV_BYTES_PER_TOKEN * MAX_POSITIONS > 2**30


def test_is_written_by_any_interpreter_without_our_environment(tmp_path: Path, tiny_model: Path) -> None:
    script = ROOT / "workers" / "tiny_model.py"
    subprocess.run([sys.executable, "-I", "-S", str(script), str(tmp_path / "m")], check=True)
    for path in tiny_model.iterdir():
        assert (tmp_path / "m" / path.name).read_bytes() == path.read_bytes()


def test_a_folder_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        write_tiny_model(Path("/proc/nowhere"))

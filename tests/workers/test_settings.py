"""The worker's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import FieldError
from workers.settings import WorkerSettings


class TestGpus:
    @pytest.mark.parametrize(
        ("text", "gpus"), [("0,1", ("0", "1")), (" 3 ", ("3",)), ("none", ()), ("", ()), ("auto", None)]
    )
    def test_are_written_as_indices(
        self, text: str, gpus: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NIGHTSHIFT_GPUS", text)
        assert WorkerSettings().gpus == gpus

    def test_give_the_worker_its_name(self) -> None:
        assert WorkerSettings().name_for(("0", "1")).endswith("-gpu0-1")
        assert WorkerSettings().name_for(()).endswith("-cpu")
        assert WorkerSettings(worker_name="mine").name_for(("0",)) == "mine"


class TestTheToken:
    def test_is_read_from_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("  secret\n")
        assert WorkerSettings(token_file=tmp_path / "token").bearer() == "secret"

    def test_never_shows(self) -> None:
        assert "secret" not in repr(WorkerSettings(token="secret"))

    def test_in_an_empty_file_names_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "token").touch()
        with pytest.raises(FieldError, match="NIGHTSHIFT_TOKEN_FILE: is empty"):
            WorkerSettings(token_file=tmp_path / "token").bearer()

    def test_is_none_by_default(self) -> None:
        assert WorkerSettings().bearer() is None

"""Settings: where they come from, and that no password leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from app.settings import Settings, hide_password
from tuner.errors import FieldError


def test_default_database_is_a_file_in_the_home_folder(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).url.get_secret_value() == f"sqlite:///{tmp_path}/nightshift.db"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_gets_our_driver(scheme: str) -> None:
    settings = Settings(database_url=SecretStr(f"{scheme}://u@h/db"))
    assert settings.url.get_secret_value() == "postgresql+psycopg://u@h/db"


def test_password_file_fills_the_url(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss word/\n")
    settings = Settings(database_url=SecretStr("postgresql://u@h:5433/db"), database_password_file=file)
    assert settings.url.get_secret_value() == "postgresql+psycopg://u:p%40ss%20word%2F@h:5433/db"
    assert "p%40ss" not in repr(settings)


def test_missing_password_file_is_named(tmp_path: Path) -> None:
    settings = Settings(
        database_url=SecretStr("postgresql://u@h/db"), database_password_file=tmp_path / "none"
    )
    with pytest.raises(FieldError, match="NIGHTSHIFT_DATABASE_PASSWORD_FILE"):
        _ = settings.url


def test_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_LEASE_TTL_S", "7.5")
    assert Settings().lease_ttl_s == 7.5


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:1/db", "postgresql://u:***@h:1/db"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("sqlite:///file.db", "sqlite:///file.db"),
    ],
)
def test_password_is_hidden(url: str, shown: str) -> None:
    assert hide_password(url) == shown

"""The control plane's settings: one frozen tree, read once from the environment, passed down."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tuner.errors import FieldError

__all__ = ["DEFAULT_PORT", "Settings", "hide_password"]

DEFAULT_PORT = 8765


class Settings(BaseSettings):
    """Each field is read from ``NIGHTSHIFT_<FIELD>``.

    Attributes:
        home: folder of the embedded database, of local workers and of results.
        database_url: SQLAlchemy URL; empty for SQLite at ``home/nightshift.db``.
        database_password_file: file whose content becomes the URL's password.
        lease_ttl_s: seconds without a heartbeat after which a worker counts as dead.
        reserve_ttl_s: seconds that choosing a configuration may take before its reservation lapses.
        tell_grace_s: seconds that whoever took a report has to tell Optuna before the reconciler does.
        loop_interval_s: seconds between two passes of the background loops.
        busy_timeout_s: seconds that a SQLite write waits for another.
    """

    model_config = SettingsConfigDict(env_prefix="NIGHTSHIFT_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=lambda: Path.home() / ".nightshift")
    database_url: SecretStr = SecretStr("")
    database_password_file: Path | None = None
    lease_ttl_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    reserve_ttl_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    tell_grace_s: float = Field(default=5.0, ge=0.0, le=600.0)
    loop_interval_s: float = Field(default=2.0, gt=0.0, le=600.0)
    busy_timeout_s: float = Field(default=30.0, gt=0.0, le=600.0)

    @model_validator(mode="after")
    def _absolute_home(self) -> Self:
        object.__setattr__(self, "home", self.home.expanduser().absolute())
        return self

    @property
    def url(self) -> SecretStr:
        """The database's URL with its password in place.

        Raises:
            FieldError: the password file cannot be read.
        """
        url = self.database_url.get_secret_value() or f"sqlite:///{self.home / 'nightshift.db'}"
        if url.startswith(("postgres://", "postgresql://")):
            url = "postgresql+psycopg://" + url.split("://", 1)[1]
        if self.database_password_file is None:
            return SecretStr(url)
        try:
            password = self.database_password_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise FieldError(
                "NIGHTSHIFT_DATABASE_PASSWORD_FILE",
                str(self.database_password_file),
                problem=f"cannot be read: {error.strerror}",
                fix="write the password into it, or put it into the URL",
            ) from error
        return SecretStr(_with_password(url, password))


def _with_password(url: str, password: str) -> str:
    parts = urlsplit(url)
    user = (parts.username or "").strip()
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))


def hide_password(url: str) -> str:
    """The URL for logs and errors: its password replaced by three stars."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))

"""Databases for the tests: a fresh SQLite file, or a fresh PostgreSQL database from a migrated template."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import optuna
import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import make_url

from app.db.engine import open_database
from app.services.plane import ControlPlane, open_control_plane
from app.settings import Settings

POSTGRES_URL = os.environ.get(
    "NIGHTSHIFT_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the settings or the home folder of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("NIGHTSHIFT_") and name not in (
            "NIGHTSHIFT_TEST_POSTGRES_URL",
            "NIGHTSHIFT_VLLM_PYTHON",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path / "home"))


def _administer(*statements: sql.Composed) -> None:
    url = make_url(POSTGRES_URL).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[str]:
    """A migrated database, Optuna's tables included, that each test gets a copy of."""
    name = f"ns_template_{uuid.uuid4().hex[:12]}"
    identifier = sql.Identifier(name)
    _administer(sql.SQL("CREATE DATABASE {}").format(identifier))
    url = make_url(POSTGRES_URL).set(database=name).render_as_string(hide_password=False)
    database = open_database(url)
    database.upgrade()
    database.optuna_storage()
    database.close()
    yield name
    _administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


@pytest.fixture
def postgres_url(postgres_template: str) -> Iterator[str]:
    """A fresh PostgreSQL database."""
    name = f"ns_test_{uuid.uuid4().hex[:12]}"
    names = sql.Identifier(name), sql.Identifier(postgres_template)
    _administer(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    yield make_url(POSTGRES_URL).set(database=name).render_as_string(hide_password=False)
    _administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, Optuna's tables included, that each test gets a copy of."""
    file = tmp_path_factory.mktemp("template") / "nightshift.db"
    database = open_database(f"sqlite:///{file}")
    database.upgrade()
    database.optuna_storage()
    database.close()
    return file


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh SQLite database."""
    file = tmp_path / "nightshift.db"
    shutil.copy(sqlite_template, file)
    return f"sqlite:///{file}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database of either kind: what takes this fixture holds on both."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a control plane on the test's database."""
    return Settings(database_url=SecretStr(database_url), home=tmp_path / "home", loop_interval_s=0.1)


@pytest.fixture
def plane(settings: Settings) -> Iterator[ControlPlane]:
    """A control plane without web server and background loops; a pass of theirs finds work at once."""
    opened = open_control_plane(settings.model_copy(update={"tell_grace_s": 0.0}))
    yield opened
    opened.close()

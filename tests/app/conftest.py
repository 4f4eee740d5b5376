"""A served control plane and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from app.main import ServerThread
from app.services.plane import ControlPlane, open_control_plane
from app.settings import Settings


@pytest.fixture
def http(settings: Settings) -> Iterator[httpx.Client]:
    """A client of a server on a fresh database of either kind."""
    with (
        ServerThread(settings) as server,
        httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client,
    ):
        yield client


@pytest.fixture
def settings_on_sqlite(sqlite_url: str, tmp_path: Path) -> Settings:
    """Settings of a control plane on a fresh SQLite file."""
    return Settings(database_url=SecretStr(sqlite_url), home=tmp_path / "home", loop_interval_s=0.1)


@pytest.fixture
def lite(settings_on_sqlite: Settings) -> Iterator[httpx.Client]:
    """A client of a server on SQLite, for what does not depend on the database."""
    served = ServerThread(settings_on_sqlite)
    with served as server, httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client:
        yield client


@pytest.fixture
def plane_of_lite(lite: httpx.Client, settings_on_sqlite: Settings) -> Iterator[ControlPlane]:
    """The same database, without HTTP."""
    opened = open_control_plane(settings_on_sqlite)
    yield opened
    opened.close()

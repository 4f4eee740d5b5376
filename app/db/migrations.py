"""Running our migrations: Alembic with a version table of its own, beside Optuna's."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from app.errors import DatabaseTooNewError

__all__ = ["VERSION_TABLE", "alembic_config", "current_revision", "head_revision", "upgrade"]

VERSION_TABLE = "ns_alembic_version"
UPGRADE_LOCK = 7_463_514_829
"""Key of the PostgreSQL advisory lock that keeps two starting servers from migrating at once."""


def alembic_config() -> Config:
    """Alembic's configuration; the migrations lie in the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_migrations"
    config = Config()
    config.set_main_option(
        "script_location", str(installed if installed.is_dir() else package.parent / "migrations")
    )
    config.set_main_option("path_separator", "os")
    return config


def head_revision() -> str:
    """The newest revision that this version knows."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if head is None:
        raise RuntimeError("the installation lacks its migrations")
    return head


def current_revision(engine: Engine) -> str | None:
    """The revision that a database is at; ``None`` without our tables."""
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def upgrade(engine: Engine, target: str = "head") -> None:
    """Migrate up to ``target``, in one transaction.

    Raises:
        DatabaseTooNewError: the database is at a revision that this version does not know.
    """
    config = alembic_config()
    with engine.connect().execution_options(nightshift_write=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
        revision = _revision(connection)
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if revision is not None and revision not in known:
            raise DatabaseTooNewError(
                f"the database is at revision {revision}, which this version does not know",
                field="NIGHTSHIFT_DATABASE_URL",
                value=revision,
                fix="install the newer Nightshift that migrated it, or use another database",
            )
        config.attributes["connection"] = connection
        command.upgrade(config, target)

"""Opening a database: SQLite in write-ahead mode, or PostgreSQL; one interface for both."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, RDBStorage, get_storage
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import DatabaseError as SqlDatabaseError
from sqlalchemy.pool import ConnectionPoolEntry

from app.db.migrations import current_revision, upgrade
from app.errors import DatabaseUnreachableError
from app.settings import hide_password
from tuner.errors import FieldError

__all__ = ["Database", "Transaction", "open_database"]

DIALECTS = ("sqlite", "postgresql")

Transaction = Connection
"""What a service hands to the functions of ``app.db``: a connection inside a transaction."""


class Database:
    """One database with our tables and Optuna's.

    Attributes:
        engine: SQLAlchemy's engine.
        url: the address with its password; :attr:`shown` is for people.
    """

    def __init__(self, engine: Engine, url: URL) -> None:
        self.engine = engine
        self.url = url
        self._busy_timeout_s = 30.0
        self._optuna: list[RDBStorage] = []

    @property
    def shown(self) -> str:
        """The address without its password."""
        return hide_password(self.url.render_as_string(hide_password=False))

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded database."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads.

        Raises:
            DatabaseUnreachableError: nothing answers.
        """
        with self._reachable(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes; it commits when the block ends without an error.

        On SQLite it takes the write lock at once: a read that turns into a write later could find the
        database changed in between and would have to fail.

        Raises:
            DatabaseUnreachableError: nothing answers.
        """
        with self._reachable(), self.engine.connect() as plain:
            connection = plain.execution_options(nightshift_write=True)
            with connection.begin():
                yield connection

    def upgrade(self) -> None:
        """Bring our tables up to this version's schema; an empty database gets all of them.

        Raises:
            DatabaseTooNewError: a newer version has migrated it.
            DatabaseUnreachableError: nothing answers.
        """
        with self._reachable():
            upgrade(self.engine)

    def revision(self) -> str | None:
        """The schema's revision, ``None`` for a database without our tables."""
        with self._reachable():
            return current_revision(self.engine)

    def ping(self) -> None:
        """Ask the database for a sign of life.

        Raises:
            DatabaseUnreachableError: nothing answers.
        """
        with self._reachable(), self.read() as connection:
            connection.exec_driver_sql("SELECT 1")

    def optuna_storage(self) -> BaseStorage:
        """Optuna's storage in the same database; it makes its own tables."""
        options: dict[str, Any] = {"pool_pre_ping": True}
        if self.is_sqlite:
            options = {"connect_args": {"timeout": self._busy_timeout_s}}
        with self._reachable():
            storage = RDBStorage(self.url.render_as_string(hide_password=False), engine_kwargs=options)
        self._optuna.append(storage)
        return get_storage(storage)

    def close(self) -> None:
        """Close all connections, Optuna's too."""
        for storage in self._optuna:
            storage.remove_session()
            storage.engine.dispose()
        self.engine.dispose()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except SqlDatabaseError as error:
            # Of its subclasses only this one is about the connection; SQLite raises the base class itself
            # for a file that is no database.
            if not isinstance(error, OperationalError) and type(error) is not SqlDatabaseError:
                raise
            cause = str(error.orig).strip().splitlines()[0] if error.orig else "no answer"
            raise DatabaseUnreachableError(
                f"NIGHTSHIFT_DATABASE_URL: {self.shown} cannot be reached ({cause})",
                field="NIGHTSHIFT_DATABASE_URL",
                value=self.shown,
                fix="start the database, or mend the URL",
            ) from error


def open_database(url: str, *, busy_timeout_s: float = 30.0) -> Database:
    """Open a database without changing it yet.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql+psycopg://…``.
        busy_timeout_s: seconds that a SQLite statement waits for another writer.

    Raises:
        FieldError: the URL is none, or names another kind of database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise _bad_url(url, "is no database URL") from error
    if parsed.get_backend_name() not in DIALECTS:
        raise _bad_url(url, f"{parsed.get_backend_name()} is not supported")
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed, busy_timeout_s)
    try:
        engine = create_engine(
            parsed, pool_size=10, max_overflow=20, pool_pre_ping=True, connect_args={"connect_timeout": 5}
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise _bad_url(url, "names a driver that is not installed") from error
    return Database(engine, parsed)


def _bad_url(url: str, problem: str) -> FieldError:
    fix = "write sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"
    return FieldError("NIGHTSHIFT_DATABASE_URL", hide_password(url), problem=problem, fix=fix)


def _open_sqlite(url: URL, busy_timeout_s: float) -> Database:
    if url.database and url.database != ":memory:":
        folder = Path(url.database).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _bad_url(str(url), f"the folder {folder} cannot be made ({error.strerror})") from error
    engine = create_engine(url, connect_args={"timeout": busy_timeout_s, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    database = Database(engine, url)
    database._busy_timeout_s = busy_timeout_s
    return database


def _prepare_sqlite(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    """The driver must not begin transactions by itself: it would begin them as readers."""
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("nightshift_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

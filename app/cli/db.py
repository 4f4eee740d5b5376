"""``nightshift db …``: the database's schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from app.cli.options import JsonOption, show_help
from app.cli.output import print_json, print_pairs
from app.db.engine import Database, open_database
from app.db.migrations import head_revision
from app.settings import Settings

__all__ = ["app", "opened", "schema_state"]

app = typer.Typer(
    help="Look at the database's schema and bring it up to date.",
    callback=show_help,
    invoke_without_command=True,
)


@contextmanager
def opened(settings: Settings) -> Iterator[Database]:
    """The database that the settings name, unchanged."""
    database = open_database(settings.url.get_secret_value(), busy_timeout_s=settings.busy_timeout_s)
    try:
        yield database
    finally:
        database.close()


def schema_state(database: Database) -> str:
    """How old the schema is, in words; makes nothing.

    Raises:
        DatabaseUnreachableError: nothing answers.
    """
    if database.is_sqlite and not Path(database.url.database or "").exists():
        return "not made yet"
    revision = database.revision()
    if revision is None:
        return "empty"
    return "current" if revision == head_revision() else f"at revision {revision}"


@app.command()
def upgrade() -> None:
    """Bring the database up to this version's schema; `nightshift serve` does it by itself.

    \b
    Example:
      NIGHTSHIFT_DATABASE_URL=postgresql+psycopg://tuner@db/tuner nightshift db upgrade
    """
    with opened(Settings()) as database:
        database.upgrade()
        database.optuna_storage().remove_session()
        typer.echo(f"{database.shown} is at revision {database.revision()}")


@app.command()
def current(as_json: JsonOption = False) -> None:
    """Show the database and how old its schema is.

    \b
    Example:
      nightshift db current --json
    """
    with opened(Settings()) as database:
        state = schema_state(database)
        revision = None if state == "not made yet" else database.revision()
        facts = {"database": database.shown, "state": state, "revision": revision, "newest": head_revision()}
    if as_json:
        print_json(facts)
    else:
        print_pairs([(name, str(value or "")) for name, value in facts.items()])

"""Alembic's environment: runs on the connection it is handed, inside the caller's transaction."""

from alembic import context

from app.db.migrations import VERSION_TABLE
from app.db.tables import metadata


def ours(_object: object, name: str | None, kind: str, _reflected: bool, _compared: object) -> bool:
    """Leave Optuna's tables alone."""
    return kind != "table" or bool(name and name.startswith("ns_"))


def run() -> None:
    """Run the migrations."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_object=ours,
        compare_type=True,
    )
    context.run_migrations()


run()

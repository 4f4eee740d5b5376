"""The schema: migrated, equal to the tables in code, beside Optuna's, and refused when it is newer."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from app.db.engine import Database, open_database
from app.db.migrations import VERSION_TABLE, alembic_config, head_revision
from app.db.tables import metadata
from app.errors import DatabaseTooNewError, DatabaseUnreachableError
from app.services import studies
from app.services.plane import ControlPlane
from tests.contracts.conftest import study_spec
from tuner.errors import FieldError


def tables_of(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names())


def migrate(database: Database, target: str) -> None:
    config = alembic_config()
    with database.engine.connect().execution_options(nightshift_write=True) as connection, connection.begin():
        config.attributes["connection"] = connection
        if target == "base":
            command.downgrade(config, target)
        else:
            command.upgrade(config, target)


def test_schema_equals_the_tables_in_code(plane: ControlPlane) -> None:
    def ours(_: object, name: str | None, kind: str, *__: object) -> bool:
        return kind != "table" or bool(name and name.startswith("ns_"))

    options = {"version_table": VERSION_TABLE, "include_object": ours, "compare_type": True}
    with plane.database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_optunas_tables_and_ours_live_side_by_side(plane: ControlPlane) -> None:
    tables = tables_of(plane.database)
    assert {"studies", "trials", "alembic_version"} <= tables
    assert {"ns_studies", "ns_trials", "ns_leases", VERSION_TABLE} <= tables
    assert all(name.startswith("ns_") for name in metadata.tables)


def test_down_takes_away_ours_only_and_up_brings_it_back(plane: ControlPlane) -> None:
    studies.create(plane, study_spec())
    migrate(plane.database, "base")
    left = tables_of(plane.database)
    assert left & set(metadata.tables) == set()
    assert "studies" in left
    plane.database.upgrade()
    assert plane.database.revision() == head_revision()
    assert studies.page(plane) == []


def test_upgrade_of_an_up_to_date_database_keeps_its_data(plane: ControlPlane) -> None:
    studies.create(plane, study_spec())
    plane.database.upgrade()
    assert [study.name for study in studies.page(plane)] == ["study"]


def test_newer_database_is_refused_in_one_line(plane: ControlPlane) -> None:
    with plane.database.write() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '29991231_1'"))
    with pytest.raises(DatabaseTooNewError, match=r"29991231_1.*install the newer Nightshift") as caught:
        plane.database.upgrade()
    assert "\n" not in str(caught.value)


def test_empty_sqlite_file_gets_all_tables(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'folder' / 'new.db'}")
    assert database.revision() is None
    database.upgrade()
    assert set(metadata.tables) <= tables_of(database)
    database.close()


class TestBadAddress:
    def test_unreachable_server_is_named_without_its_password(self) -> None:
        database = open_database("postgresql+psycopg://user:geheim@127.0.0.1:1/nothing")
        with pytest.raises(DatabaseUnreachableError) as caught:
            database.ping()
        assert "user:***@127.0.0.1:1" in str(caught.value)
        assert "geheim" not in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("url", ["nonsense", "mysql://root@localhost/x", "postgresql+pigeon://a@b/c"])
    def test_url_that_names_no_database_we_know(self, url: str) -> None:
        with pytest.raises(FieldError) as caught:
            open_database(url)
        assert caught.value.field == "NIGHTSHIFT_DATABASE_URL"
        assert "sqlite:///FILE" in caught.value.fix

    def test_file_in_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(FieldError, match="cannot be made"):
            open_database(f"sqlite:///{tmp_path / 'file' / 'below.db'}")

    def test_file_that_is_no_database(self, tmp_path: Path) -> None:
        file = tmp_path / "text.db"
        file.write_text("this is not SQLite " * 100)
        database = open_database(f"sqlite:///{file}")
        with pytest.raises(DatabaseUnreachableError, match="not a database"):
            database.upgrade()
        database.close()

"""The database's clock, as an SQL expression: leases are judged by it and by no other."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["db_now"]


class db_now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Unix seconds now, on the database's clock, even late in a long transaction."""

    type = Double()
    inherit_cache = True


@compiles(db_now, "sqlite")
def _sqlite(element: db_now, compiler: Any, **options: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgresql(element: db_now, compiler: Any, **options: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    return "CAST(extract(epoch from clock_timestamp()) AS double precision)"

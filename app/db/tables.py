"""Our tables. Optuna's live in the same database, so ours have a prefix and constraints have names.

Times are Unix seconds on the database's clock, in columns that end in ``_at`` (docs/adr/0004).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.lifecycle.lease import LeaseState
from app.lifecycle.study import StudyState
from app.lifecycle.trial import TrialState

__all__ = ["events", "leases", "measurements", "metadata", "studies", "tokens", "trials", "workers"]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
RowId = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only in a column of type INTEGER."""


def _one_of(column: str, states: Iterable[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{state.value}'" for state in states)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


studies = Table(
    "ns_studies",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("spec", Document, nullable=False),
    Column("idempotency_key", String(200), unique=True),
    Column("recommendation", Document),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("deadline_at", Double),
    Column("ended_at", Double),
    _one_of("state", StudyState),
    Index(None, "state", "created_at"),
)

trials = Table(
    "ns_trials",
    metadata,
    Column("study_id", String(32), ForeignKey("ns_studies.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("origin", String(100), nullable=False),
    Column("args", Document, nullable=False),
    Column("env", Document, nullable=False),
    Column("knobs", Document, nullable=False),
    Column("attempts_used", Integer, nullable=False, server_default="0"),
    Column("outcome", Document),
    Column("told", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    _one_of("state", TrialState),
    CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name="ended_with_an_outcome"),
    Index(None, "study_id", "state", "number"),
)

LIVE = "state IN ('held', 'reporting')"

leases = Table(
    "ns_leases",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("study_id", String(32), ForeignKey("ns_studies.id", ondelete="CASCADE"), nullable=False),
    Column("trial_number", Integer),
    Column("attempt", Integer, nullable=False),
    Column("worker", String(200), nullable=False),
    Column("state", String(16), nullable=False),
    Column("token_hash", String(64)),
    Column("expires_at", Double, nullable=False),
    Column("phase", String(16)),
    Column("partial", Document),
    Column("elapsed_s", Double),
    Column("report_hash", String(64)),
    Column("reason", Text),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    _one_of("state", LeaseState),
    Index(None, "state", "expires_at"),
    Index(None, "study_id", "trial_number"),
    # The rule that matters most, kept by the database itself: one holder per trial.
    Index(
        "uq_ns_leases_one_holder",
        "study_id",
        "trial_number",
        unique=True,
        sqlite_where=text(LIVE),
        postgresql_where=text(LIVE),
    ),
)

measurements = Table(
    "ns_measurements",
    metadata,
    Column("lease_id", String(32), ForeignKey("ns_leases.id", ondelete="CASCADE"), primary_key=True),
    Column("study_id", String(32), ForeignKey("ns_studies.id", ondelete="CASCADE"), nullable=False),
    Column("trial_number", Integer, nullable=False),
    Column("measurement", Document, nullable=False),
    Column("created_at", Double, nullable=False),
    Index(None, "study_id", "trial_number"),
)

workers = Table(
    "ns_workers",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("description", Document, nullable=False),
    Column("registered_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    CheckConstraint("state IN ('active', 'quarantined')", name="state"),
)

events = Table(
    "ns_events",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("study_id", String(32), ForeignKey("ns_studies.id", ondelete="CASCADE")),
    Column("kind", String(50), nullable=False),
    Column("data", Document, nullable=False),
    Column("at", Double, nullable=False),
    Index(None, "study_id", "id"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "ns_tokens",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("scope", String(16), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    CheckConstraint("scope IN ('viewer', 'operator', 'worker', 'admin')", name="scope"),
)
